"""Cells in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..core.adapter import Adapter
from ..core.labels import Labels
from ..core.moments import Anchors, Moments, group_moments
from ..core.sampling import Sample, thin_sample
from ..kernels.arrays import Ints

__all__ = ["MemoryCells", "Sampled"]

#: Rows that are mapped at a time, if the mapped cells are not kept.
MAPPED_ROWS = 1 << 16


class Sampled(ABC):
    """Cells of which a sample is drawn once: a fit and its diagnosis look at the same cells."""

    @cached_property
    def _samples(self) -> dict[tuple[bytes, int], Sample]:
        return {}

    def sample(self, most: Ints, seed: int = 0) -> Sample:
        """Up to ``most`` (B,) cells of each batch, chosen by their norms; they must be finite."""
        key = most.tobytes(), seed
        if key not in self._samples:
            self._samples[key] = self._drawn(most, seed)
        return self._samples[key]

    @abstractmethod
    def _drawn(self, most: Ints, seed: int) -> Sample: ...

    def small_sample(self, most: Ints, seed: int = 0) -> Sample:
        """As :meth:`sample`, but possibly other cells; they must be known to be finite."""
        return self.sample(most, seed)


@dataclass(frozen=True, eq=False)
class MemoryCells(Sampled):
    """Checked cells (N, d) in memory, with their batches."""

    Z: Any
    labels: Labels

    def by_batch(self) -> list[MemoryCells]:
        """The cells of each batch, in their order."""
        if self.labels.batches.size == 1:
            return [self]
        parts = self.labels.rows()
        return [
            MemoryCells(self.Z[rows], Labels(np.zeros(rows.size, np.int32), batches))
            for rows, batches in zip(parts, np.split(self.labels.batches, len(parts)), strict=True)
        ]

    def _drawn(self, most: Ints, seed: int) -> Sample:
        return Sample.drawn(self.Z, self.labels, most, seed)

    def small_sample(self, most: Ints, seed: int = 0) -> Sample:
        """As :meth:`sample`, without reading all coordinates."""
        return thin_sample(self.Z, self.labels, most, seed)

    def moments(self, by: Labels | Anchors | None = None) -> Moments:
        """Moments of the batches, of other groups, or of the cells around each anchor."""
        if isinstance(by, Anchors):
            return by.moments(self.Z, self.labels)
        return Moments.of(self.Z, self.labels) if by is None else group_moments(self.Z, by)

    def mapped(
        self, adapter: Adapter, verb: str, labels: Labels
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the cells mapped by ``adapter.apply`` or ``adapter.inverse``, some rows at a time."""
        for lo in range(0, self.Z.shape[0], MAPPED_ROWS):
            rows = slice(lo, lo + MAPPED_ROWS)
            yield lo, getattr(adapter, verb)(self.Z[rows], labels.at(rows))
