"""Options that the commands of ``scbatchprox atlas`` share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["At", "BatchKey", "Cells", "Policies", "Policy", "Upstream", "UseRep"]


class Policies(StrEnum):
    """Policies by name, for the parser."""

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
        help="Column with the batch of each cell; repeat to combine columns; by default as for the "
        "latest arrival."
    ),
]
UseRep = Annotated[
    str | None,
    typer.Option(help="Embedding; by default as for the latest arrival, at first X_pca."),
]
Upstream = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT|FILE",
        help="What the embedding comes from: a reference saved by embed fit, any other file or folder "
        "(of which the checksum is kept), or any text. Another one is refused later.",
    ),
]
Policy = Annotated[
    Policies, typer.Option(help="frozen: old rows stay to the bit; refit: all are fitted anew.")
]
