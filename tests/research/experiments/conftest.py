from dataclasses import replace

import pytest

from experiment_rows import SMALL, Calls
from research.datasets import Dataset
from research.experiments import EXPERIMENTS
from scbatchprox.demo import simulate


@pytest.fixture(scope="module")
def cells():
    adata = simulate(SMALL, n_genes=80, n_components=5)
    del adata.obsm["X_pca"]
    return Dataset("small", adata, True, None)


@pytest.fixture
def calls(monkeypatch):
    from research.baselines import METHODS

    found = Calls()
    monkeypatch.setitem(METHODS, "harmony", found)
    return found


@pytest.fixture(scope="module")
def path(cells, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "small.h5ad"
    cells.adata.write_h5ad(path)
    return path


@pytest.fixture
def settings(path):
    return replace(
        EXPERIMENTS["classify"].settings,
        data=(str(path),),
        upstreams=("pca",),
        methods=("unrefined", "harmony", "batchprox"),
        controls=False,
        runs=2,
        n_components=5,
    )
