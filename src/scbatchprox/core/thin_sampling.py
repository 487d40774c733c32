"""A small sample of cells in memory without a pass over all coordinates; again by content, not by place.

A hash of a row's first coordinates says whether it may be drawn. Only rows that may are read whole: for a
million cells of 50 coordinates 25 ms instead of 140.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.arrays import Ints
from .labels import Labels
from .sampling import Sample, hashes_of

__all__ = ["thin_sample"]

#: Coordinates that decide whether a row may be drawn: one or two 64-bit words.
FIRST = 2
#: Rows that may be drawn for each that is wanted, and a few more: hardly ever too few.
SPARE, MORE = 1.5, 20
#: Part of the rows that may be drawn which must differ in their first coordinates.
DIFFERENT = 0.95


def thin_sample(Z: Any, labels: Labels, most: Ints, seed: int = 0) -> Sample:
    """Up to ``most`` (B,) cells of each batch of a matrix in memory, which must be finite.

    Another sample than :meth:`Sample.drawn` makes, with the same properties: neither the order of cells nor
    the names of batches have a part in it. Where rows are often equal in their first coordinates (copies,
    zeros, whole numbers) it is that one.
    """
    n = labels.n
    if not isinstance(Z, np.ndarray) or not (n > SPARE * most + MORE).any():
        return Sample.drawn(Z, labels, most, seed)
    first = hashes_of(Z[:, :FIRST], seed)
    share = np.minimum((SPARE * most + MORE * (most > 0)) / np.maximum(n, 1), 1.0)
    # Floats up to 2**64 may round to it, which no word holds: those batches are taken as a whole.
    limit = np.minimum(share * 2.0**64, 2.0**64 - 2.0**12).astype(np.uint64)
    limit[share >= 1.0] = np.iinfo(np.uint64).max
    rows = np.flatnonzero(first <= limit[labels.codes])
    some = labels.at(rows)
    enough = (some.n >= np.minimum(n, most)).all()
    if not enough or np.unique(first[rows]).size < DIFFERENT * rows.size:
        return Sample.drawn(Z, labels, most, seed)
    hashes = hashes_of(Z[rows], seed)
    order = np.lexsort((hashes, some.codes))
    start = np.concatenate([[0], np.cumsum(some.n)])
    rank = np.arange(rows.size) - start[some.codes[order]]
    drawn = rows[order[rank < most[some.codes[order]]]]
    return Sample(Z, drawn, labels.at(drawn))
