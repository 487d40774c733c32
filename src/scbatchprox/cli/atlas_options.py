"""Options that the commands of ``scbatchprox atlas`` share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["At", "BatchKey", "Cells", "Policies", "Policy", "Upstream", "UseRep"]


class Policies(StrEnum):
    """Policies by name."""

    frozen = "frozen"
    refit = "refit"


At = Annotated[Path, typer.Argument(metavar="ATLAS", help="Folder of the atlas.")]
Cells = Annotated[
    Path,
    typer.Argument(
        metavar="IN", help="A .h5ad, .zarr, .npy, .npz, .parquet, .csv or .tsv file with cells."
    ),
]
BatchKey = Annotated[
    list[str] | None,
    typer.Option(
        help="Column with the batch of each cell; repeat to combine columns; by default that of the "
        "latest file added."
    ),
]
UseRep = Annotated[
    str | None,
    typer.Option(help="Embedding; by default that of the latest file added, or X_pca."),
]
Upstream = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT|FILE",
        help="Source of the embedding: a reference saved by embed fit, any other file or folder (its "
        "checksum is kept), or any text. Cells from another source are refused.",
    ),
]
Policy = Annotated[
    Policies, typer.Option(help="frozen: no old row changes; refit: all rows are fitted again.")
]
