"""Sums of populations at the centres of a consensus: all that batches exchange."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

import numpy as np

from ...kernels.arrays import Floats

__all__ = ["NEGLIGIBLE", "NONE", "Sums", "added"]

#: Numbers of cells and weights below this count as zero, and no smaller number is divided by.
NONE = 1e-9
#: If other batches have less than this part of the cells at a centre, only the batch itself is there.
NEGLIGIBLE = 1e-6


class Sums(NamedTuple):
    """The number of cells at each centre, counted by their weights, and the sum of their positions."""

    mass: Floats  # (..., K)
    total: Floats  # (..., K, d)

    @property
    def mean(self) -> Floats:
        """(..., K, d) mean positions; meaningless where there are no cells."""
        return self.total / np.maximum(self.mass, NONE)[..., None]

    def without(self, own: Sums) -> Sums:
        """(b, K) sums of all other batches, for each of b batches; none at centres that only it has."""
        rest = self.mass - own.mass
        rest = np.where(rest > np.maximum(NEGLIGIBLE * self.mass, NONE), rest, 0.0)
        return Sums(rest, np.where(rest[..., None] > 0, self.total - own.total, 0.0))

    def centres(self, most: int | None = None) -> Floats:
        """(K, d) mean positions where there are cells; the ``most`` largest."""
        # Ties are decided by the distance from the origin: regions have no order that turns with the data.
        mean = self.mean
        order = np.lexsort((np.einsum("kd,kd->k", mean, mean), -self.mass))[:most]
        return mean[order[self.mass[order] > NONE]]


def added(parts: Iterable[Sums]) -> Sums:
    """The sum of all parts."""
    return reduce(lambda a, b: Sums(a.mass + b.mass, a.total + b.total), parts)
