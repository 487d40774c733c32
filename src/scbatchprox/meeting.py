r"""Populations that are each other's nearest across batches, and a smooth field that lets them meet.

A second opinion next to the groups of :mod:`scbatchprox.matching`, with other faults: groups are wide, and
may put unlike populations together to have all batches in each; mutual neighbours are close or they
are not. With :math:`D_{ij}` the squared distance of populations i and j of two batches in units of the
usual squared spacing :math:`h^2` within batches,

.. math::
    W_{ij} = \sqrt{n_i n_j}\; p_{ij}\, p_{ji}\, (1 + D_{ij})^{-4}, \qquad
    p_{ij} \propto e^{-D_{ij} / 0.2} \text{ over the populations j of one batch.}

Every batch moves as a whole at first; then all populations go to meet their neighbours at once, i going
the part :math:`n_j / (n_i + n_j)` of the way to j, as far as a Gaussian process over the populations of
its batch follows.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from ._distances import squared_distances
from ._kernels import compiled
from ._nearest import half_distances
from ._threads import parallel_map
from ._types import Floats, Ints

__all__ = ["capped", "meet", "spacing"]

#: Temperature of being nearest, in units of the squared spacing.
SOFT = 0.2
#: Pairs whose product of exponentials in p is below ``exp(FAINT)`` are left out.
FAINT = np.float32(-12.0)
#: The squared spacing counts as at most so many times the variance within populations, and as at least
#: this part of itself: populations may be points.
WIDE, TIGHT = 1.5, 1.0 / 16.0
#: Noise at least, for the sake of solving.
JITTER = 1e-9
#: Rounds of looking for neighbours and going to meet them.
ROUNDS = 5


def meet(
    X: Floats,
    n: Ints,
    start: Ints,
    ways: Floats,
    still: np.ndarray,
    noise: float,
    width: float = np.inf,
) -> Floats:
    r"""(P, d) the way of populations at ``X`` to their mutual neighbours; without any, that of the batch.

    Parameters
    ----------
    n
        (P,) cells of each.
    start
        (B + 1,) the populations of batch b are ``start[b]`` to ``start[b + 1]``.
    ways
        (B, d) where batches as a whole go: about which the field varies.
    still
        (B,) batches that do not move.
    noise
        Of the Gaussian process, in units of the weight of a population that has its like, at its very
        place, in one other batch.
    width
        Variance of cells about their populations, over all coordinates.
    """
    parts = [slice(lo, hi) for lo, hi in pairwise(start.tolist())]
    sizes = np.diff(start)
    begin = X + np.repeat(ways, sizes, axis=0)
    unit = float(capped(spacing(X, n, parts), width))
    field = np.zeros_like(X)
    if unit <= 0.0:
        return np.repeat(ways, sizes, axis=0)
    moving = np.flatnonzero(~still).tolist()
    kernels = {b: _kernel(X[parts[b]], unit) for b in moving}
    cells, usual = n.astype(np.float64), n.mean()
    for _ in range(ROUNDS):
        look = partial(neighbours, begin + field, np.sqrt(unit), cells, start, still)
        found = parallel_map(look, moving)
        for b, (weight, pull) in zip(moving, found, strict=True):
            goal = field[parts[b]] + pull
            field[parts[b]] = _follow(kernels[b], weight / usual, goal, max(noise, JITTER))
    return np.asarray(np.repeat(ways, sizes, axis=0) + field)


def capped(square: Floats | float, width: float) -> Floats:
    """Squared spacings, no larger than the ``width`` of populations allows.

    Coarse populations, one a type, are far apart without being alike at such distances.
    """
    return np.minimum(square, np.maximum(WIDE * width, TIGHT * np.asarray(square)))


def spacing(X: Floats, n: Ints, parts: list[slice]) -> float:
    """Mean squared distance of a population to the nearest of its own batch; 0 if there is no such pair."""
    total = cells = 0.0
    for part in parts:
        if part.stop - part.start > 1:
            D = _squares(X[part])
            np.fill_diagonal(D, np.inf)
            total += float(D.min(1) @ n[part])
            cells += float(n[part].sum())
    return total / cells if cells else 0.0


def _kernel(X: Floats, unit: float) -> Floats:
    """Covariance of the field over the populations of a batch: of a shift, and of a smooth part."""
    return np.asarray(1.0 + np.exp(-_squares(X) / (2.0 * unit)))


def _follow(K: Floats, weight: Floats, goal: Floats, noise: float) -> Floats:
    r"""Mean of a Gaussian process that was seen at ``goal`` with precisions ``weight`` / noise.

    :math:`K (W K + \sigma I)^{-1} W y`, which asks nothing of populations without any weight.
    """
    W = weight[:, None]
    return np.asarray(K @ np.linalg.solve(W * K + noise * np.eye(len(K)), W * goal))


def _squares(X: Floats) -> Floats:
    """Squared distances between rows, wherever they lie."""
    X = X - X.mean(0)
    return squared_distances(X, X)


@compiled
def neighbours(
    Y: np.ndarray, unit: float, cells: np.ndarray, start: np.ndarray, still: np.ndarray, b: int
) -> tuple[np.ndarray, np.ndarray]:
    """Weight of the neighbours of each population of batch b, and its way to meet them.

    ``unit`` is the spacing, ``cells`` how many each population has. Distances are taken in single
    precision about a point amid the batch: what is near is seen sharply, wherever it is.
    """
    d = Y.shape[1]
    lo, hi = start[b], start[b + 1]
    K = hi - lo
    origin = np.zeros(d)
    for i in range(lo, hi):
        for k in range(d):
            origin[k] += Y[i, k] / K
    own = _seen(Y, lo, hi, origin, unit)
    weight, pull = np.zeros(K), np.zeros((K, d))
    for c in range(start.shape[0] - 1):
        if c == b:
            continue
        first, m = start[c], start[c + 1] - start[c]
        other = _seen(Y, first, first + m, origin, unit)
        half = np.zeros(m, np.float32)
        for j in range(m):
            for k in range(d):
                half[j] += np.float32(0.5) * other[j, k] * other[j, k]
        D = np.empty((K, m), np.float32)
        half_distances(own, np.ascontiguousarray(other.T), half, D)
        for i in range(K):
            square = np.float32(0.0)
            for k in range(d):
                square += own[i, k] * own[i, k]
            for j in range(m):
                D[i, j] = max(np.float32(2.0) * D[i, j] + square, np.float32(0.0))
        _weigh(D, weight, pull, cells, Y, lo, first, still[c])
    for i in range(K):
        if weight[i] > 0.0:
            for k in range(d):
                pull[i, k] /= weight[i]
    return weight, pull


@compiled
def _seen(Y: np.ndarray, lo: int, hi: int, origin: np.ndarray, unit: float) -> np.ndarray:
    """Some rows as seen from a point, in units of the spacing."""
    X = np.empty((hi - lo, Y.shape[1]), np.float32)
    for i in range(lo, hi):
        for k in range(Y.shape[1]):
            X[i - lo, k] = (Y[i, k] - origin[k]) / unit
    return X


@compiled
def _weigh(
    D: np.ndarray,
    weight: np.ndarray,
    pull: np.ndarray,
    cells: np.ndarray,
    Y: np.ndarray,
    lo: int,
    first: int,
    stays: bool,
) -> None:
    """Add the neighbours in one other batch, which may stay where it is, at squared distances ``D``."""
    K, m = D.shape
    soft = np.float32(1.0 / SOFT)
    nearest, back = np.empty(K, np.float32), np.empty(m, np.float32)
    total, total_back = np.zeros(K), np.zeros(m)
    back[:] = np.inf
    for i in range(K):
        nearest[i] = D[i].min()
        for j in range(m):
            back[j] = min(back[j], D[i, j])
    for i in range(K):
        for j in range(m):
            there, here = (nearest[i] - D[i, j]) * soft, (back[j] - D[i, j]) * soft
            if there >= FAINT:
                total[i] += np.exp(there)
            if here >= FAINT:
                total_back[j] += np.exp(here)
    for i in range(K):
        for j in range(m):
            power = (nearest[i] + back[j] - D[i, j] - D[i, j]) * soft
            if power >= FAINT:
                close = 1.0 / (1.0 + np.float64(D[i, j]))
                mine, theirs = cells[lo + i], cells[first + j]
                w = np.sqrt(mine * theirs) * np.exp(power) * close**4
                w /= total[i] * total_back[j]
                weight[i] += w
                part = 1.0 if stays else theirs / (mine + theirs)
                for k in range(Y.shape[1]):
                    pull[i, k] += w * part * (Y[first + j, k] - Y[lo + i, k])
