"""Limits that verdicts, warnings and the advice of atlases share."""

from __future__ import annotations

__all__ = [
    "CONFOUNDED", "DIFFERENT", "LARGE_MOVE", "LARGE_SCALE", "MANY_UNMATCHED", "MIN_CELLS", "MIN_DISTINCT",
    "MIN_KEPT", "MIN_MATCHED", "MUCH_REMOVED", "PARTNER_DISTANCE", "VERY_DIFFERENT",
]  # fmt: skip

#: A population has a partner if a centre of other batches lies within this many spacings of it.
PARTNER_DISTANCE = 1.5
#: A batch is unmatched if a smaller part of its cells has partners.
MIN_MATCHED = 0.25
#: A larger part of the cells without a partner needs care.
MANY_UNMATCHED = 0.3
#: Compositions further apart than these are different, and very different; 0 is equal, 1 is disjoint.
DIFFERENT, VERY_DIFFERENT = 0.3, 0.6
#: Populations overlap if their groups explain a smaller part of the variance.
MIN_DISTINCT = 0.5
#: The composition of a batch with fewer cells is unknown.
MIN_CELLS = 20
#: Larger displacements need care, as a part of the batch's spread; so do larger scales, and 1 / scale.
LARGE_MOVE, LARGE_SCALE = 0.5, 1.5
#: A smaller part of the neighbours kept needs care.
MIN_KEPT = 0.5
#: A column is confounded with batches that tell a larger part of it.
CONFOUNDED = 0.9
#: Removing a larger part of the variance between the values of a column that is to be kept needs care.
MUCH_REMOVED = 0.5
