r"""Populations of different batches matched: which belong together, and where each should go.

Harmony's alternation (Korsunsky et al. 2019) on populations instead of cells: weighted points
:math:`x_p` with :math:`n_p` cells, soft groups with a penalty on groups that hold few batches, and in
every group a ridge regression on the batch. A second opinion, of mutual neighbours, is asked of
:mod:`scbatchprox.meeting`. Nothing here depends on the number of cells.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ._distances import squared_distances
from ._nearest import kmeans
from ._threads import parallel_map
from ._types import Floats, Ints
from .meeting import capped, meet

__all__ = ["match", "reach", "rivalry"]

#: Width of a group in cosine distance, and weight of the penalty on groups that lack batches.
SIGMA, THETA = 0.1, 2.0
#: Cells per group; groups at most; populations per group at least, unless there are only a few groups.
PER_GROUP, GROUPS, PARTNERS, FEW_GROUPS = 30, 100, 3, 20
#: Groupings that are averaged over; each has its own seed.
GROUPINGS = 5
#: Alternations of grouping and moving, of groups and their centres, and of the k-means they start from.
ROUNDS, INNER, SEEDING = 5, 4, 8
#: Noise of the field by which mutual neighbours meet, in units of the ridge.
NOISE = 0.1
#: Populations count as at least this far apart, in units of how far they usually are.
LEAST = 1e-3
#: Populations from which on groupings are made at the same time.
MANY = 600
#: Distances that are held at once.
TABLE = 2**22


def match(
    X: Floats,
    n: Ints,
    batch: Ints,
    still: np.ndarray | None = None,
    *,
    ridge: float = 0.2,
    seed: int = 0,
    width: float = np.inf,
) -> Floats:
    r"""(P, d) the way of populations at ``X`` (P, d), sorted by ``batch``, to their partners elsewhere.

    A population in groups :math:`g` with responsibilities :math:`R_{pg}` moves by
    :math:`\sum_g R_{pg}\, \kappa_{bg} (c_g - m_{bg})`: from its batch's mean in the group to the group's
    centre, as far as there is evidence (:math:`\kappa`) that the batch has cells there at all.

    Parameters
    ----------
    n
        (P,) cells of each.
    still
        (B,) batches that do not move, and that the others go to.
    ridge
        On a batch's offset in a group, in units of the cells that would be due from it; 0 goes all the
        way.
    seed
        Of the groupings.
    width
        Variance of the cells about their populations, over all coordinates: what is many times further
        than cells of one population are from each other is no neighbour.
    """
    batch, weight = np.asarray(batch), n.astype(np.float64)[:, None]
    if batch[-1] == 0:
        return np.zeros_like(X)
    X = X - (weight * X).sum(0) / weight.sum()  # directions are seen from amid the cells
    seeds = range(seed, seed + GROUPINGS)
    # Small groupings are mostly Python, of which only one can run at a time.
    every = parallel_map if len(X) >= MANY else map
    ways = list(every(lambda one: _grouping(X, weight, batch, still, ridge, one), seeds))
    grouped = np.mean(ways, axis=0)
    # Groups and mutual neighbours err in different ways: the average of both errs least.
    start = np.searchsorted(batch, np.arange(int(batch[-1]) + 2))
    fixed = np.zeros(start.size - 1, bool) if still is None else still
    at = start[:-1]
    common = np.add.reduceat(weight * grouped, at) / np.add.reduceat(weight, at)
    met = meet(X, n, start, common, fixed, NOISE * ridge, width)
    return np.asarray((grouped + met) / 2.0)


def _grouping(
    X: Floats, weight: Floats, batch: Ints, still: np.ndarray | None, ridge: float, seed: int
) -> Floats:
    """One alternation of soft groups that hold all batches, and moves towards their centres."""
    B, P = int(batch[-1]) + 1, len(X)
    start = np.searchsorted(batch, np.arange(B))
    share = np.add.reduceat(weight, start) / weight.sum()
    fixed = np.zeros(B, bool) if still is None else still
    # Batches of one population each have nothing that could tell groups apart: all belong together.
    most = 1 if P == B else min(GROUPS, max(min(P, FEW_GROUPS), P // PARTNERS))
    G = int(np.clip(round(weight.sum() / PER_GROUP), 1, most))
    rng = np.random.default_rng(seed)
    U = _unit(X)
    Y = _unit(kmeans(U.astype(np.float32), weight[:, 0], G, SEEDING, rng).astype(np.float64))
    R: Floats | None = None
    move = np.zeros_like(X)
    for _ in range(ROUNDS):
        U = _unit(X + move)
        for _ in range(INNER):
            near = (2.0 / SIGMA) * (U @ Y.T - 1.0)
            R = _softmax(near) if R is None else R
            held = weight * R
            found, due = np.add.reduceat(held, start), share * held.sum(0)
            scarce = THETA * np.log((due + 1.0) / (found + 1.0))
            R = 0.5 * R + 0.5 * _softmax(near + scarce[batch])
            Y = _unit((weight * R).T @ U)
        assert R is not None  # there is at least one round
        move = _ridge_moves(X, weight * R, R, start, share, fixed, ridge)
    return move


def _ridge_moves(
    X: Floats,
    held: Floats,
    R: Floats,
    start: Ints,
    share: Floats,
    fixed: np.ndarray,
    ridge: float,
) -> Floats:
    r"""The way of each population. In group g batch b has an offset :math:`e_b` from the centre c.

    .. math:: \min_{c, e} \sum_b F_b \lVert m_b - c - e_b \rVert^2 + \rho_b \lVert e_b \rVert^2

    with F the cells of batch b in the group and :math:`\rho` = ``ridge`` times those due from it. So
    :math:`e_b = \kappa_b (m_b - c)`, :math:`\kappa_b = F_b / (F_b + \rho_b)`, and c is the mean of the
    :math:`m_b` weighted by :math:`\kappa_b` and the batch's share of all cells.
    """
    edges = [*start.tolist(), len(X)]
    parts = [slice(lo, hi) for lo, hi in pairwise(edges)]
    found = np.add.reduceat(held, start)
    keep = found / np.maximum(found + ridge * share * found.sum(0), 1e-12)
    mean = np.stack([held[part].T @ X[part] for part in parts])
    mean /= np.maximum(found, 1e-9)[..., None]
    pull = keep * share
    if fixed.any():
        pull[~fixed] = 0.0
    center = np.einsum("bg,bgd->gd", pull, mean) / np.maximum(pull.sum(0), 1e-12)[:, None]
    offset = keep[..., None] * (center - mean)
    if fixed.any():
        # A group that those who stay have no cells in is no place to go to.
        there, due = found[fixed].sum(0), share[fixed].sum() * found.sum(0)
        known = (1.0 + ridge) * there / np.maximum(there + ridge * due, 1e-12)
        offset *= np.minimum(known, 1.0)[:, None]
    offset[fixed] = 0.0
    return np.concatenate([R[part] @ offset[b] for b, part in enumerate(parts)])


def reach(X: Floats, batch: Ints, width: float = np.inf) -> Floats:
    """(P,) distance to the nearest population of another batch, over how far apart populations are there.

    Infinite if there is no other batch. Populations count as no further apart than their ``width``, the
    variance of cells about them, allows: coarse ones, one a type, are not alike because types are far
    apart.
    """
    own, other = np.full((2, len(X)), np.inf)
    at = np.zeros(len(X), np.int64)
    X = X - np.median(X, axis=0)  # seen from amid them, squares do not cancel
    block = max(1, TABLE // len(X))
    for lo in range(0, len(X), block):
        hi = min(len(X), lo + block)
        D = squared_distances(X[lo:hi], X)
        same = batch[lo:hi, None] == batch
        np.fill_diagonal(D[:, lo:hi], np.inf)
        own[lo:hi] = np.where(same, D, np.inf).min(1)
        D[same] = np.inf
        at[lo:hi] = D.argmin(1)
        other[lo:hi] = D.min(1)
    own, other = np.sqrt(own), np.sqrt(other)
    # A batch of one population has no spacing: that of the other side must do. If neither has one, nothing
    # tells populations from batches, and all are partners.
    here, there = np.where(np.isinf(own), own[at], own), np.where(np.isinf(own[at]), own, own[at])
    spacing = np.sqrt(here) * np.sqrt(there)
    usual = np.median(spacing[np.isfinite(spacing)]) if np.isfinite(spacing).any() else 0.0
    spacing = np.sqrt(capped(spacing**2, width))
    spacing = np.maximum(spacing, LEAST * usual)  # populations may coincide
    ratio = np.where(other > 0, np.inf, 0.0)
    np.divide(other, spacing, out=ratio, where=(spacing > 0) & np.isfinite(other))
    return ratio


def rivalry(X: Floats, batch: Ints, first: int = 0) -> Floats:
    """How much closer to a population's nearest one elsewhere another of its own batch is.

    The distance to the nearest population q of another batch over the distance of q to the nearest of
    the own batch; the least over the other batches. 1 if they are nearest to each other, large if what
    looks like a partner has partners of its own. Infinite if there is no other batch. Only for the
    populations of batch ``first`` and later ones.
    """
    X = X - np.median(X, axis=0)
    edges = np.searchsorted(batch, np.arange(int(batch[-1]) + 2)).tolist()
    parts = [slice(lo, hi) for lo, hi in pairwise(edges)]
    ratio = np.full(len(X), np.inf)
    for own in parts[first:]:
        for other in parts:
            if other == own:
                continue
            D = np.sqrt(squared_distances(X[own], X[other]))
            near, back = D.min(1), D.min(0)[D.argmin(1)]
            floor = LEAST * max(float(np.median(near)), 1e-300)
            ratio[own] = np.minimum(ratio[own], near / np.maximum(back, floor))
    return ratio[edges[first] :]


def _unit(X: Floats) -> Floats:
    return np.asarray(X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12))


def _softmax(L: Floats) -> Floats:
    R = np.exp(L - L.max(1, keepdims=True))
    return np.asarray(R / R.sum(1, keepdims=True))
