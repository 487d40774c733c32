"""Batches made out of cells that were one: drawn at random, and some types taken from a side.

A split takes the type of each cell, as codes, and a generator, and gives the batch of each cell: 0, 1, ...,
or :data:`GONE` for a cell that is taken away.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...errors import BadValue
from ...kernels.arrays import Ints

__all__ = ["GONE", "Split", "halves", "many", "missing", "movable", "private", "unequal"]

GONE = -1
#: Cells that a type must have for its absence to be noticed, a side to be a batch, and one of many.
ENOUGH, SIDE, ONE_OF_MANY = 10, 30, 40
#: Choices of types that are tried before a side is said to be too small to lose any.
_TRIES = 50

Split = Callable[[Ints, np.random.Generator], Ints]


def halves(types: Ints, rng: np.random.Generator) -> Ints:
    """Two batches of equal size."""
    return _drawn(types.size, [types.size // 2], rng)


def unequal(ratio: int) -> Split:
    """Return a split in which the first batch has ``ratio`` times the cells of the second, if it can."""

    def split(types: Ints, rng: np.random.Generator) -> Ints:
        small = max(SIDE, round(types.size / (ratio + 1)))
        return _drawn(types.size, [types.size - small], rng)

    return split


def many(n_batches: int, least: int) -> Split:
    """Return a split into so many batches, or as many as there are cells for, but ``least``."""

    def split(types: Ints, rng: np.random.Generator) -> Ints:
        n = min(n_batches, types.size // ONE_OF_MANY)
        if n < least:
            raise BadValue(
                f"Expected cells for {least} batches of {ONE_OF_MANY}, found {types.size} cells."
            )
        return _drawn(types.size, [types.size * at // n for at in range(1, n)], rng)

    return split


def missing(how_many: Callable[[int], int]) -> Split:
    """Return halves, the second of which has lost ``how_many`` of its types; one at least is left."""

    def split(types: Ints, rng: np.random.Generator) -> Ints:
        batch, known = halves(types, rng), movable(types)
        return _without(batch, types, 1, known, how_many(known.size), rng)

    return split


def private(types: Ints, rng: np.random.Generator) -> Ints:
    """Halves that have lost a type each, another one, and share a third at least."""
    batch, known = halves(types, rng), movable(types)
    if known.size < 3:
        raise BadValue(f"Expected three types of {ENOUGH} cells, found {known.size}.")
    batch = _without(batch, types, 0, known, 1, rng)
    gone = np.setdiff1d(types[batch == GONE], types[batch == 0])
    return _without(batch, types, 1, np.setdiff1d(known, gone), 1, rng)


def movable(types: Ints) -> Ints:
    """Types with enough cells."""
    found: Ints = np.flatnonzero(np.bincount(types) >= ENOUGH)
    return found


def _drawn(n: int, cuts: list[int], rng: np.random.Generator) -> Ints:
    """Batches of cells in random order, cut at these places."""
    edges = np.array([0, *cuts, n])
    if np.diff(edges).min() < SIDE:
        raise BadValue(f"Expected batches of {SIDE} cells, found {n} cells for {len(cuts) + 1}.")
    batch = np.empty(n, np.int64)
    batch[rng.permutation(n)] = np.repeat(np.arange(edges.size - 1), np.diff(edges))
    return batch


def _without(
    batch: Ints, types: Ints, side: int, known: Ints, n: int, rng: np.random.Generator
) -> Ints:
    """Take ``n`` of the known types from one side, such that it remains a batch."""
    if not 0 < n < known.size:
        raise BadValue(
            f"Expected more than {n} types of {ENOUGH} cells to take {n} away, found {known.size}."
        )
    for _ in range(_TRIES):
        lost = (batch == side) & np.isin(types, rng.choice(known, n, replace=False))
        if lost.any() and (batch == side).sum() - lost.sum() >= SIDE:
            return np.where(lost, GONE, batch)
    raise BadValue(f"Expected {SIDE} cells to be left without {n} of the types, found fewer.")
