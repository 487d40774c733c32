"""Columns that must survive a refinement, such as a condition: what batches tell of them, what is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from ..core.adapter import Adapter
from ..core.group_moments import group_moments
from ..core.labels import Labels, cross_counts
from ..core.moments import Moments
from ..core.target import Cells
from ..kernels.arrays import Floats
from .limits import CONFOUNDED, MUCH_REMOVED

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MEASURES", "Kept", "kept_columns", "kept_names", "kept_warning"]

#: The variance between the values of a column is only judged if it is this many times what chance gives.
MIN_SIGNAL = 3.0
#: What is measured of each column, as it is named in the table of a diagnosis.
MEASURES = ("confounded", "removed")


@dataclass(frozen=True)
class Kept:
    """What a refinement does to a column that must survive it.

    Attributes
    ----------
    name
        The column.
    confounded
        How much of the column the batch tells, from 0 (nothing) to 1 (each batch has one value): the part of
        the column's entropy that the batch explains.
    removed
        The part of the variance between the column's values that the refinement removes; negative if it adds
        some, NaN if there is hardly any to remove.
    """

    name: str
    confounded: float
    removed: float

    @classmethod
    def of(cls, table: pd.DataFrame, name: str) -> Kept:
        """Return what a diagnosis says of a column; it is the same for all batches."""
        return cls(name, *(float(table[f"{name} {what}"].iloc[0]) for what in MEASURES))

    @property
    def sentence(self) -> str:
        """Both numbers in words."""
        if np.isnan(self.removed):
            then = "there is hardly any variance between its values to remove"
        else:
            gone = f"{abs(self.removed):.0%} of the variance between its values"
            then = f"{gone} is {'removed' if self.removed >= 0 else 'added'}"
        return f"{self.name}: batches tell {max(self.confounded, 0.0):.0%} of it; {then}"

    @property
    def against(self) -> str | None:
        """The reason to leave the batches alone, if there is one."""
        if self.confounded >= CONFOUNDED and self.removed > MUCH_REMOVED:
            return f"{self._confounded}, and the refinement removes {self._part}"
        return None

    @property
    def care(self) -> str | None:
        """The reason for care, if there is one."""
        if self.confounded >= CONFOUNDED:
            part = "none" if np.isnan(self.removed) else f"{max(self.removed, 0.0):.0%}"
            return f"{self._confounded}; the refinement removes {part} of the variance between its values"
        return f"the refinement removes {self._part}" if self.removed > MUCH_REMOVED else None

    @property
    def _confounded(self) -> str:
        few = "one value" if self.confounded > 1 - 1e-9 else "almost one value"
        return f"each batch has {few} of {self.name!r}, so the two cannot be told apart"

    @property
    def _part(self) -> str:
        return f"{self.removed:.0%} of the variance between the values of {self.name!r}"


def kept_names(table: pd.DataFrame) -> list[str]:
    """Return the columns to keep: their numbers are the same for all batches."""
    found = [str(name) for name in table]
    starts = (name.removesuffix(f" {MEASURES[0]}") for name in found)
    return [name for name in starts if all(f"{name} {what}" in found for what in MEASURES)]


def kept_warning(table: pd.DataFrame, keep: Mapping[str, Labels]) -> str | None:
    """Return a warning if a refinement removes what it was told to keep."""
    for name in keep:
        column = Kept.of(table, name)
        reason = column.against or (column.care if column.removed > MUCH_REMOVED else None)
        if reason is not None:
            return f"To keep {name!r}, leave the batches alone or lower strength: {reason}."
    return None


def kept_columns(columns: Mapping[str, Labels], cells: Cells, adapter: Adapter) -> list[Kept]:
    """Return what an adapter does to each of these columns; reads all cells twice for each."""
    return [
        Kept(
            name,
            _explained(values, cells.labels),
            _removed(cells.moments(values), _refined_moments(cells, adapter, values)),
        )
        for name, values in columns.items()
    ]


def _refined_moments(cells: Cells, adapter: Adapter, values: Labels) -> Moments:
    blocks = cells.mapped(adapter, "apply", cells.labels)
    parts = (group_moments(Z, values.at(slice(lo, lo + len(Z)))) for lo, Z in blocks)
    return reduce(Moments.merge, parts)


def _explained(values: Labels, batch: Labels) -> float:
    """The part of the entropy of ``values`` that the batch explains (Theil's U)."""
    counts = cross_counts(batch, values).astype(float)
    whole = _entropy(counts.sum(0, keepdims=True))
    return float(1.0 - _entropy(counts) / whole)


def _entropy(counts: Floats) -> float:
    """Mean entropy of the rows, weighted by their counts."""
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1.0)
    logs = np.log(share, out=np.zeros_like(share), where=share > 0)
    return float(-(counts * logs).sum() / counts.sum())


def _removed(before: Moments, after: Moments) -> float:
    """The part of the variance between groups that is gone; NaN if chance gives almost as much."""
    (was, chance), (now, still) = _between(before), _between(after)
    if was < MIN_SIGNAL * chance or was == 0:
        return np.nan
    return 1.0 - max(now - still, 0.0) / (was - chance)


def _between(moments: Moments) -> tuple[float, float]:
    """Sum of squares between groups, and what chance gives of it."""
    n = moments.n[:, None].astype(float)
    mean = (n * moments.mean).sum(0) / n.sum()
    groups, cells = moments.n.size, int(moments.n.sum())
    chance = (groups - 1) * float(moments.m2.sum()) / max(cells - groups, 1)
    return float((n * (moments.mean - mean) ** 2).sum()), chance
