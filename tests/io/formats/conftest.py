import numpy as np
import pandas as pd
import pytest

from anndata_files import KINDS, make, write
from data import make_cells
from scbatchprox.cells import file
from scbatchprox.io.formats import tables
from table_files import D


@pytest.fixture
def small_chunks(monkeypatch):
    """Read AnnData in several chunks."""
    monkeypatch.setattr(file, "CHUNK_BYTES", 6 * 4 * 70)


@pytest.fixture(params=KINDS)
def stored(request, rng, tmp_path):
    """An AnnData and its file."""
    adata = make(rng)
    path = tmp_path / f"cells.{request.param[:4]}"
    write(adata, path, request.param)
    return adata, path


@pytest.fixture
def small_blocks(monkeypatch):
    """Read tables and arrays in several chunks and blocks, to test their boundaries too."""
    monkeypatch.setattr(file, "CHUNK_BYTES", 64 * 8 * D)
    monkeypatch.setattr(tables, "BLOCK_ROWS", 50)


@pytest.fixture
def frame(rng):
    """A table of cells: names, labels as text and as numbers, coordinates, notes."""
    cells = make_cells(rng, [90, 70, 60], D)
    n = len(cells.Z)
    return pd.DataFrame(
        {"cell_id": np.arange(n) + 1000, "sample": np.array(["a", "b", 'c, "d"'])[cells.codes]}
        | {"PC1": cells.Z[:, 0], "lane": np.where(rng.random(n) < 0.5, 1, 2)}
        | {"PC2": cells.Z[:, 1], "PC3": cells.Z[:, 2]}
        | {"ok": rng.random(n) < 0.5, "note": ["", "NA", "1_0", "é"] * (n // 4)}
    )
