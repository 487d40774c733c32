"""Read a whole AnnData file; a damaged file is an error in one sentence."""

from __future__ import annotations

from pathlib import Path

import anndata as ad

from scbatchprox.io.damaged import reading
from scbatchprox.io.formats import open_cells
from scbatchprox.io.formats.elements import AnnDataFile, check_stored, child

__all__ = ["SUFFIXES", "read"]

SUFFIXES = (".h5ad", ".zarr")


def read(path: Path) -> ad.AnnData:
    """Read an ``.h5ad`` or ``.zarr``."""
    # Its errors are clearer than those of anndata, which also reads other files through links.
    with open_cells(path) as file, reading(path):
        assert isinstance(file, AnnDataFile)
        for name in file.group:
            check_stored(child(file.group, name), name)
    return ad.read_zarr(path) if path.suffix == ".zarr" else ad.read_h5ad(path)
