"""Limits that verdicts, warnings and the advice of atlases share.

The limits of evidence are settings of the population target.
"""

from __future__ import annotations

__all__ = [
    "CONFOUNDED", "DIFFERENT", "FAR", "FAR_FACTOR", "LARGE_SCALE", "MIN_CELLS", "MIN_KEPT", "MUCH_REMOVED",
    "VERY_FAR", "VERY_FAR_FACTOR",
]  # fmt: skip

#: Compositions further apart than this are different, for a target that moves whole batches; 0 is equal, 1
#: is disjoint.
DIFFERENT = 0.3
#: The composition of a batch with fewer cells is unknown.
MIN_CELLS = 50
#: Larger scales need care, and smaller ones than 1 / this.
LARGE_SCALE = 1.5
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
