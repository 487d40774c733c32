"""Moments of labelled groups of cells, by matrix products: there may be very many groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels.arrays import Floats, Ints
from ..kernels.blocks import native, split
from ..kernels.products import Adder
from ..kernels.threads import one_numpy_thread, parallel_map
from .checks import check_embedding, nonfinite_error
from .labels import Labels
from .moments import Moments, n_parts

__all__ = ["group_moments"]

#: Rows in a block. It is large because each group in a block costs as much time as a row.
BLOCK_ROWS = 1 << 12


def group_moments(Z: Any, groups: Labels) -> Moments:
    """:meth:`Moments.of` without compiled code, for the groups that have cells.

    Deviations are from one cell of each group. The shape of the data alone determines the parts, which
    are added in order.
    """
    Z = check_embedding(Z)
    G, d = groups.batches.size, Z.shape[1]
    held, first = np.unique(groups.codes, return_index=True)
    center = np.zeros((G, d))
    center[held] = native(Z[first])

    def part(rows: tuple[int, int]) -> tuple[Ints, Floats]:
        n, sums = np.zeros(G, np.int64), np.zeros((2, G, d))
        add = Adder(min(BLOCK_ROWS, rows[1] - rows[0]), d)
        with np.errstate(all="ignore"):
            for lo in range(*rows, BLOCK_ROWS):
                hi = min(rows[1], lo + BLOCK_ROWS)
                found, at = np.unique(groups.codes[lo:hi], return_inverse=True)
                sums[:, found] += add(native(Z[lo:hi]), at, center[found])
                n[found] += np.bincount(at)
        return n, sums

    with one_numpy_thread():
        parts = parallel_map(part, split(Z.shape[0], n_parts(Z, G)))
    n, sums = parts[0]
    for cells, more in parts[1:]:
        n += cells
        sums += more
    found = Moments.about(groups.batches, n, center, sums)
    if found is None:
        raise nonfinite_error(Z)
    return found
