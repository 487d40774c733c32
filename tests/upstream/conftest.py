import numpy as np
import pytest

from scbatchprox.demo import Composition, simulate
from scbatchprox.upstream import PCAUpstream
from upstream_data import K

TABLE = Composition("t", ("a", "b", "c"), ("T", "B", "NK"), np.full((3, 3), 40))


@pytest.fixture(scope="module")
def cells():
    """Three batches of 120 cells with 80 genes."""
    cells = simulate(TABLE, n_genes=80, n_components=3, seed=4)
    cells.obs["batch"] = cells.obs["batch"].astype(str)
    return cells


@pytest.fixture
def rows_at_a_time(monkeypatch):
    """Read counts in blocks of a few rows."""

    def read(n, n_genes=80):
        monkeypatch.setattr("scbatchprox.upstream.counts.BLOCK_BYTES", 8 * n_genes * n)

    return read


@pytest.fixture(scope="module")
def first(cells):
    return cells[cells.obs["batch"] != "c"].copy()


@pytest.fixture(scope="module")
def new(cells):
    return cells[cells.obs["batch"] == "c"].copy()


@pytest.fixture(scope="module")
def pca(first):
    return PCAUpstream.fit(first, n_components=K, genes="all")
