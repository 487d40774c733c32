"""Rows that belong to batches: the common base of moments, adapters and anchors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadKey, BadValue
from ..kernels.arrays import Ints
from .checks import some_of
from .labels import Labels, among, union
from .shown import Facts, count, names

__all__ = ["OfBatches", "RowMap"]


class RowMap(NamedTuple):
    """Which batch each row belongs to."""

    batches: np.ndarray  # (B,) distinct labels, sorted
    batch: Ints  # (R,) position in ``batches`` of each row's batch, in order

    @classmethod
    def one_each(cls, batches: Any) -> RowMap:
        """One row per batch."""
        batches = np.asarray(batches)
        return cls(batches, np.arange(batches.shape[0]))


class OfBatches(Facts):
    """Anything with one or more rows per batch, in the order of the batches.

    The paper has one row per batch (``batch`` is 0, 1, 2, ...). The population target has one row per
    population.
    """

    batches: np.ndarray
    batch: Ints

    def _of_batches(self) -> str:
        rows = "" if self.one_each else f", {count(self.n_rows, 'row')}"
        found = count(self.batches.size, "batch", "batches")
        return f"{found} ({names(self.batches.tolist())}){rows}" if self.batches.size else found

    def _check_rows(self) -> None:
        """Check the map from rows to batches; subclasses call this in ``__post_init__``."""
        batches, batch = np.asarray(self.batches), np.asarray(self.batch, np.int64)
        object.__setattr__(self, "batches", batches)
        object.__setattr__(self, "batch", batch)
        if batches.ndim != 1 or not (batches[1:] > batches[:-1]).all():
            raise BadValue(f"Expected distinct batches, sorted, found {some_of(batches.tolist())}.")
        step = np.diff(batch, prepend=-1, append=batches.size)
        if batch.ndim != 1 or (step < 0).any() or (step > 1).any() or batch[:1].any():
            raise BadValue(
                f"Expected rows in the order of {batches.size} batches, with one or more for each, "
                f"found the batches {some_of(batch.tolist())}."
            )

    @cached_property
    def start(self) -> Ints:
        """(B + 1,) the rows of batch b are ``start[b]`` to ``start[b + 1]``."""
        return np.searchsorted(self.batch, np.arange(self.batches.size + 1))

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return int(self.batch.size)

    @property
    def one_each(self) -> bool:
        """Whether every batch has exactly one row."""
        return self.n_rows == int(self.batches.size)

    def _check_known(self, batch: Hashable) -> None:
        """Check that a batch is here; ``True == 1`` in Python, but a flag is not a number."""
        known = self.batches.tolist()
        if batch not in known or isinstance(batch, bool) != (self.batches.dtype.kind == "b"):
            raise BadKey(f"Expected a known batch, found {batch!r}; available: {some_of(known)}.")

    def own(self, b: int) -> slice:
        """The rows of batch b."""
        return slice(int(self.start[b]), int(self.start[b + 1]))

    def rows_of(self, batches: np.ndarray) -> Ints:
        """The row numbers of some batches, batch after batch; an unknown batch is an error."""
        codes = np.arange(batches.size, dtype=np.int32)
        at = Labels(codes, batches).within(self.batches).codes
        size = np.diff(self.start)[at]
        first = np.cumsum(size) - size
        rows: Ints = np.repeat(self.start[at] - first, size) + np.arange(size.sum())
        return rows

    def _among(self, wanted: Iterable[Any]) -> tuple[RowMap, np.ndarray]:
        """The row map of the wanted batches, and a mask (R,) of their rows."""
        chosen = among(self.batches, wanted)
        keep = chosen[self.batch]
        position = np.cumsum(chosen) - 1
        return RowMap(self.batches[chosen], position[self.batch[keep]]), keep

    def _in(self, rows: RowMap) -> Ints:
        """Positions of these rows in a row map of more batches, with as many rows for each batch."""
        first = np.searchsorted(rows.batch, np.searchsorted(rows.batches, self.batches))
        at: Ints = first[self.batch] + np.arange(self.n_rows) - self.start[self.batch]
        return at

    def _with(self, other: OfBatches) -> tuple[RowMap, Ints]:
        """The row map of both, which share no batch, and the order that sorts their concatenated rows."""
        batches = union(self.batches, other.batches)
        batch = np.concatenate([
            np.searchsorted(batches, part.batches)[part.batch] for part in (self, other)
        ])  # fmt: skip
        order = np.argsort(batch, kind="stable")
        return RowMap(batches, batch[order]), order
