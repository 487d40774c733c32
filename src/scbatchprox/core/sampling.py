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
from ..kernels.blocks import native, native_blocks, output_dtype, sorted_rows, split
from ..kernels.threads import parallel_map
from .checks import nonfinite_error
from .labels import Labels

__all__ = [
    "CONTENT_BITS",
    "GOLDEN",
    "Draw",
    "Drawing",
    "Hasher",
    "Sample",
    "drawn_rows",
    "hashes_of",
    "keys_of",
    "mixed",
    "thin_sample",
]

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
        order = np.lexsort((keys, labels.codes))
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


def hashes_of(Z: Any, seed: int = 0, dtype: Any = None) -> np.ndarray:
    """(n,) hashes of the content of all rows of a matrix in memory, whose values must be finite.

    Rows of different types, such as float32 and float64, are compared as values of ``dtype``.
    """
    return _of_rows(Z, seed, lambda hasher, rows, _: hasher(rows), dtype)


def keys_of(Z: Any, seed: int = 0) -> np.ndarray:
    """(n,) keys of all rows of a matrix in memory, whose values must be finite."""
    return _of_rows(Z, seed, Hasher.keys)


def _of_rows(
    Z: Any,
    seed: int,
    number: Callable[[Hasher, np.ndarray, np.ndarray], np.ndarray],
    dtype: Any = None,
) -> np.ndarray:
    """(n,) a number for each row, from the row and its squared norm."""
    numbers = np.empty(Z.shape[0], np.uint64)
    dtype = np.dtype(dtype or output_dtype(Z))

    def part(rows: tuple[int, int]) -> bool:
        finite = True
        hasher = Hasher(Z.shape[1], dtype, BLOCK_ROWS, seed)
        for lo, hi, piece in native_blocks(Z, *rows):
            for first in range(lo, hi, BLOCK_ROWS):
                last = min(hi, first + BLOCK_ROWS)
                block = piece[first - lo : last - lo].astype(dtype, copy=False)
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


# Hashes of rows, independent of the position of the row: of their content (exact), or first of their norm. A
# turn of the coordinates changes the content of every row but no norm, apart from rounding.

#: Increment of the splitmix64 generator.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
#: The two multipliers of splitmix64.
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
#: Half the bits of a 64-bit word.
_HALF_WORD = np.uint64(32)
#: Lower bits of a key, which depend on the content: so many that only copies have equal keys.
CONTENT_BITS = np.uint64(40)
#: Binary digits of a squared norm that count, by the bytes of a value. The rounding of a turn changes them
#: for none of 200,000 rows of float64, but for 1 of 25 to 70 of float32: with fewer digits, too many large
#: batches would have equal norms.
_KEPT_DIGITS = {4: 20, 8: 32}
#: Binary digits of a float64 after the first one.
_DIGITS = 52


def mixed(x: np.ndarray) -> np.ndarray:
    """The last step of splitmix64 (Steele, Lea & Flood 2014): one to one; each bit depends on all bits."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return np.asarray(x ^ (x >> np.uint64(31)))


class Hasher:
    """Hashes of rows of ``n_dims`` values of type float32 or float64, for up to ``max_rows`` rows at a time.

    Equal rows have equal hashes. Zeros of different sign are equal.
    """

    def __init__(self, n_dims: int, dtype: np.dtype[Any], max_rows: int, seed: int = 0) -> None:
        self._n_dims = n_dims
        # Rows fill whole 64-bit words: two float32 values make one. The buffers are reused, since
        # allocating memory takes longer than hashing.
        padded = n_dims + n_dims % 2 if dtype.itemsize == 4 else n_dims
        self._values = np.zeros((max_rows, padded), dtype)
        words = self._values.view(np.uint64).shape
        self._buffer = np.empty((2, *words), np.uint64)
        # Integer arithmetic: the numbers of a random generator may change with the version of numpy.
        self._first = mixed(np.array([seed % 2**64], np.uint64))
        steps = np.arange(1, words[1] + 1, dtype=np.uint64)
        self._factors = mixed(self._first + GOLDEN * steps) | np.uint64(1)
        self._dropped = _DIGITS - _KEPT_DIGITS[dtype.itemsize]

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """(n,) unsigned numbers."""
        values = self._values[: len(rows)]
        np.add(rows, rows.dtype.type(0), out=values[:, : self._n_dims])  # adding 0 turns -0 into 0
        words = values.view(np.uint64)
        # The low bits of numbers with few digits are zero, and products drop the high bits: mix them.
        spread, high = self._buffer[:, : len(rows)]
        np.multiply(words, _FIRST, out=spread)
        spread ^= np.right_shift(spread, _HALF_WORD, out=high)
        return mixed(self._first + np.einsum("ij,j->i", spread, self._factors))

    def squares(self, rows: np.ndarray) -> np.ndarray:
        """(n,) squared norms, in double precision: the order of coordinates changes the last digits only."""
        if rows.dtype.itemsize == 4:
            doubles = self._buffer.reshape(-1).view(np.float64)[: rows.size].reshape(rows.shape)
            doubles[:] = rows
            rows = doubles
        return np.asarray(np.einsum("ij,ij->i", rows, rows))

    def keys(self, rows: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """(n,) unsigned numbers: the upper bits depend on the squared norm, the lower on the content."""
        # Rounded, not cut: numbers such as 1 are often just below it.
        half = np.uint64(1 << (self._dropped - 1))
        digits = (squares.view(np.uint64) + half) >> np.uint64(self._dropped)
        upper = (mixed(self._first + GOLDEN * digits) >> CONTENT_BITS) << CONTENT_BITS
        return np.asarray(upper | (self(rows) >> (np.uint64(64) - CONTENT_BITS)))
