"""Log-normalised highly variable genes, compared with the formula and with Scanpy."""

import os
import sys

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp

from research.datasets import load, preprocess
from scbatchprox.errors import BadValue, MissingExtra

sc = pytest.importorskip("scanpy", reason="scanpy is not installed; it is in the bench extra")
pytestmark = pytest.mark.bench
REAL = os.environ.get("SCBATCHPROX_DATA")


def normalised(X, target_sum=1e4):
    """Return the formula in double precision."""
    X = np.asarray(X, np.float64)
    return np.log(1 + target_sum * X / X.sum(1, keepdims=True))


def planted(rng, n=300, genes=400, variable=30):
    """Return counts of two kinds of cells that differ in some genes, but not in the mean; and these genes."""
    rate = np.exp(rng.uniform(0.0, 3.0, genes))
    chosen = rng.choice(genes, variable, replace=False)
    kind = rng.integers(0, 2, n)
    rates = np.tile(rate, (n, 1))
    rates[:, chosen] *= np.where(kind == 1, 1.9, 0.1)[:, None]
    depth = np.exp(rng.normal(0, 0.4, (n, 1)))
    return ad.AnnData(rng.poisson(rates * depth).astype(np.float32)), np.sort(chosen)


def dense(X):
    return X.toarray() if sp.issparse(X) else np.asarray(X)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix, sp.csc_matrix, np.int32])
@pytest.mark.parametrize("target_sum", [1e4, 300.0])
def test_values_are_the_formulas(rng, kind, target_sum):
    adata, _ = planted(rng)
    counts = dense(adata.X)
    adata.X = kind(counts)
    result = preprocess(adata, n_hvgs=50, target_sum=target_sum)
    genes = result.var_names.astype(int)
    # Cells are scaled over all genes, not only over the kept ones.
    np.testing.assert_allclose(
        dense(result.X), normalised(counts, target_sum)[:, genes], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(dense(result.layers["counts"]), counts[:, genes])
    np.testing.assert_array_equal(dense(adata.X), counts)
    assert "counts" not in adata.layers
    assert result.uns["preprocess"] == {
        "n_hvgs": 50,
        "n_genes": 400,
        "n_kept": 50,
        "target_sum": target_sum,
    }


def test_genes_that_vary_are_found(rng):
    adata, chosen = planted(rng)
    kept = np.sort(preprocess(adata, n_hvgs=len(chosen)).var_names.astype(int))
    assert np.isin(kept, chosen).mean() > 0.75


def test_genes_are_those_that_scanpy_picks(rng):
    adata, _ = planted(rng)
    logged = ad.AnnData(normalised(dense(adata.X)))
    picks = sc.pp.highly_variable_genes(logged, n_top_genes=60, flavor="seurat", inplace=False)
    expected = np.flatnonzero(picks["highly_variable"])
    assert list(preprocess(adata, n_hvgs=60).var_names.astype(int)) == list(expected)


@pytest.mark.parametrize("n_hvgs", [400, 2500])
def test_fewer_genes_than_asked_for_are_all_kept(rng, n_hvgs):
    adata, _ = planted(rng)
    result = preprocess(adata, n_hvgs=n_hvgs)
    assert list(result.var_names) == list(adata.var_names)
    np.testing.assert_allclose(dense(result.X), normalised(dense(adata.X)), rtol=1e-5, atol=1e-6)
    assert result.uns["preprocess"]["n_kept"] == 400


def test_counts_may_be_in_a_layer(rng):
    adata, _ = planted(rng)
    expected = preprocess(adata, n_hvgs=50)
    adata.layers["counts"] = adata.X.copy()
    adata.X = np.log1p(adata.X)
    again = preprocess(adata, n_hvgs=50)
    np.testing.assert_array_equal(dense(again.X), dense(expected.X))


def test_a_result_can_be_written(rng, tmp_path):
    adata, _ = planted(rng)
    result = preprocess(adata, n_hvgs=50)
    result.write_h5ad(tmp_path / "x.h5ad")
    np.testing.assert_array_equal(dense(ad.read_h5ad(tmp_path / "x.h5ad").X), dense(result.X))


def test_what_cannot_be_preprocessed(rng, monkeypatch):
    adata, _ = planted(rng)
    with pytest.raises(BadValue, match="n_hvgs .*> 0, found 0"):
        preprocess(adata, n_hvgs=0)
    with pytest.raises(BadValue, match="target_sum"):
        preprocess(adata, target_sum=-1.0)
    adata.X = np.log1p(adata.X)
    with pytest.raises(BadValue, match="Expected counts"):
        preprocess(adata)
    monkeypatch.setitem(sys.modules, "scanpy", None)
    with pytest.raises(MissingExtra, match=r"scbatchprox\[bench\]"):
        preprocess(adata)


@pytest.mark.skipif(REAL is None, reason="SCBATCHPROX_DATA names no folder with real data")
@pytest.mark.parametrize(("name", "n_genes"), [("sc_mixology", 728), ("kang_ifnb", 2500)])
def test_real_counts(name, n_genes):
    data = load(name, data_dir=REAL)
    result = preprocess(data.adata)
    assert result.n_vars == n_genes
    cells = np.random.default_rng(0).choice(data.adata.n_obs, 50, replace=False)
    counts = dense(data.adata.X[cells])
    columns = data.adata.var_names.get_indexer(result.var_names)
    np.testing.assert_allclose(
        dense(result.X[cells]), normalised(counts)[:, columns], rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(dense(result.layers["counts"][cells]), counts[:, columns])
    assert ("728 genes" in data.note) == (name == "sc_mixology")
