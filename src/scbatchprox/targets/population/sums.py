"""Sums of populations at the centres of a consensus: all that batches exchange."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

import numpy as np

from ...core.exchange import Rounds
from ...kernels.arrays import Floats

__all__ = ["NONE", "Sums", "added"]

#: Masses and weights below this count as zero, and no smaller number is divided by.
NONE = 1e-12
#: If other batches have less than this part of the mass of a centre, only the batch itself is there.
NEGLIGIBLE = 1e-4


class Sums(NamedTuple):
    """The weight of populations at each centre, and their weighted positions.

    Several sets of centres (seedings) are the first axis, S.
    """

    mass: Floats  # (..., K)
    total: Floats  # (..., K, d)

    @property
    def mean(self) -> Floats:
        """(..., K, d) positions of the centres; meaningless for empty centres."""
        return self.total / np.maximum(self.mass, NONE)[..., None]

    @property
    def nonempty(self) -> np.ndarray:
        """(..., K) which centres have any mass."""
        return self.mass > NONE

    def without(self, own: Sums) -> Sums:
        """(S, B, K) sums of all other batches, for each batch; empty at centres that only it has."""
        mass = self.mass[:, None] - own.mass
        mass = np.where(mass > NEGLIGIBLE * self.mass[:, None], mass, 0.0)
        return Sums(mass, self.total[:, None] - own.total)

    def of_all(self) -> Rounds[Sums]:
        """The sums of all batches everywhere, if these are those of some."""
        totals = yield np.concatenate([self.mass.ravel(), self.total.ravel()])
        mass, total = np.split(totals, [self.mass.size])
        return Sums(mass.reshape(self.mass.shape), total.reshape(self.total.shape))

    def compact(self) -> Sums:
        """The same centres, with as few columns as the seeding with the most centres needs."""
        K = int(self.nonempty.sum(1).max())
        order = np.argsort(~self.nonempty, axis=1, kind="stable")[:, :K]
        return Sums(
            np.take_along_axis(self.mass, order, 1),
            np.take_along_axis(self.total, order[..., None], 1),
        )

    def padded(self, K: int) -> Sums:
        """The same centres, with empty columns up to ``K``."""
        more = ((0, 0), (0, K - self.mass.shape[1]))
        return Sums(np.pad(self.mass, more), np.pad(self.total, (*more, (0, 0))))


def added(parts: Iterable[Sums]) -> Sums:
    """The sum of all parts."""
    return reduce(lambda a, b: Sums(a.mass + b.mass, a.total + b.total), parts)
