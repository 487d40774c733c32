"""Limits that verdicts, warnings and the advice of atlases share."""

from __future__ import annotations

__all__ = [
    "CONFOUNDED", "DIFFERENT", "FAR", "FAR_FACTOR", "LARGE_MOVE", "LARGE_SCALE", "MANY_UNMATCHED",
    "MIN_CELLS", "MIN_DISTINCT", "MIN_KEPT", "MIN_MATCHED", "MUCH_REMOVED", "PARTNER_DISTANCE",
    "VERY_DIFFERENT", "VERY_FAR", "VERY_FAR_FACTOR",
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

# The limits of new batches of an atlas come from five real data sets (docs/atlas.md), where each batch was
# judged against the others.
# Batches that overlap lie within 0.9 spreads of the others, and their spreads differ by factors up to 1.5.
# Two batches that do not overlap lie 1.8 and 4.5 spreads apart, with factors of 2.4.
#: A batch whose mean lies further than this many spreads from the atlas is far.
FAR = 1.5
#: Beyond this many spreads a batch is refused unless forced. Two normal distributions with the spread of the
#: atlas would hardly overlap in any coordinate.
VERY_FAR = 3.0
#: A batch is far if its spread differs from that of the atlas' batches by more than this factor. The spread
#: of one cell type is smaller than that of a tissue by about this factor.
FAR_FACTOR = 2.0
#: Beyond this factor a batch is refused unless forced: its embedding probably has another scale.
VERY_FAR_FACTOR = 4.0
