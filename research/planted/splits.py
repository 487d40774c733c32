"""Random splits of the cells of one batch into several; some remove types from a batch.

A split takes the type of each cell as a code and a random generator, and returns the batch of each cell: 0,
1, ..., or :data:`GONE` for a cell that is removed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scbatchprox.errors import BadValue
from scbatchprox.kernels.arrays import Ints

__all__ = [
    *("GONE", "Split", "disjoint", "halves", "many", "many_missing", "missing", "movable"),
    *("private", "pure", "two_shared", "unequal"),
]

#: Code of removed cells.
GONE = -1
#: Fewest cells of a type that may be removed, of one of two batches, and of one of many batches.
ENOUGH, SIDE, ONE_OF_MANY = 10, 30, 40
#: Random choices of types to remove, before a batch is found to be too small.
_TRIES = 50

Split = Callable[[Ints, np.random.Generator], Ints]


def halves(types: Ints, rng: np.random.Generator) -> Ints:
    """Return two batches of equal size."""
    return _drawn(types.size, [types.size // 2], rng)


def unequal(ratio: int) -> Split:
    """Return a split whose first batch has ``ratio`` times the cells of the second, if there are enough."""

    def split(types: Ints, rng: np.random.Generator) -> Ints:
        small = max(SIDE, round(types.size / (ratio + 1)))
        return _drawn(types.size, [types.size - small], rng)

    return split


def many(n_batches: int, least: int) -> Split:
    """Return a split into ``n_batches``, or fewer if there are few cells, but at least ``least``."""

    def split(types: Ints, rng: np.random.Generator) -> Ints:
        n = min(n_batches, types.size // ONE_OF_MANY)
        if n < least:
            raise BadValue(
                f"Expected cells for {least} batches of {ONE_OF_MANY}, found {types.size} cells."
            )
        return _drawn(types.size, [types.size * at // n for at in range(1, n)], rng)

    return split


def missing(how_many: Callable[[int], int]) -> Split:
    """Return a split into halves, with ``how_many`` types removed from the second; at least one remains."""

    def split(types: Ints, rng: np.random.Generator) -> Ints:
        batch, known = halves(types, rng), movable(types)
        return _without(batch, types, 1, known, how_many(known.size), rng)

    return split


def private(types: Ints, rng: np.random.Generator) -> Ints:
    """Return halves that each lack a different type, and share at least one type."""
    batch, known = halves(types, rng), movable(types)
    if known.size < 3:
        raise BadValue(f"Expected three types of {ENOUGH} cells, found {known.size}.")
    batch = _without(batch, types, 0, known, 1, rng)
    gone = np.setdiff1d(types[batch == GONE], types[batch == 0])
    return _without(batch, types, 1, np.setdiff1d(known, gone), 1, rng)


def many_missing(n_batches: int, least: int) -> Split:
    """Return the split of :func:`many`, with a third of the types (at least one) removed from each batch."""

    def split(types: Ints, rng: np.random.Generator) -> Ints:
        batch, known = many(n_batches, least)(types, rng), movable(types)
        for b in range(int(batch.max()) + 1):
            batch = _without(batch, types, b, known, max(1, known.size // 3), rng, left=ENOUGH)
        return batch

    return split


def disjoint(n_batches: int, n_types: int) -> Split:
    """Return batches of ``n_types`` types each that no other batch has; all other cells are removed."""

    def split(types: Ints, rng: np.random.Generator) -> Ints:
        drawn = _drawn_types(types, n_batches * n_types, SIDE, rng)
        batch = np.full(types.size, GONE)
        for b in range(n_batches):
            batch[np.isin(types, drawn[b * n_types : (b + 1) * n_types])] = b
        return batch

    return split


def pure(types: Ints, rng: np.random.Generator) -> Ints:
    """Return four random batches; of the last one only a single type is left."""
    batch = many(4, 4)(types, rng)
    kept = _drawn_types(np.where(batch == 3, types, GONE), 1, SIDE, rng)
    return np.where((batch == 3) & (types != kept), GONE, batch)


def two_shared(types: Ints, rng: np.random.Generator) -> Ints:
    """Return halves of four to six types: both have two of them, and each has others that it alone has."""
    n = min(6, max(4, int((np.bincount(types) >= 2 * SIDE).sum())))
    drawn = _drawn_types(types, n, 2 * SIDE, rng)
    batch = halves(types, rng)
    has = [np.isin(types, [*drawn[:2], *drawn[2 + b :: 2]]) for b in range(2)]
    return np.where(np.where(batch == 0, has[0], has[1]), batch, GONE)


def movable(types: Ints) -> Ints:
    """Return types with enough cells."""
    found: Ints = np.flatnonzero(np.bincount(types) >= ENOUGH)
    return found


def _drawn(n: int, cuts: list[int], rng: np.random.Generator) -> Ints:
    """Return batches: cells in random order, cut at these positions."""
    edges = np.array([0, *cuts, n])
    if np.diff(edges).min() < SIDE:
        raise BadValue(f"Expected batches of {SIDE} cells, found {n} cells for {len(cuts) + 1}.")
    batch = np.empty(n, np.int64)
    batch[rng.permutation(n)] = np.repeat(np.arange(edges.size - 1), np.diff(edges))
    return batch


def _drawn_types(types: Ints, n: int, least: int, rng: np.random.Generator) -> Ints:
    """Return ``n`` random types of at least ``least`` cells each; cells of type ``GONE`` do not count."""
    known = np.flatnonzero(np.bincount(types[types != GONE]) >= least)
    if known.size < n:
        raise BadValue(f"Expected {n} types of {least} cells, found {known.size}.")
    drawn: Ints = rng.choice(known, n, replace=False)
    return drawn


def _without(
    batch: Ints,
    types: Ints,
    side: int,
    known: Ints,
    n: int,
    rng: np.random.Generator,
    left: int = SIDE,
) -> Ints:
    """Remove ``n`` of the known types from the batch ``side``, if ``left`` cells remain."""
    if not 0 < n < known.size:
        raise BadValue(
            f"Expected more than {n} types of {ENOUGH} cells to remove {n}, found {known.size}."
        )
    for _ in range(_TRIES):
        removed = (batch == side) & np.isin(types, rng.choice(known, n, replace=False))
        if removed.any() and (batch == side).sum() - removed.sum() >= left:
            return np.where(removed, GONE, batch)
    raise BadValue(f"Expected {left} cells to be left without {n} of the types, found fewer.")
