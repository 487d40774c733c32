"""Populations of each batch: found by k-means on a sample of its cells, or given by labels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.checks import overflow_error
from ...core.labels import Labels, among
from ...core.moments import Anchors, Moments, chan
from ...core.sampling import Sample
from ...kernels.arrays import Floats, Ints
from ...kernels.kmeans import kmeans
from ...kernels.products import squared_distances
from ...kernels.threads import one_numpy_thread, parallel_map
from .settings import PopulationSettings

__all__ = ["anchors_for", "dissolved", "gathered", "given", "looked_at"]

#: Fewest populations of a batch with as many cells.
FEWEST = 2
#: Rounds of k-means.
KMEANS_ROUNDS = 8
#: Cells whose median is the origin for the distances in a batch.
MEDIAN_CELLS = 100
#: Squared distance of a cell from there, at most: k-means computes distances in float32.
LARGEST = 1e37
DEFAULTS = PopulationSettings()


def n_populations(n_cells: Any, settings: PopulationSettings) -> Any:
    """Number of populations for a batch of ``n_cells`` cells."""
    n, half = np.asarray(n_cells), max(settings.cells // 2, 1)
    wanted = np.maximum(n // settings.cells, np.minimum(n // half, settings.most // 3))
    return np.minimum(np.clip(wanted, FEWEST, max(settings.most, FEWEST)), n)


def looked_at(n_cells: Ints, settings: PopulationSettings = DEFAULTS) -> Ints:
    """(B,) number of cells to sample, to find the populations of batches of ``n_cells`` (B,) cells."""
    wanted = settings.sample * n_populations(n_cells, settings)
    return np.asarray(np.minimum(n_cells, wanted), np.int64)


def anchors_for(
    labels: Labels,
    sample: Callable[[Ints, int], Sample],
    seed: int = 0,
    known: Anchors | None = None,
    settings: PopulationSettings = DEFAULTS,
) -> Anchors:
    """Anchors for the batches of ``labels``: known ones, and new ones for the other batches.

    ``sample(most, seed)`` draws up to ``most`` (B,) cells of each batch.
    """
    old = set() if known is None else set(known.batches.tolist())
    new = ~among(labels.batches, old)
    wanted = looked_at(labels.n, settings)
    if known is None or new.all():
        return find_anchors(sample(wanted, seed), labels.n, seed, settings)
    kept = known.select(labels.batches[~new].tolist())
    if not new.any():
        return kept
    drawn = sample(np.where(new, wanted, 0), seed)
    return kept.joined(find_anchors(drawn, labels.n, seed, settings))


def find_anchors(
    sample: Sample, n_cells: Ints, seed: int = 0, settings: PopulationSettings = DEFAULTS
) -> Anchors:
    """Anchors of every batch with cells in a sample; ``n_cells`` (B,) is the size of each batch.

    Every batch is clustered separately and with the same seed, so that its anchors do not depend on the
    other batches.
    """
    k = n_populations(n_cells, settings)
    held = np.flatnonzero(sample.n > 0)

    def centers(b: int) -> Floats:
        cells = sample.of_batch(b).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # of this thread
            origin = np.median(cells[:MEDIAN_CELLS], axis=0)
            cells -= origin
            if not np.einsum("ij,ij->i", cells, cells).max() < LARGEST:
                raise overflow_error()
        X = _sorted_by_distance(cells).astype(np.float32)
        rng = np.random.default_rng(seed)
        C = kmeans(X, np.ones(len(X)), int(k[b]), KMEANS_ROUNDS, rng)
        return np.asarray(origin + C.astype(np.float64))

    with one_numpy_thread():
        found = parallel_map(centers, held.tolist())
    batch = np.repeat(np.arange(len(found)), [len(C) for C in found])
    return Anchors(sample.labels.batches[held], batch, np.concatenate(found))


def _sorted_by_distance(X: np.ndarray) -> np.ndarray:
    """Rows sorted by their distance from the mean.

    k-means draws its first centres by position in a list. This order does not depend on the order of cells,
    nor on a shift or a turn of all cells.
    """
    about = X - X.mean(0)
    return X[np.argsort(np.einsum("ij,ij->i", about, about), kind="stable")]


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


def dissolved(moments: Moments, min_cells: int) -> Moments:
    """Moments of populations with at least ``min_cells`` cells each: sums of fewer would reveal them.

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
