r"""Silhouette widths, :math:`s(i) = (b(i) - a(i)) / \max\{a(i), b(i)\}`.

:math:`a(i)` is the mean distance of cell i to the other cells of its group and :math:`b(i)` the
smallest mean distance to those of another group; a cell that is alone in its group has 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.metrics import pairwise_distances_chunked
from sklearn.utils import check_random_state

from ...core.labels import Labels
from ...kernels.arrays import Floats, Ints
from .cells import embedding, groups

__all__ = ["Silhouettes", "silhouette"]

#: MiB of distances at a time; they stay close to the processor while they are summed.
_CHUNK = 16


def silhouette(Z: Any, labels: Any, *, max_cells: int | None = None, seed: int = 0) -> float:
    """Average silhouette width of the groups that ``labels`` make, -1 to 1.

    With ``max_cells`` that many random cells stand for all, as for the ``sample_size`` of
    :func:`sklearn.metrics.silhouette_score`. NaN where there are fewer than two groups.
    """
    Z = embedding(Z)
    codes = groups(labels, len(Z), "label").codes
    if max_cells is not None:
        rows = check_random_state(seed).permutation(len(Z))[:max_cells]
        Z, codes = Z[rows], codes[rows]
    sums, size, own = _distance_sums(Z, codes)
    return float(_widths(sums, size, own).mean()) if size.size > 1 else float("nan")


@dataclass(frozen=True)
class Silhouettes:
    """Silhouette widths of all cells, by the three groupings that scores of integration look at.

    Attributes
    ----------
    types
        Of cell types.
    batches
        Of batches, whatever their cells are.
    batches_within_types
        Of batches among the cells of one type; NaN for cells of a type that one batch alone has, or
        that has one cell in each batch.
    """

    types: Floats
    batches: Floats
    batches_within_types: Floats

    @classmethod
    def of(cls, Z: Floats, cell_type: Labels, batch: Labels) -> Silhouettes:
        """Compute all three from one pass over the distances: sums by type and batch hold them all."""
        n_types, n_batches = cell_type.batches.size, batch.batches.size
        pair = cell_type.codes.astype(np.int64) * n_batches + batch.codes
        found = np.unique(pair)
        sums, size, _ = _distance_sums(Z, pair)
        types, batches = np.divmod(found, n_batches)
        within = np.full(len(Z), np.nan)
        for t in range(n_types):
            cells, columns = cell_type.codes == t, types == t
            if 1 < columns.sum() < cells.sum():
                own = np.searchsorted(found[columns], pair[cells])
                within[cells] = _widths(sums[np.ix_(cells, columns)], size[columns], own)
        return cls(
            _widths(*_merged(sums, size, types, n_types), cell_type.codes),
            _widths(*_merged(sums, size, batches, n_batches), batch.codes),
            within,
        )


def _distance_sums(Z: Floats, codes: Ints) -> tuple[Floats, Ints, Ints]:
    """Sums of each cell's distances to each group, the groups' sizes, and each cell's group."""
    _, own, size = np.unique(codes, return_inverse=True, return_counts=True)
    order = np.argsort(own, kind="stable")
    first = np.cumsum(size) - size
    sums = np.empty((len(Z), size.size))
    # Groups side by side, so that each sum runs along memory; about the mean, since distances of
    # cells far from the origin would lose digits.
    sums[order] = np.concatenate(
        list(
            pairwise_distances_chunked(
                (Z - Z.mean(0))[order],
                reduce_func=lambda D, start: np.add.reduceat(D, first, axis=1),
                working_memory=_CHUNK,
            )
        )
    )
    return sums, size, own


def _merged(sums: Floats, size: Ints, into: Ints, n: int) -> tuple[Floats, Ints]:
    """Sums and sizes of ``n`` larger groups, ``into`` which the groups go."""
    member = into[:, None] == np.arange(n)
    return sums @ member, size @ member


def _widths(sums: Floats, size: Ints, own: Ints) -> Floats:
    """Silhouette widths from sums of distances (cells x groups)."""
    cells = np.arange(len(sums))
    a = sums[cells, own] / np.maximum(size[own] - 1, 1)
    means = sums / size
    means[cells, own] = np.inf
    b = means.min(1)
    larger = np.maximum(a, b)
    defined = (size[own] > 1) & (larger > 0) & np.isfinite(b)
    s: Floats = np.divide(b - a, larger, out=np.zeros_like(a), where=defined)
    return s
