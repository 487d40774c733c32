"""Batch labels as codes 0, 1, 2, ... in the sorted order of the labels, and rows that belong to batches."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from ..errors import BadKey, BadType, BadValue
from ..kernels.arrays import Ints
from .checks import is_tensor, plain, some_of, to_numpy
from .shown import PrintsFacts, count, names

__all__ = [
    "Labels",
    "OfBatches",
    "among",
    "column_labels",
    "cross_counts",
    "label_array",
    "population_labels",
    "union",
]

#: A column to keep has groups of cells: at least this many cells per value, on average.
CELLS_PER_VALUE = 10
#: Codes that are counted at a time.
COUNT_BLOCK = 1 << 18


@dataclass(frozen=True, eq=False)
class Labels:
    """One batch code per cell, and the batches that the codes refer to.

    Attributes
    ----------
    codes
        int32, one per cell: the position of its batch in ``batches``.
    batches
        Distinct labels in sorted order, so that results depend neither on the type of the container nor
        on the order of a categorical's categories.
    """

    codes: np.ndarray
    batches: np.ndarray

    @classmethod
    def of(cls, batch: Any, n_cells: int, what: str = "batch label") -> Labels:
        """Encode labels of any type; ``None`` means a single batch. Errors call a label ``what``."""
        if isinstance(batch, Labels):
            labels = batch
        elif batch is None:
            labels = cls(np.zeros(n_cells, np.int32), label_array(["all"]))
        else:
            labels = _encode(batch, what)
        if labels.codes.size != n_cells:
            raise BadValue(
                f"Expected one {what} per cell ({n_cells}), found {labels.codes.size} labels."
            )
        return labels

    def within(self, known: np.ndarray) -> Labels:
        """Translate the codes to positions in ``known``; an unknown batch is an error."""
        # True == 1 in Python, but the labels True and 1 are different batches.
        differ = (self.batches.dtype.kind == "b") != (known.dtype.kind == "b")
        if np.array_equal(self.batches, known) and not differ:
            return Labels(self.codes, known)
        position = {label: i for i, label in enumerate(known.tolist())}
        unseen = [label for label in self.batches.tolist() if differ or label not in position]
        if unseen:
            raise BadValue(
                f"Expected batches seen when fitting, found unseen {some_of(unseen)}; "
                f"available: {some_of(known.tolist())}."
            )
        table = np.array([position[label] for label in self.batches.tolist()], np.int32)
        return Labels(table[self.codes], known)

    def at(self, rows: Any) -> Labels:
        """The labels of some rows (an index or a slice), with the same batches."""
        return Labels(self.codes[rows], self.batches)

    def rows(self) -> list[np.ndarray]:
        """The row numbers of each batch, ascending."""
        return np.split(np.argsort(self.codes, kind="stable"), np.cumsum(self.n)[:-1])

    @property
    def n(self) -> np.ndarray:
        """Cells per batch."""
        return count_codes(self.codes, self.batches.size)


def count_codes(codes: np.ndarray, n_codes: int = 0) -> np.ndarray:
    """How often every code occurs, for ``n_codes`` codes or more.

    Counting in blocks saves memory: numpy first copies the codes to larger integers.
    """
    size = max(n_codes, int(codes.max(initial=-1)) + 1)
    counts = np.zeros(size, np.int64)
    for lo in range(0, codes.size, COUNT_BLOCK):
        counts += np.bincount(codes[lo : lo + COUNT_BLOCK], minlength=size)
    return counts


def cross_counts(rows: Labels, columns: Labels) -> np.ndarray:
    """(B, K) how many cells have each pair of labels."""
    size = rows.batches.size, columns.batches.size
    pairs = rows.codes.astype(np.int64) * size[1] + columns.codes
    return np.bincount(pairs, minlength=size[0] * size[1]).reshape(size)


def label_array(labels: list[Any], what: str = "batch label") -> np.ndarray:
    """Distinct labels as an array of str, int, bool or float; labels of other types as strings."""
    kinds = {type(label) for label in labels}
    if kinds == {int, float}:
        kinds = {float}
    if len(kinds) > 1:
        # Otherwise "1" and 1 would silently become the same batch.
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise BadType(f"Expected {_many(what)} of one type, found {names}: {some_of(labels)}.")
    kind = kinds.pop() if kinds and kinds <= {bool, int, float, str} else str
    if kind is int and any(abs(label) >= 2**63 for label in labels):
        raise BadValue(
            f"Expected whole numbers below 2**63 as {_many(what)}, found {some_of(labels)}; use text."
        )
    found = np.array([kind(label) for label in labels], dtype=kind)
    if len(set(found.tolist())) < len(labels):
        raise BadValue(
            f"Expected {_many(what)} with distinct names, found some with equal names: {some_of(labels)}."
        )
    return found


def population_labels(values: Any, n_cells: int) -> Labels | None:
    """Encode the population of each cell; ``None`` if none are given."""
    return None if values is None else Labels.of(values, n_cells, "population label")


def column_labels(columns: Mapping[str, Any], n_cells: int) -> dict[str, Labels]:
    """Encode the columns to keep.

    Raise for one that cannot be lost, since it has one value, and for one of numbers that hardly repeat: the
    variance between their values is that of single cells.
    """
    found = {}
    for name, values in columns.items():
        labels = Labels.of(values, n_cells, f"value of {str(name)!r}")
        if labels.batches.size < 2:
            raise BadValue(
                f"Expected a column with two values or more to keep, found one value in {str(name)!r}."
            )
        if n_cells < CELLS_PER_VALUE * labels.batches.size:
            raise BadValue(
                f"Expected groups of cells in the column {str(name)!r} to keep, on average at least "
                f"{CELLS_PER_VALUE} cells per value, found {labels.batches.size:,} values in {n_cells:,} "
                f"cells; pandas.cut makes groups of numbers."
            )
        found[str(name)] = labels
    return found


def among(labels: np.ndarray, wanted: Iterable[Any]) -> np.ndarray:
    """A mask of the ``labels`` that are wanted.

    It uses Python strings, since a numpy array would cut longer names to the length of its own type.
    """
    chosen = set(wanted)
    return np.array([label in chosen for label in labels.tolist()], bool)


def union(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """All labels of both, sorted."""
    if a.size == 0 or b.size == 0:
        return a if b.size == 0 else b
    if a.dtype.kind != b.dtype.kind:
        raise BadType(
            f"Expected batch labels of one type, found {a.dtype.name} ({some_of(a.tolist(), 3)}) and "
            f"{b.dtype.name} ({some_of(b.tolist(), 3)})."
        )
    return label_array(sorted(set(a.tolist()) | set(b.tolist())))


def _many(what: str) -> str:
    """The plural: batch labels, values of 'condition'."""
    one, of, whose = what.partition(" of ")
    return f"{one}s{of}{whose}"


def _encode(batch: Any, what: str) -> Labels:
    codes, found = _factorize(batch, what)
    codes = codes.astype(np.int32, copy=False)
    if codes.min(initial=0) < 0:
        missing = codes < 0
        raise BadValue(
            f"Expected a {what} for every cell, found {missing.sum()} missing of {codes.size}, "
            f"the first at row {int(np.argmax(missing))}."
        )
    # Categories without cells are not batches.
    used = np.flatnonzero(count_codes(codes))
    batches = label_array([plain_label(found[i]) for i in used], what)
    order = np.argsort(batches, kind="stable")
    table = np.full(max(len(found), 1), -1, np.int32)
    table[used[order]] = np.arange(used.size)
    if np.array_equal(table, np.arange(len(found))):
        return Labels(codes, batches[order])
    return Labels(table[codes], batches[order])


def _factorize(batch: Any, what: str) -> tuple[np.ndarray, list[Hashable]]:
    """Codes (-1 where missing) and the labels that they refer to, in any order."""
    values = (
        pd.Series(batch) if isinstance(batch, pd.Categorical) else _one_dimensional(batch, what)
    )
    if isinstance(values.dtype, pd.CategoricalDtype):
        return values.cat.codes.to_numpy(), values.cat.categories.tolist()
    codes, found = pd.factorize(values, use_na_sentinel=True)
    labels = pd.Index(found).tolist()
    for i, label in enumerate(labels):
        if label != label:  # nullable floats can hold NaN as well as missing values
            codes = np.where(codes == i, -1, codes)
    return codes, labels


def _one_dimensional(batch: Any, what: str) -> pd.Series[Any]:
    if isinstance(batch, pd.Series):
        return batch
    if is_tensor(batch):  # pandas would take each of its entries for a label of its own
        batch = to_numpy(batch)
    if isinstance(batch, str | bytes) or np.ndim(batch) == 0:
        raise BadType(f"Expected one {what} per cell, found the single value {batch!r}.")
    if isinstance(batch, np.ndarray | pd.DataFrame) and batch.ndim != 1:
        raise BadValue(
            f"Expected a one-dimensional array of {_many(what)}, found shape {batch.shape}."
        )
    return pd.Series(batch)


def plain_label(label: Any) -> Any:
    """Return a label as a Python value; HDF5 returns strings as bytes."""
    label = plain(label)
    return label.decode() if isinstance(label, bytes) else label


@dataclass(frozen=True, eq=False, repr=False)
class OfBatches(PrintsFacts):
    """Anything with one or more rows per batch, in the order of the batches.

    The paper has one row per batch (``batch`` is 0, 1, 2, ...). The population target has one row per
    population.
    """

    #: Fields with an entry per batch; all others have one per row, or are ``None``.
    _per_batch: ClassVar[tuple[str, ...]] = ()

    batches: np.ndarray
    batch: Ints

    def _of_batches(self) -> str:
        rows = "" if self.one_each else f", {count(self.n_rows, 'row')}"
        found = count(self.batches.size, "batch", "batches")
        return f"{found} ({names(self.batches.tolist())}){rows}" if self.batches.size else found

    def __post_init__(self) -> None:
        """Check the map from rows to batches."""
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

    def _check_finite(self, *names: str) -> None:
        for name in names:
            values = getattr(self, name)
            if values is not None and not np.isfinite(values).all():
                raise BadValue(f"Expected finite {name}, found NaN or infinity.")

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

    def select(self, batches: Iterable[Any]) -> Self:
        """Return some of the batches, in the order of this object; there may be none, and no row changes."""
        chosen = among(self.batches, batches)
        keep = chosen[self.batch]
        position = np.cumsum(chosen) - 1
        return self._made([self], self.batches[chosen], position[self.batch[keep]], keep, chosen)

    def without(self, batch: Hashable) -> Self:
        """Return all batches but one; no other row changes."""
        self._check_known(batch)
        return self.select([b for b in self.batches.tolist() if b != batch])

    def joined(self, other: Self) -> Self:
        """Return the batches of both, which must not share any; no row changes."""
        batches = union(self.batches, other.batches)
        mine, theirs = (np.searchsorted(batches, part.batches) for part in (self, other))
        batch = np.concatenate([mine[self.batch], theirs[other.batch]])
        rows = np.argsort(batch, kind="stable")
        order = np.argsort(np.concatenate([mine, theirs]), kind="stable")
        return self._made([self, other], batches, batch[rows], rows, order)

    def _made(
        self, parts: list[Self], batches: np.ndarray, batch: Ints, rows: Any, entries: Any
    ) -> Self:
        """Some rows of one or more objects, and those ``entries`` of what they have per batch."""
        made: dict[str, Any] = {}
        for name in [field.name for field in fields(self)[2:]]:
            values = [getattr(part, name) for part in parts]
            if any(one is None for one in values):
                made[name] = None
                continue
            whole = values[0] if len(values) == 1 else np.concatenate(values)
            made[name] = whole[entries if name in self._per_batch else rows]
        return replace(self, batches=batches, batch=batch, **made)

    def _in(self, batches: np.ndarray, batch: Ints) -> Ints:
        """Positions of these rows among those of more batches, with as many rows for each batch."""
        first = np.searchsorted(batch, np.searchsorted(batches, self.batches))
        at: Ints = first[self.batch] + np.arange(self.n_rows) - self.start[self.batch]
        return at
