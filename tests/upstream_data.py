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


def most_variable(adata, n_hvgs, min_cells=1):
    """Return the most variable genes by Satija et al. (2015), gene by gene and bin by bin."""
    X = dense(adata)
    Y = 1e4 * X / X.sum(1, keepdims=True)
    names = adata.var_names.to_numpy()[(X > 0).sum(0) >= min_cells]
    Y = Y[:, (X > 0).sum(0) >= min_cells]
    mean, log_dispersion = np.log1p(Y.mean(0)), np.log(Y.var(0, ddof=1) / Y.mean(0))
    edges = np.linspace(mean.min(), mean.max(), 21)
    in_bin = np.clip(np.searchsorted(edges, mean, side="left"), 1, 20)
    score = np.empty(mean.size)
    for b in set(in_bin):
        mine = log_dispersion[in_bin == b]
        score[in_bin == b] = 1 if mine.size == 1 else (mine - mine.mean()) / mine.std(ddof=1)
    return set(names[score >= np.sort(score)[-n_hvgs] - 1e-9])  # with those equal to the last one


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
