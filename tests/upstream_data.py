"""Simulated counts for tests of upstreams, changed in ways that matter or do not."""

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

#: Number of coordinates of the PCA in these tests.
K = 6


def dense(adata):
    return np.asarray(adata.X.toarray(), np.float64)


def logged(X, totals=None):
    """Return the paper's preprocessing, by its definition."""
    totals = X.sum(1) if totals is None else totals
    return np.log(1 + 10_000 * X / totals[:, None])


def with_counts(adata, X):
    return ad.AnnData(X, obs=adata.obs, var=pd.DataFrame(index=adata.var_names))


def with_value(adata, value):
    X = adata.X.toarray()
    X[2, 5] = value
    return with_counts(adata, sp.csr_matrix(X))


def without_counts(adata, rows):
    X = adata.X.toarray()
    X[rows] = 0
    return with_counts(adata, sp.csr_matrix(X))


def renamed(adata, names):
    other = adata.copy()
    other.var_names = adata.var_names.map(lambda name: names.get(name, name))
    return other


def more_genes(adata):
    X = sp.csr_matrix(np.random.default_rng(1).poisson(50, (adata.n_obs, 3)).astype(np.float32))
    return ad.AnnData(X, obs=adata.obs, var=pd.DataFrame(index=["ERCC-1", "ERCC-2", "new"]))


def store(adata, path):
    adata.write_zarr(path) if path.suffix == ".zarr" else adata.write_h5ad(path)
    return path


def restore(path):
    return ad.read_zarr(path) if path.suffix == ".zarr" else ad.read_h5ad(path)
