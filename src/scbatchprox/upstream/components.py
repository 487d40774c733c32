"""Principal components of counts: the paper's preprocessing and PCA, for references and simulations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from ..choices import N_COMPONENTS, N_HVGS
from ..errors import BadValue
from ..kernels.arrays import Floats

__all__ = [
    "N_COMPONENTS", "N_HVGS", "TARGET_SUM", "Components", "log_normalised", "principal_components",
]  # fmt: skip

#: Total count to which every cell is scaled.
TARGET_SUM = 1e4


@dataclass(frozen=True, eq=False)
class Components:
    """Principal components of a matrix X (cells x genes).

    Attributes
    ----------
    scores
        (N, K) coordinates of the cells, (X - mean) loadings.
    mean
        (P,) mean of each gene.
    loadings
        (P, K) orthonormal axes; the loading with the largest absolute value on each axis is positive.
    variance
        (K,) variance of the scores, in descending order.
    """

    scores: Floats
    mean: Floats
    loadings: Floats
    variance: Floats


def log_normalised(counts: sp.csr_matrix, totals: Floats) -> sp.csr_matrix:
    r"""Return :math:`\log(1 + 10^4\, x_{ig} / t_i)`, in double precision; zeros stay zeros."""
    # Double precision, since the solver iterates to the precision of its input.
    logged = counts.astype(np.float64)
    logged.data = np.log1p(logged.data * np.repeat(TARGET_SUM / totals, np.diff(logged.indptr)))
    return logged


def principal_components(logged: sp.csr_matrix, n_components: int) -> Components:
    """Return the principal components of a sparse matrix; genes are centred and not scaled."""
    n_cells, n_genes = logged.shape
    if not 0 < n_components < min(n_cells, n_genes):
        raise BadValue(
            f"Expected n_components between 1 and {min(n_cells, n_genes) - 1} for {n_cells} cells and "
            f"{n_genes} genes, found {n_components}."
        )
    # Imported here: scikit-learn is slow to import, and a check of a fingerprint does not need it.
    from sklearn.decomposition import PCA

    # ARPACK centres implicitly, so the matrix stays sparse; its start vector is seeded.
    pca = PCA(n_components, svd_solver="arpack", random_state=0)
    scores = pca.fit_transform(logged)
    return Components(scores, pca.mean_, pca.components_.T, pca.explained_variance_)
