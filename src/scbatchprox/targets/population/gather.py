"""Moments of the cells of each population."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...core.anchors import Anchors
from ...core.labels import Labels
from ...core.moments import Moments

__all__ = ["gathered", "given"]


def given(labels: Labels, population: Labels, moments_of: Callable[[Labels], Moments]) -> Moments:
    """Populations from the user's labels: the cells of a batch with the same label."""
    pair = labels.codes.astype(np.int64) * population.batches.size + population.codes
    found, codes = np.unique(pair, return_inverse=True)
    rows = moments_of(Labels(codes.astype(np.int32), np.arange(found.size)))
    batch = found // population.batches.size
    return Moments(labels.batches, batch, rows.n, rows.mean, rows.m2, anchors=rows.mean)


def gathered(anchors: Anchors, groups: Moments, known: Anchors | None = None) -> Moments:
    """Populations at anchors, from the moments ``groups`` of their cells, labelled by the anchors' numbers.

    Anchors without cells are dropped, except in known batches, whose earlier cells belong to them.
    """
    R, d = anchors.center.shape
    n = np.zeros(R, np.int64)
    mean, m2 = np.zeros((2, R, d))
    n[groups.batches], mean[groups.batches], m2[groups.batches] = groups.n, groups.mean, groups.m2
    keep = n > 0
    if known is not None:
        keep |= np.isin(anchors.batches, known.batches)[anchors.batch]
    center = anchors.center[keep]
    return Moments(anchors.batches, anchors.batch[keep], n[keep], mean[keep], m2[keep], center)
