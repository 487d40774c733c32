"""Samples of the cells of each batch that do not depend on the order of the cells.

Every row has a hash of its content, and the rows with the smallest hashes are drawn. Copies of a row have
the same hash. From the second copy on, a new hash is made from it and the number of the copy, so that copies
are drawn as often as other cells. Which of several equal rows is drawn does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..errors import NotFinite
from ..kernels.arrays import Ints
from ..kernels.blocks import native, native_blocks, output_dtype, split
from ..kernels.hashes import GOLDEN, Hasher, mixed
from ..kernels.runs import sorted_rows
from ..kernels.threads import parallel_map
from .checks import nonfinite_error
from .labels import Labels

__all__ = ["Draw", "Drawing", "Sample", "drawn_rows", "hashes_of"]

#: Rows hashed at once, which stay in the cache.
BLOCK_ROWS = 1 << 13
#: Rows that a thread takes at a time.
PART_ROWS = 1 << 15
#: Chunks after which the rows that can no longer be drawn are dropped.
PARTS = 8


@dataclass(frozen=True, eq=False)
class Sample:
    """Cells that were drawn, sorted by batch, and by hash within each.

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
        lo, hi = np.searchsorted(self.labels.codes, (b, b + 1))
        return native(self.Z[self.rows[lo:hi]])

    @classmethod
    def of(cls, Z: Any, rows: Ints, hashes: np.ndarray, labels: Labels) -> Sample:
        """A sample of some rows of ``Z``, with the hash and the batch of each."""
        order, start = sorted_rows(labels.codes, labels.batches.size)
        for lo, hi in zip(start[:-1].tolist(), start[1:].tolist(), strict=True):
            own = order[lo:hi]
            own[:] = own[np.argsort(hashes[own], kind="stable")]
        return cls(Z, rows[order], labels.at(order))

    @classmethod
    def drawn(cls, Z: Any, labels: Labels, most: Ints, seed: int = 0) -> Sample:
        """Up to ``most`` (B,) cells of each batch of a matrix in memory."""
        hashes = hashes_of(Z, seed)
        rows = drawn_rows(hashes, labels, most)
        return cls.of(Z, rows, hashes[rows], labels.at(rows))


@dataclass(frozen=True, eq=False)
class Draw:
    """What one pass over cells keeps for a sample: the hash of every row, and the candidates.

    Attributes
    ----------
    hashes
        (n,) of every row, 8 bytes each.
    rows, codes, cells
        Row number, batch and values of each candidate.
    """

    hashes: np.ndarray
    rows: Ints
    codes: np.ndarray
    cells: np.ndarray

    @classmethod
    def of(cls, block: Any, codes: np.ndarray, most: Ints, seed: int = 0) -> Draw:
        """Draw from some cells, which must be finite."""
        dense = native(block)
        return cls(hashes_of(dense, seed), np.arange(codes.size), codes, dense)._pruned(most)

    @classmethod
    def joined(cls, parts: list[Draw], most: Ints) -> Draw:
        """Draw from consecutive parts of the cells."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0] + [part.hashes.size for part in parts[:-1]]).tolist()
        rows = [part.rows + first for part, first in zip(parts, starts, strict=True)]
        hashes, codes, cells = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("hashes", "codes", "cells")
        )
        return cls(hashes, np.concatenate(rows), codes, cells)._pruned(most)

    def sample(self, labels: Labels, most: Ints, take: Callable[[Ints], Any]) -> Sample:
        """The sample. ``take`` reads sorted rows; it is called if copies are drawn that were not kept."""
        rows = drawn_rows(self.hashes, labels, most)
        hashes, drawn = self.hashes[rows], labels.at(rows)
        at = np.minimum(np.searchsorted(self.rows, rows), self.rows.size - 1)
        if np.array_equal(self.rows[at], rows):
            return Sample.of(self.cells, at, hashes, drawn)
        return Sample.of(take(rows), np.arange(rows.size), hashes, drawn)

    def _pruned(self, most: Ints) -> Draw:
        """Keep the ``most`` rows of each batch with the smallest hashes."""
        hashes = self.hashes[self.rows]
        order, start = sorted_rows(self.codes, most.size)
        keep = np.ones(self.rows.size, bool)
        for b in np.flatnonzero(np.diff(start) > most).tolist():
            own = order[start[b] : start[b + 1]]
            keep[own[np.argsort(hashes[own], kind="stable")[most[b] :]]] = False
        # Always a copy: the caller may read the next block into the same memory.
        return Draw(self.hashes, self.rows[keep], self.codes[keep], self.cells[keep])


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
    """(n,) hashes of all rows of a matrix in memory, whose values must be finite."""
    hashes = np.empty(Z.shape[0], np.uint64)

    def part(rows: tuple[int, int]) -> bool:
        finite = True
        hasher = Hasher(Z.shape[1], output_dtype(Z), BLOCK_ROWS, seed)
        for lo, hi, piece in native_blocks(Z, *rows):
            for first in range(lo, hi, BLOCK_ROWS):
                last = min(hi, first + BLOCK_ROWS)
                block = piece[first - lo : last - lo]
                finite &= bool(np.isfinite(block).all())
                hashes[first:last] = hasher(block)
        return finite

    if not all(parallel_map(part, split(hashes.size, -(-hashes.size // PART_ROWS)))):
        raise nonfinite_error(Z)
    return hashes


def drawn_rows(hashes: np.ndarray, labels: Labels, most: Ints) -> Ints:
    """Sorted numbers of the rows that are drawn: up to ``most`` (B,) of each batch."""
    n = labels.n
    if (n <= most).all():
        return np.arange(hashes.size)
    order, start = sorted_rows(labels.codes, n.size)

    def smallest(b: int) -> Ints:
        own = order[start[b] : start[b + 1]]
        return own if own.size <= most[b] else own[_smallest(hashes[own], int(most[b]))]

    found = parallel_map(smallest, np.flatnonzero(np.minimum(n, most)).tolist())
    return np.sort(np.concatenate(found))


def _smallest(hashes: np.ndarray, m: int) -> Ints:
    """Positions of the ``m`` smallest hashes, after copies have got new ones."""
    if not pd.Series(hashes).duplicated().any():
        return np.flatnonzero(hashes <= np.partition(hashes, m - 1)[m - 1])
    order = np.argsort(hashes, kind="stable")
    ascending = hashes[order]
    at = np.arange(ascending.size)
    first = np.concatenate([[True], ascending[1:] != ascending[:-1]])
    copy = (at - np.maximum.accumulate(np.where(first, at, 0))).astype(np.uint64)
    distinct = np.where(first, ascending, mixed(ascending + copy * GOLDEN))
    return order[np.argsort(distinct, kind="stable")[:m]]
