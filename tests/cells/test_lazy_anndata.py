"""AnnData with Dask arrays, made in memory or opened lazily from a file."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import sklearn

from lazy_cells import D
from scbatchprox import BatchProx, InputError, refine
from scbatchprox.cells.dask import in_memory

da = pytest.importorskip("dask.array")


@pytest.fixture
def adata(cells, batch, rng):
    obs = pd.DataFrame(
        {
            "batch": pd.Categorical(batch, ["s3", "s1", "s2", "s9"]),
            "donor": rng.integers(1, 3, 611),
            "old": rng.random(611) > 0.5,
            "plate": pd.array(rng.integers(1, 3, 611), dtype="Int64"),
            "site": batch.astype(object),
        },
        index=[f"cell{i}" for i in range(611)],
    )
    adata = ad.AnnData(sp.csr_matrix(rng.poisson(1.0, (611, 7)).astype(np.float32)), obs)
    adata.obsm["X_pca"] = cells.Z.astype(np.float32)
    return adata


def test_refine_with_a_dask_array_in_obsm(adata):
    expected = refine(adata, "batch", inplace=False, target="moment")
    adata.obsm["X_pca"] = da.from_array(adata.obsm["X_pca"], chunks=(100, 3))
    lazy = refine(adata, "batch", inplace=False, target="moment")
    assert isinstance(lazy, da.Array)
    assert lazy.dtype == np.float32
    np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-6)
    assert set(adata.obsm) == {"X_pca"}
    assert refine(adata, "batch", target="moment") is None
    assert isinstance(adata.obsm["X_pca_batchprox"], da.Array)
    assert adata.uns["X_pca_batchprox"]["movement"]["n_cells"].tolist() == [300, 200, 111]
    with pytest.raises(InputError, match="solver='exact' works lazily"):
        refine(adata, "batch", solver="adam", target="moment")


@pytest.fixture(params=["h5ad", "zarr"])
def opened(request, adata, tmp_path):
    """The same cells, opened lazily from a file."""
    pytest.importorskip("xarray")
    experimental = pytest.importorskip("anndata.experimental")
    path = tmp_path / f"a.{request.param}"
    getattr(adata, f"write_{request.param}")(path)
    return experimental.read_lazy(path)


@pytest.mark.parametrize(
    "key",
    ["batch", "donor", "old", "plate", "site", ["batch", "donor"], ["site", "plate"]],
    ids=str,
)
def test_refine_opened_lazily(adata, opened, key):
    refine(adata, key, target="moment")
    assert refine(opened, key, target="moment") is None
    lazy = opened.obsm["X_pca_batchprox"]
    assert isinstance(lazy, da.Array)
    expected = adata.obsm["X_pca_batchprox"]
    np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-6, atol=1e-6)
    a, b = adata.uns["X_pca_batchprox"], opened.uns["X_pca_batchprox"]
    np.testing.assert_allclose(a["scale"], b["scale"], rtol=1e-10)
    assert a["batches"].tolist() == b["batches"].tolist()
    assert a["params"] == b["params"]


def test_refine_opened_lazily_on_a_cluster(adata, opened, client):
    expected = refine(adata, "batch", inplace=False, target="moment")
    with client.as_current():
        result = refine(opened, "batch", inplace=False, target="moment").compute()
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)


def test_opened_lazily_matrix_column_and_view(adata, opened, tmp_path):
    expected = refine(adata, "batch", use_rep="X", inplace=False, target="moment")  # sparse blocks
    result = refine(opened, "batch", use_rep="X", inplace=False, target="moment")
    np.testing.assert_allclose(result.compute(), expected, rtol=1e-6, atol=1e-6)
    column = opened.obs["batch"]
    memory = BatchProx(target="moment").fit(adata.obsm["X_pca"], batch=column)
    assert memory.batches_.tolist() == ["s1", "s2", "s3"]
    some = np.flatnonzero(adata.obs["donor"] == 1)
    expected = refine(adata[some], "batch", inplace=False, target="moment")
    result = refine(opened[some], "batch", inplace=False, target="moment")
    np.testing.assert_allclose(result.compute(), expected, rtol=1e-6, atol=1e-6)
    refine(opened, "batch", target="moment")
    again = opened.to_memory()
    again.write_h5ad(tmp_path / "again.h5ad")
    assert "X_pca_batchprox" in ad.read_h5ad(tmp_path / "again.h5ad").obsm


def test_refine_stays_lazy_if_scikit_learn_returns_frames(adata):
    adata.obsm["X_pca"] = da.from_array(adata.obsm["X_pca"], chunks=(100, D))
    with sklearn.config_context(transform_output="pandas"):
        assert isinstance(refine(adata, "batch", inplace=False, target="moment"), da.Array)


def test_opened_lazily_bad_keys(opened):
    columns = "available: 'batch', 'donor', 'old', 'plate', 'site'"
    with pytest.raises(KeyError, match=f"found no column 'assay'; {columns}"):
        refine(opened, "assay", target="moment")
    with pytest.raises(KeyError, match="found no 'X_umap'; available: 'X_pca'"):
        refine(opened, "batch", use_rep="X_umap", target="moment")
    assert not opened.uns


def test_a_categorical_column_is_read_as_codes(opened):
    labels = in_memory(opened.obs["batch"])
    assert isinstance(labels, pd.Categorical)
