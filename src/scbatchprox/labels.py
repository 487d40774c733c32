"""Batch labels as codes: whatever a user calls a batch becomes 0, 1, 2, ... in sorted order."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ._kernels import count_codes
from ._validate import some_of
from .errors import BadType, BadValue

__all__ = ["Labels", "label_array", "union"]


@dataclass(frozen=True)
class Labels:
    """One batch code per cell, and the batches that the codes stand for.

    Attributes
    ----------
    codes
        int32, one per cell: the position of its batch in ``batches``.
    batches
        Distinct labels in sorted order (so that results never depend on the container that the
        labels came in, nor on the order of a categorical's categories).
    """

    codes: np.ndarray
    batches: np.ndarray

    @classmethod
    def of(cls, batch: Any, n_cells: int) -> Labels:
        """Encode labels of any kind; ``None`` is a single batch."""
        if isinstance(batch, Labels):
            labels = batch
        elif batch is None:
            labels = cls(np.zeros(n_cells, np.int32), label_array(["all"]))
        else:
            labels = _encode(batch)
        if labels.codes.size != n_cells:
            raise BadValue(
                f"Expected one batch label per cell ({n_cells}), found {labels.codes.size} labels."
            )
        return labels

    def within(self, known: np.ndarray) -> Labels:
        """Translate the codes to positions in ``known``; a batch that is not there is an error."""
        if np.array_equal(self.batches, known):
            return Labels(self.codes, known)
        position = {label: i for i, label in enumerate(known.tolist())}
        unseen = [label for label in self.batches.tolist() if label not in position]
        if unseen:
            raise BadValue(
                f"Expected batches seen when fitting, found unseen {some_of(unseen)}; "
                f"available: {some_of(known.tolist())}."
            )
        table = np.array([position[label] for label in self.batches.tolist()], np.int32)
        return Labels(table[self.codes], known)

    @property
    def n(self) -> np.ndarray:
        """Cells per batch."""
        return np.bincount(self.codes, minlength=self.batches.size)


def label_array(labels: list[Any]) -> np.ndarray:
    """Distinct labels as an array of one plain type: str, int, bool or float; anything else by name."""
    for plain in (bool, int, float, str):
        if all(type(label) is plain for label in labels):
            return np.array(labels, dtype=plain)
    if any(isinstance(label, str) for label in labels) and any(
        isinstance(label, int | float) for label in labels
    ):
        # "1" and 1 would silently become the same batch.
        raise BadType(
            f"Expected batch labels of one type, found both strings and numbers: {some_of(labels)}."
        )
    return np.array([str(label) for label in labels])


def union(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """All labels of both, sorted."""
    return label_array(sorted(set(a.tolist()) | set(b.tolist())))


def _encode(batch: Any) -> Labels:
    codes, found = _factorize(batch)
    codes = codes.astype(np.int32, copy=False)
    counts = np.zeros(len(found) + 1, np.int64)
    count_codes(codes, counts)
    if counts[0]:
        raise BadValue(
            f"Expected a batch label for every cell, found {counts[0]} missing of {codes.size}, "
            f"the first at row {int(np.argmax(codes < 0))}."
        )
    # A categorical may carry categories that no cell has: those are not batches.
    used = np.flatnonzero(counts[1:])
    plain = label_array([_plain(found[i]) for i in used])
    order = np.argsort(plain, kind="stable")
    table = np.full(max(len(found), 1), -1, np.int32)
    table[used[order]] = np.arange(used.size)
    if np.array_equal(table, np.arange(len(found))):
        return Labels(codes, plain[order])
    return Labels(table[codes], plain[order])


def _factorize(batch: Any) -> tuple[np.ndarray, list[Hashable]]:
    """Codes (-1 where missing) and the labels they stand for, in any order."""
    values = pd.Series(batch) if isinstance(batch, pd.Categorical) else _one_dimensional(batch)
    if isinstance(values.dtype, pd.CategoricalDtype):
        return values.cat.codes.to_numpy(), values.cat.categories.tolist()
    codes, found = pd.factorize(values, use_na_sentinel=True)
    return codes, pd.Index(found).tolist()


def _one_dimensional(batch: Any) -> pd.Series[Any]:
    if isinstance(batch, pd.Series):
        return batch
    if isinstance(batch, str | bytes) or np.ndim(batch) == 0:
        raise BadType(f"Expected one batch label per cell, found the single value {batch!r}.")
    if isinstance(batch, np.ndarray | pd.DataFrame) and batch.ndim != 1:
        raise BadValue(
            f"Expected a one-dimensional array of batch labels, found shape {batch.shape}."
        )
    return pd.Series(batch)


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label
