r"""The moments of all cells of all sites, from one sum: all that the moment target needs of other sites.

A site adds :math:`(n, B, \sum z, \sum z^2)` as exact integers. For embeddings far from the origin the
variance is a difference of large numbers, so it is computed as an exact fraction before it is rounded.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from ...core.moments import Moments, Pooled
from ...errors import BadValue
from ..fixed import WIDE
from ..rounds import Addends, AddUp

__all__ = ["pooled_moments"]


def pooled_moments(own: Moments, add_up: AddUp) -> Pooled:
    """The moments of all sites together, one round."""
    own, d = own.by_batch, own.n_dims
    first, second = [Fraction(0)] * d, [Fraction(0)] * d
    for n, mean, m2 in zip(own.n.tolist(), own.mean.tolist(), own.m2.tolist(), strict=True):
        for j in range(d):
            first[j] += n * Fraction(mean[j])
            second[j] += Fraction(m2[j]) + n * Fraction(mean[j]) ** 2
    totals = add_up(Addends([own.n_cells, own.batches.size, *first, *second], WIDE))
    n, B, *sums = totals.fractions()
    if n.denominator != 1 or n < 1 or B.denominator != 1 or not 1 <= B <= n:
        raise BadValue("Expected whole numbers of cells and batches in the sum, found others.")
    m2 = [square - total * total / n for total, square in zip(sums[:d], sums[d:], strict=True)]
    return Pooled(
        int(n),
        int(B),
        np.array([float(total / n) for total in sums[:d]]),
        np.array([float(max(value, Fraction(0))) for value in m2]),
    )
