"""Reading a whole AnnData file, with one sentence on what is wrong with it if something is."""

from __future__ import annotations

from pathlib import Path

import anndata as ad

from ...io.formats import open_cells

__all__ = ["SUFFIXES", "read"]

SUFFIXES = (".h5ad", ".zarr")


def read(path: Path) -> ad.AnnData:
    """Read an ``.h5ad`` or ``.zarr``."""
    open_cells(path).close()  # says what is wrong better than anndata does
    return ad.read_zarr(path) if path.suffix == ".zarr" else ad.read_h5ad(path)
