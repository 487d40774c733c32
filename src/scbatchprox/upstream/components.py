"""Principal components of counts: the paper's preprocessing and PCA, for references and simulations."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ..choices import N_COMPONENTS, N_HVGS
from ..errors import BadValue
from ..kernels.arrays import Floats
from ..kernels.threads import one_blas_thread

__all__ = [
    "N_COMPONENTS", "N_HVGS", "TARGET_SUM", "Axes", "check_components", "log_normalised",
    "principal_axes", "principal_components",
]  # fmt: skip

#: Total count to which every cell is scaled.
TARGET_SUM = 1e4


class Axes(NamedTuple):
    """Principal components of a matrix X (cells x genes).

    Attributes
    ----------
    mean
        (P,) mean of each gene.
    loadings
        (P, K) orthonormal axes; the loading with the largest absolute value on each axis is positive.
    variance
        (K,) variance of the scores, in descending order.
    """

    mean: Floats
    loadings: Floats
    variance: Floats


def log_normalised(counts: sp.csr_matrix, totals: Floats) -> sp.csr_matrix:
    r"""Return :math:`\log(1 + 10^4\, x_{ig} / t_i)`, in double precision; zeros stay zeros."""
    # Double precision, since the solver iterates to the precision of its input.
    logged = counts.astype(np.float64)
    logged.data = np.log1p(logged.data * np.repeat(TARGET_SUM / totals, np.diff(logged.indptr)))
    return logged


def principal_components(logged: sp.csr_matrix, n_components: int) -> tuple[Floats, Axes]:
    """Return scores (N, K), (X - mean) loadings, and axes; genes are centred and not scaled."""
    check_components(n_components, *logged.shape)
    # Imported here: scikit-learn is slow to import, and a check of a fingerprint does not need it.
    from sklearn.decomposition import PCA

    # ARPACK centres implicitly, so the matrix stays sparse; its start vector is seeded.
    pca = PCA(n_components, svd_solver="arpack", random_state=0)
    scores = pca.fit_transform(logged)
    return scores, Axes(pca.mean_, pca.components_.T, pca.explained_variance_)


def principal_axes(n_cells: int, total: Floats, products: Floats, n_components: int) -> Axes:
    """Return the same axes from sums over cells.

    Parameters
    ----------
    n_cells, total, products
        Number of cells, (P,) sums of a matrix over cells, and (P, P) sums of products of its columns;
        only their lower triangle is used.
    """
    check_components(n_components, n_cells, len(total))
    # Imported here: applying a PCA does not need it.
    from scipy.linalg import eigh

    mean = total / n_cells
    spread = (products - np.outer(total, mean)) / (n_cells - 1)
    last = len(total) - 1
    # One thread: the result does not depend on their number, and on a busy machine two take much longer.
    with one_blas_thread():
        variance, loadings = eigh(spread, subset_by_index=[last - n_components + 1, last])
    variance, loadings = np.maximum(variance[::-1], 0.0), loadings[:, ::-1]
    largest = np.abs(loadings).argmax(0)
    signs = np.sign(loadings[largest, np.arange(n_components)])
    return Axes(mean, np.ascontiguousarray(loadings * signs), variance)


def check_components(n_components: int, n_cells: int, n_genes: int) -> None:
    """Check that there are fewer components than cells and genes."""
    if not 0 < n_components < min(n_cells, n_genes):
        raise BadValue(
            f"Expected n_components between 1 and {min(n_cells, n_genes) - 1} for {n_cells} cells and "
            f"{n_genes} genes, found {n_components}."
        )
