"""Wide data made narrow: principal components of an embedding, or of values that are no counts."""

from __future__ import annotations

import anndata as ad
import scipy.sparse as sp

from ...core.checks import check_embedding, some_of
from ...errors import BadValue
from ...upstream.components import principal_components

__all__ = ["with_pca"]


def with_pca(name: str, adata: ad.AnnData, n_components: int) -> tuple[ad.AnnData, str]:
    """Add ``X_pca``, of the only embedding that there is or else of ``X``, and say so.

    Nothing is done to data that have one already.
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
    wide = sp.csr_matrix(check_embedding(values), dtype="float64")
    width = min(n_components, wide.shape[0] - 1, wide.shape[1] - 1)
    adata.obsm["X_pca"] = principal_components(wide, width).scores
    return adata, f"{width} principal components of its {rep or 'X'} ({wide.shape[1]:,} columns)"
