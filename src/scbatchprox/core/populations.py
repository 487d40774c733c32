"""Batches as what they are made of: the moments of each batch's own populations."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadValue
from ..kernels.arrays import Floats
from .anchors import Anchors
from .labels import Labels
from .moments import Moments

__all__ = ["Populations"]


@dataclass(frozen=True, eq=False)
class Populations:
    """Anchors in each batch, and the moments of the cells around each: a batch is a few such rows.

    Attributes
    ----------
    anchors
        Where the populations were found; new cells of a known batch join the nearest.
    rows
        Moments of each population, whose label is the number of its anchor.
    """

    anchors: Anchors
    rows: Moments

    @classmethod
    def given(
        cls, labels: Labels, population: Labels, moments_of: Callable[[Labels], Moments]
    ) -> Populations:
        """Populations that someone else has found: the cells of a batch with the same label."""
        pair = labels.codes.astype(np.int64) * population.batches.size + population.codes
        found, codes = np.unique(pair, return_inverse=True)
        moments = moments_of(Labels(codes.astype(np.int32), np.arange(found.size)))
        anchors = Anchors(labels.batches, found // population.batches.size, moments.mean)
        return cls(anchors, moments)

    @classmethod
    def at(cls, anchors: Anchors, moments: Moments, known: Anchors | None = None) -> Populations:
        """Populations at anchors with the moments of their cells, labelled by the anchors' numbers.

        An anchor without cells is dropped, unless it is that of a known batch, which has some elsewhere.
        """
        rows = moments.spread(np.arange(anchors.batch.size))
        keep = rows.n > 0
        if known is not None:
            keep |= np.isin(anchors.batches, known.batches)[anchors.batch]
        kept = Anchors(anchors.batches, anchors.batch[keep], anchors.center[keep])
        parts = (rows.n[keep], rows.mean[keep], rows.m2[keep])
        return cls(kept, Moments(np.arange(keep.sum()), *parts))

    @property
    def batches(self) -> np.ndarray:
        """(B,) batches, sorted."""
        return self.anchors.batches

    @property
    def n_cells(self) -> int:
        """The number of cells in all batches."""
        return self.rows.n_cells

    @property
    def width(self) -> int:
        """The number of coordinates d."""
        return self.rows.width

    @property
    def by_batch(self) -> Moments:
        """Moments of whole batches."""
        at = self.anchors.start[:-1]
        n = np.add.reduceat(self.rows.n, at)
        first = self.rows.mean[at]
        offset = (
            self.rows.mean - first[self.anchors.batch]
        )  # about one of the means: no cancellation
        weight = self.rows.n[:, None]
        move = np.add.reduceat(weight * offset, at) / n[:, None]
        spread = self.rows.m2 + weight * (offset - move[self.anchors.batch]) ** 2
        return Moments(self.batches, n, first + move, np.add.reduceat(spread, at))

    @property
    def within(self) -> Floats:
        """(B,) variance of the cells of a batch about their populations' means, over all coordinates."""
        at = self.anchors.start[:-1]
        return np.add.reduceat(self.rows.m2.sum(1), at) / np.add.reduceat(self.rows.n, at)

    def merge(self, other: Populations) -> Populations:
        """Populations of both sets of cells together; a batch in both must have the same anchors."""
        if self.width != other.width:
            raise BadValue(f"Expected moments of {self.width} coordinates, found {other.width}.")
        known = set(self.batches.tolist())
        new = other.select([b for b in other.batches.tolist() if b not in known])
        more = other.select([b for b in other.batches.tolist() if b in known])
        merged = self._with_more(more) if more.batches.size else self
        if not new.batches.size:
            return merged
        anchors, order = merged.anchors.joined(new.anchors)
        both = [
            np.concatenate([getattr(p.rows, f) for p in (merged, new)]) for f in ("n", "mean", "m2")
        ]
        return Populations(anchors, Moments(np.arange(order.size), *(x[order] for x in both)))

    def drop(self, batch: Hashable) -> Populations:
        """Populations without one batch: as if its cells had never been seen."""
        self.by_batch.drop(batch)  # says if it is not there
        return self.select([b for b in self.batches.tolist() if b != batch])

    def select(self, batches: list[Any]) -> Populations:
        """Populations of some batches; there may be none, and all of them are this very object."""
        anchors, keep = self.anchors.select(batches)
        if keep.all():
            return self
        parts = (self.rows.n, self.rows.mean, self.rows.m2)
        return Populations(
            anchors, Moments(np.arange(anchors.batch.size), *(x[keep] for x in parts))
        )

    def _with_more(self, more: Populations) -> Populations:
        """More cells of known batches, which were counted at the anchors that are kept."""
        at = np.flatnonzero(np.isin(self.batches, more.batches)[self.anchors.batch])
        if at.size != more.rows.n.size or not np.array_equal(
            self.anchors.center[at], more.anchors.center
        ):
            raise BadValue(
                "Expected more cells of a known batch at the populations that are kept of it, found "
                "others."
            )
        rows = Moments(at, more.rows.n, more.rows.mean, more.rows.m2)
        return Populations(self.anchors, self.rows.merge(rows))
