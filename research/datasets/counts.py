"""Check whether a matrix holds counts, and find the counts of an AnnData."""

from __future__ import annotations

from typing import Any

import anndata as ad
import numpy as np
import scipy.sparse as sp

__all__ = ["holds_counts", "with_counts"]

#: Values checked at once; normalised data is usually found in the first block.
_BLOCK = 1 << 20


def holds_counts(X: Any) -> bool:
    """Return whether a matrix has at least one value, and all are finite, non-negative whole numbers."""
    if X is None or 0 in X.shape:
        return False
    values = X.data if sp.issparse(X) else np.ravel(X)
    if values.dtype.kind not in "fiu":
        return False
    for start in range(0, values.size, _BLOCK):
        block = values[start : start + _BLOCK]
        if not (
            np.isfinite(block).all() and (block >= 0).all() and (block == np.rint(block)).all()
        ):
            return False
    return True


def with_counts(adata: ad.AnnData) -> tuple[ad.AnnData, str | None]:
    """Return the data with counts in ``X``, and their original place: ``layers``, ``X``, ``raw`` or None.

    A layer named ``counts`` comes before ``X``, which may hold rounded values of another kind; ``raw``
    comes last, because most programs keep normalised values there.
    """
    if "counts" in adata.layers and holds_counts(adata.layers["counts"]):
        adata.X = adata.layers["counts"]
        return adata, 'layers["counts"]'
    if holds_counts(adata.X):
        return adata, "X"
    if adata.raw is not None and holds_counts(adata.raw.X):
        return adata.raw.to_adata(), "raw"
    return adata, None
