"""Samples of the cells of each batch that depend neither on the order of the cells nor on a turn of the axes.

Every row has a key, and the rows with the smallest keys are drawn. The upper bits of a key are a hash of the
rounded norm of the row, which a turn rarely changes; the lower bits are a hash of its content. Copies of a
row have the same key. From the second copy on, a new key is made from it and the number of the copy, so that
copies are drawn as often as other cells. Which of several equal rows is drawn does not matter.

Rows whose rounded norms are equal are a shell, and are drawn together. If shells have many cells, as those
of unit vectors or of cells far from the origin, this would not be a fair sample: the content decides alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ..errors import NotFinite
from ..kernels.arrays import Ints
from ..kernels.blocks import native, native_blocks, output_dtype, split
from ..kernels.hashes import CONTENT_BITS, GOLDEN, Hasher, mixed
from ..kernels.runs import sorted_rows
from ..kernels.threads import parallel_map
from .checks import nonfinite_error
from .labels import Labels

__all__ = ["Draw", "Drawing", "Sample", "drawn_rows", "hashes_of", "keys_of", "thin_sample"]

#: Rows hashed at once, which stay in the cache.
BLOCK_ROWS = 1 << 13
#: Rows that a thread takes at a time.
PART_ROWS = 1 << 15
#: Chunks after which the rows that can no longer be drawn are dropped.
PARTS = 8
#: Cells in the shell of a cell, on average, above which the content decides. Up to there, the mean of a
#: number that depends on the norm alone varies between samples at most as with half as many cells.
CROWDED = 2.0
#: First bits of a key that number the parts of the range of keys in which cells are counted.
PART_BITS = 12


@dataclass(frozen=True, eq=False)
class Sample:
    """Cells that were drawn, sorted by batch, and by key within each.

    Attributes
    ----------
    Z
        A matrix that contains them.
    rows
        (m,) their row numbers in it.
    labels
        The batch of each.
    """

    Z: Any
    rows: Ints
    labels: Labels

    @property
    def n(self) -> Ints:
        """(B,) cells drawn of each batch."""
        return self.labels.n

    @property
    def cells(self) -> Any:
        """(m, d) all cells of the sample."""
        return self.Z[self.rows]

    def of_batch(self, b: int) -> np.ndarray:
        """The cells of one batch."""
        return native(self.Z[self.rows[self._start[b] : self._start[b + 1]]])

    @cached_property
    def _start(self) -> Ints:
        """(B + 1,) the cells of batch b are ``start[b]`` to ``start[b + 1]``."""
        return np.concatenate([[0], np.cumsum(self.n)])

    @classmethod
    def of(cls, Z: Any, rows: Ints, keys: np.ndarray, labels: Labels) -> Sample:
        """A sample of some rows of ``Z``, with the key and the batch of each."""
        order, start = sorted_rows(labels.codes, labels.batches.size)
        for lo, hi in zip(start[:-1].tolist(), start[1:].tolist(), strict=True):
            own = order[lo:hi]
            own[:] = own[np.argsort(keys[own], kind="stable")]
        return cls(Z, rows[order], labels.at(order))

    @classmethod
    def drawn(cls, Z: Any, labels: Labels, most: Ints, seed: int = 0) -> Sample:
        """Up to ``most`` (B,) cells of each batch of a matrix in memory."""
        keys = keys_of(Z, seed)
        rows = drawn_rows(keys, labels, most)
        return cls.of(Z, rows, keys[rows], labels.at(rows))


@dataclass(frozen=True, eq=False)
class Draw:
    """What one pass over cells keeps for a sample: the key of every row, and the candidates.

    Attributes
    ----------
    keys
        (n,) of every row, 8 bytes each.
    rows, codes, cells
        Row number, batch and values of each candidate.
    """

    keys: np.ndarray
    rows: Ints
    codes: np.ndarray
    cells: np.ndarray

    @classmethod
    def of(cls, block: Any, codes: np.ndarray, most: Ints, seed: int = 0) -> Draw:
        """Draw from some cells, which must be finite."""
        dense = native(block)
        return cls(keys_of(dense, seed), np.arange(codes.size), codes, dense)._pruned(most)

    @classmethod
    def joined(cls, parts: list[Draw], most: Ints) -> Draw:
        """Draw from consecutive parts of the cells."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0] + [part.keys.size for part in parts[:-1]]).tolist()
        rows = [part.rows + first for part, first in zip(parts, starts, strict=True)]
        keys, codes, cells = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("keys", "codes", "cells")
        )
        return cls(keys, np.concatenate(rows), codes, cells)._pruned(most)

    def sample(self, labels: Labels, most: Ints, take: Callable[[Ints], Any]) -> Sample:
        """The sample. ``take`` reads sorted rows; it is called if rows are drawn that were not kept.

        These are copies, or cells of a batch in which the content decides.
        """
        rows = drawn_rows(self.keys, labels, most)
        keys, drawn = self.keys[rows], labels.at(rows)
        at = np.minimum(np.searchsorted(self.rows, rows), self.rows.size - 1)
        if np.array_equal(self.rows[at], rows):
            return Sample.of(self.cells, at, keys, drawn)
        return Sample.of(take(rows), np.arange(rows.size), keys, drawn)

    def _pruned(self, most: Ints) -> Draw:
        """Keep the ``most`` rows of each batch with the smallest keys."""
        keys = self.keys[self.rows]
        order, start = sorted_rows(self.codes, most.size)
        keep = np.ones(self.rows.size, bool)
        for b in np.flatnonzero(np.diff(start) > most).tolist():
            own = order[start[b] : start[b + 1]]
            keep[own[np.argsort(keys[own], kind="stable")[most[b] :]]] = False
        # Always a copy: the caller may read the next block into the same memory.
        return Draw(self.keys, self.rows[keep], self.codes[keep], self.cells[keep])


@dataclass(frozen=True)
class Drawing:
    """Draws a sample of up to ``most`` (B,) cells of each batch from consecutive chunks of rows."""

    labels: Labels
    most: Ints
    seed: int = 0
    _parts: list[Draw] = field(default_factory=list)

    def add(self, lo: int, block: Any) -> None:
        """Add the next chunk, which begins at row ``lo``."""
        codes = self.labels.codes[lo : lo + block.shape[0]]
        try:
            self._parts.append(Draw.of(block, codes, self.most, self.seed))
        except NotFinite:
            raise nonfinite_error(block, lo) from None
        if len(self._parts) == PARTS:
            self._parts[:] = [Draw.joined(self._parts, self.most)]

    def sample(self, take: Callable[[Ints], Any]) -> Sample:
        """The sample; ``take`` as for :meth:`Draw.sample`."""
        draw = Draw.joined(self._parts, self.most)
        return draw.sample(self.labels, self.most, take)


def hashes_of(Z: Any, seed: int = 0) -> np.ndarray:
    """(n,) hashes of the content of all rows of a matrix in memory, whose values must be finite."""
    return _of_rows(Z, seed, lambda hasher, rows, _: hasher(rows))


def keys_of(Z: Any, seed: int = 0) -> np.ndarray:
    """(n,) keys of all rows of a matrix in memory, whose values must be finite."""
    return _of_rows(Z, seed, Hasher.keys)


def _of_rows(
    Z: Any, seed: int, number: Callable[[Hasher, np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """(n,) a number for each row, from the row and its squared norm."""
    numbers = np.empty(Z.shape[0], np.uint64)

    def part(rows: tuple[int, int]) -> bool:
        finite = True
        hasher = Hasher(Z.shape[1], output_dtype(Z), BLOCK_ROWS, seed)
        for lo, hi, piece in native_blocks(Z, *rows):
            for first in range(lo, hi, BLOCK_ROWS):
                last = min(hi, first + BLOCK_ROWS)
                block = piece[first - lo : last - lo]
                squares = hasher.squares(block)
                # Squares of finite values may overflow.
                finite &= bool(np.isfinite(squares).all() or np.isfinite(block).all())
                numbers[first:last] = number(hasher, block, squares)
        return finite

    if not all(parallel_map(part, split(numbers.size, -(-numbers.size // PART_ROWS)))):
        raise nonfinite_error(Z)
    return numbers


def drawn_rows(keys: np.ndarray, labels: Labels, most: Ints) -> Ints:
    """Sorted numbers of the rows that are drawn: up to ``most`` (B,) of each batch."""
    n = labels.n
    if (n <= most).all():
        return np.arange(keys.size)
    order, start = sorted_rows(labels.codes, n.size)

    def smallest(b: int) -> Ints:
        own = order[start[b] : start[b + 1]]
        return own if own.size <= most[b] else own[_smallest(keys[own], int(most[b]))]

    found = parallel_map(smallest, np.flatnonzero(np.minimum(n, most)).tolist())
    return np.sort(np.concatenate(found))


def _smallest(keys: np.ndarray, m: int) -> Ints:
    """Positions of the ``m`` smallest keys, after copies have got new ones."""
    if pd.Series(keys).duplicated().any():
        keys = _without_copies(keys)
    if _shell_size(keys) > CROWDED:
        keys = (keys << (np.uint64(64) - CONTENT_BITS)) | (keys >> CONTENT_BITS)
    return np.argpartition(keys, m - 1)[:m]


def _without_copies(keys: np.ndarray) -> np.ndarray:
    """New keys from the second copy on; their upper bits depend on the norm and the number of the copy."""
    order = np.argsort(keys, kind="stable")
    ascending = keys[order]
    at = np.arange(keys.size)
    first = np.concatenate([[True], ascending[1:] != ascending[:-1]])
    step = (at - np.maximum.accumulate(np.where(first, at, 0))).astype(np.uint64) * GOLDEN
    upper, lower = mixed(_upper(ascending) + step), mixed(ascending + step)
    result = np.empty_like(keys)
    result[order] = np.where(first, ascending, _upper(upper) | (lower ^ _upper(lower)))
    return result


def _upper(keys: np.ndarray) -> np.ndarray:
    """The upper bits of keys; the lower are zero."""
    return (keys >> CONTENT_BITS) << CONTENT_BITS


def _shell_size(keys: np.ndarray) -> float:
    """The mean over cells of the number of cells in the same shell.

    It is estimated, because sorting takes longer: it is the ratio of variance and mean of the numbers of
    cells that fall into each of many parts of the range of keys, if whole shells fall at random.
    """
    part = (keys >> np.uint64(64 - PART_BITS)).astype(np.int64)
    cells = np.bincount(part, minlength=1 << PART_BITS)
    return float(cells.var() / cells.mean())


#: Coordinates that are hashed to choose candidates: one or two 64-bit words.
FIRST_DIMS = 2
#: Candidates per wanted row, and a number of further candidates per batch: rarely too few.
SPARE, MORE = 1.5, 20
#: Part of the candidates that must have distinct first coordinates.
DISTINCT = 0.95
#: Floats above this may round up to 2**64, which a 64-bit word cannot hold.
LARGEST_WORD = 2.0**64 - 2.0**12


def thin_sample(Z: Any, labels: Labels, most: Ints, seed: int = 0) -> Sample:
    """Up to ``most`` (B,) cells of each batch of a matrix in memory, which must be finite.

    The sample differs from that of :meth:`Sample.drawn` but has the same property: it depends neither on the
    order of cells nor on the names of batches. If many rows have equal first coordinates (copies, zeros,
    whole numbers), it is the sample of :meth:`Sample.drawn`.
    """
    n = labels.n
    if not isinstance(Z, np.ndarray) or not (n > SPARE * most + MORE).any():
        return Sample.drawn(Z, labels, most, seed)
    first = hashes_of(Z[:, :FIRST_DIMS], seed)
    share = np.minimum((SPARE * most + MORE * (most > 0)) / np.maximum(n, 1), 1.0)
    limit = np.minimum(share * 2.0**64, LARGEST_WORD).astype(np.uint64)
    limit[share >= 1.0] = np.iinfo(np.uint64).max  # all cells of the batch
    rows = np.flatnonzero(first <= limit[labels.codes])
    some = labels.at(rows)
    enough = (some.n >= np.minimum(n, most)).all()
    if not enough or np.unique(first[rows]).size < DISTINCT * rows.size:
        return Sample.drawn(Z, labels, most, seed)
    hashes = hashes_of(Z[rows], seed)
    order = np.lexsort((hashes, some.codes))
    start = np.concatenate([[0], np.cumsum(some.n)])
    rank = np.arange(rows.size) - start[some.codes[order]]
    drawn = rows[order[rank < most[some.codes[order]]]]
    return Sample(Z, drawn, labels.at(drawn))
