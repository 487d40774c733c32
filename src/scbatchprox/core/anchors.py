"""Anchors: points in each batch that its cells are assigned to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..kernels.arrays import Floats, Ints
from ..kernels.products import Centers, sums_around
from ..kernels.runs import Rows, map_runs
from .checks import nonfinite_error
from .labels import Labels
from .moments import Moments
from .rows import OfBatches

__all__ = ["Anchors"]


@dataclass(frozen=True, eq=False, repr=False)
class Anchors(OfBatches):
    """A few points in each batch. A cell belongs to the nearest anchor of its batch.

    Attributes
    ----------
    batches
        (B,) distinct labels, sorted.
    batch
        (R,) position in ``batches`` of each anchor's batch, in order; every batch has one or more.
    center
        (R, d) positions of the anchors.
    """

    batches: np.ndarray
    batch: Ints
    center: Floats

    def _facts(self) -> str:
        return self._of_batches()

    def __post_init__(self) -> None:
        self._check_rows()

    @cached_property
    def origin(self) -> Floats:
        """(B, d) the middle of the anchors of each batch, from which distances are computed.

        It is a median, so that one distant cell does not cost the others precision. It is rounded to
        single precision if that is close enough: then float32 cells need no conversion.
        """
        parts = np.split(self.center, self.start[1:-1])
        return np.stack([_middle(part) for part in parts])

    def of_batch(self, b: int) -> Centers:
        """The anchors of batch b, ready for products."""
        return Centers.of(self.center[self.own(b)], self.origin[b])

    def moments(self, Z: Any, labels: Labels) -> Moments:
        """Moments of the cells of each anchor that has any, labelled by the anchor's number; one pass."""
        within = labels.within(self.batches)
        P, d = self.center.shape
        n, sums = np.zeros(P, np.int64), np.zeros((2, P, d))

        def run(b: int, rows: Rows) -> tuple[Ints, Floats]:
            return sums_around(Z, rows, self.of_batch(b))

        for b, (cells, more) in map_runs(run, within.codes, self.batches.size):
            n[self.own(b)] += cells
            sums[:, self.own(b)] += more
        found = Moments.about(np.arange(P), n, self.center, sums)
        if found is None:
            raise nonfinite_error(Z)
        return found

    def select(self, batches: Iterable[Any]) -> Anchors:
        """The anchors of some batches."""
        rows, keep = self._among(batches)
        return Anchors(*rows, self.center[keep])

    def joined(self, other: Anchors) -> Anchors:
        """The anchors of both, which share no batch."""
        rows, order = self._with(other)
        return Anchors(*rows, np.concatenate([self.center, other.center])[order])


def _middle(center: Floats) -> Floats:
    """The median, rounded to single precision if the rounding is smaller than the spread of the anchors."""
    middle = np.median(center, axis=0)
    with np.errstate(over="ignore"):
        single = middle.astype(np.float32).astype(np.float64)
    close = np.abs(single - middle).max() <= np.abs(center - middle).max()
    return np.asarray(single if close else middle)
