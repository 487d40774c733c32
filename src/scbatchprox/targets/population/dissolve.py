"""Populations with few cells are dissolved: sums of few cells would reveal them to other sites."""

from __future__ import annotations

import numpy as np

from ...core.moments import Moments, chan
from ...kernels.arrays import Floats, Ints
from ...kernels.products import squared_distances

__all__ = ["dissolved"]


def dissolved(moments: Moments, min_cells: int) -> Moments:
    """Moments of populations with at least ``min_cells`` cells each.

    The smallest population of a batch is merged into the one of the same batch with the nearest mean, until
    none is too small. A batch with too few cells for that is one population. The moments are exactly those of
    the cells of both. The anchor is that of the larger population.
    """
    if moments.anchors is None or moments.n.min(initial=min_cells) >= min_cells:
        return moments
    parts = [
        _dissolved(moments.n[own], moments.mean[own], moments.m2[own], min_cells)
        for own in (moments.own(b) for b in range(moments.batches.size))
    ]
    kept, n, mean, m2 = (np.concatenate(column) for column in zip(*parts, strict=True))
    sizes = [len(part[0]) for part in parts]
    kept = kept + np.repeat(moments.start[:-1], sizes)
    batch = np.repeat(np.arange(len(parts)), sizes)
    return Moments(moments.batches, batch, n, mean, m2, moments.anchors[kept])


def _dissolved(
    n: Ints, mean: Floats, m2: Floats, min_cells: int
) -> tuple[Ints, Ints, Floats, Floats]:
    """One batch: which populations remain, and their moments."""
    origin = mean[0]
    n, mean, m2, kept = n.copy(), mean - origin, m2.copy(), np.arange(len(n))
    while len(n) > 1 and n.min() < min_cells:
        small = int(n.argmin())
        distance = squared_distances(mean[small : small + 1], mean)[0]
        distance[small] = np.inf
        into = int(distance.argmin())
        a, b = [into], [small]
        n[a], mean[a], m2[a] = chan(n[a], mean[a], m2[a], n[b], mean[b], m2[b])
        rest = np.arange(len(n)) != small
        n, mean, m2, kept = n[rest], mean[rest], m2[rest], kept[rest]
    return kept, n, origin + mean, m2
