"""Fewer coordinates: principal components of an embedding, or of values that are not counts."""

from __future__ import annotations

import anndata as ad
import scipy.sparse as sp

from scbatchprox.core.checks import check_embedding, some_of
from scbatchprox.errors import BadValue
from scbatchprox.upstream.components import principal_components

__all__ = ["with_pca"]


def with_pca(name: str, adata: ad.AnnData, n_components: int) -> tuple[ad.AnnData, str]:
    """Add ``X_pca``, computed from the only embedding or else from ``X``, and return a note on it.

    Data with ``X_pca`` is not changed.
    """
    if "X_pca" in adata.obsm:
        return adata, ""
    if len(adata.obsm) > 1:
        raise BadValue(
            f"Expected one embedding in {name} to take principal components of, found "
            f"{some_of(adata.obsm)}."
        )
    rep = next(iter(adata.obsm), None)
    values = adata.X if rep is None else adata.obsm[rep]
    if values is None or 0 in values.shape:
        raise BadValue(f"Expected an embedding or values in X in {name}, found neither.")
    # In double precision, since the solver iterates to the precision of its input.
    matrix = sp.csr_matrix(check_embedding(values), dtype="float64")
    n_dims = min(n_components, matrix.shape[0] - 1, matrix.shape[1] - 1)
    adata.obsm["X_pca"] = principal_components(matrix, n_dims)[0]
    return adata, f"{n_dims} principal components of its {rep or 'X'} ({matrix.shape[1]:,} columns)"
