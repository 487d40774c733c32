import anndata as ad
import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def counts():
    """Counts of 300 cells: three types, two batches that differ by a factor per gene."""
    rng = np.random.default_rng(3)
    n, genes = 300, 60
    cell_type, batch = rng.integers(0, 3, n), np.repeat([0, 1], n // 2)
    level = rng.gamma(2.0, 2.0, (3, genes))
    level[np.arange(3)[:, None], np.arange(20) + 20 * np.arange(3)[:, None]] *= 6  # marker genes
    effect = np.exp(np.array([[0.0], [0.4]]) * rng.normal(size=genes))
    obs = pd.DataFrame(
        {
            "batch": pd.Categorical(np.array(["s1", "s2"])[batch]),
            "cell_type": pd.Categorical(np.array(["B", "NK", "T"])[cell_type]),
        },
        index=[f"cell{i}" for i in range(n)],
    )
    X = rng.poisson(level[cell_type] * effect[batch]).astype(np.float32)
    return ad.AnnData(X, obs, pd.DataFrame(index=[f"gene{i}" for i in range(genes)]))


@pytest.fixture
def adata(counts):
    """The same with a PCA of scanpy."""
    sc = pytest.importorskip("scanpy")
    adata = counts.copy()
    sc.pp.normalize_total(adata)
    sc.pp.log1p(adata)
    sc.pp.pca(adata, n_comps=8)
    return adata
