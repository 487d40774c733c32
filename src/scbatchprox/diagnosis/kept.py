"""Columns that must survive a refinement, such as a condition: what batches tell of them, what is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from ..core.adapter import Adapter
from ..core.labels import Labels, cross_counts
from ..core.moments import Moments, group_moments
from ..core.target import Cells
from ..kernels.arrays import Floats

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MEASURES", "Kept", "kept_columns", "kept_names"]

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
    def numbers(self) -> dict[str, float]:
        """Both numbers by their names in the table of a diagnosis."""
        return {f"{self.name} {what}": getattr(self, what) for what in MEASURES}

    @property
    def sentence(self) -> str:
        """Both numbers in words."""
        if np.isnan(self.removed):
            then = "there is hardly any variance between its values to remove"
        else:
            gone = f"{abs(self.removed):.0%} of the variance between its values"
            then = f"{gone} is {'removed' if self.removed >= 0 else 'added'}"
        return f"{self.name}: batches tell {max(self.confounded, 0.0):.0%} of it; {then}"


def kept_names(table: pd.DataFrame) -> list[str]:
    """Return the columns to keep: their numbers are the same for all batches."""
    found = [str(name) for name in table]
    starts = (name.removesuffix(f" {MEASURES[0]}") for name in found)
    return [name for name in starts if all(f"{name} {what}" in found for what in MEASURES)]


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
