"""Read a whole AnnData file; a damaged file is an error in one sentence."""

from __future__ import annotations

from pathlib import Path

import anndata as ad

from ...io.formats import open_cells

__all__ = ["SUFFIXES", "read"]

SUFFIXES = (".h5ad", ".zarr")


def read(path: Path) -> ad.AnnData:
    """Read an ``.h5ad`` or ``.zarr``."""
    open_cells(path).close()  # its errors are clearer than those of anndata
    return ad.read_zarr(path) if path.suffix == ".zarr" else ad.read_h5ad(path)
