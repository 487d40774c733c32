r"""Cells and the centres of their batch by matrix products: nearest centres, sums, and soft mixtures.

Rows x and centres c are relative to an origin in the middle of the batch. The score is
:math:`x \cdot c - |c|^2 / 2`: minus half their squared distance, up to a term that only depends on the row.
:class:`scbatchprox.core.moments.Anchors` chooses the origin, so embeddings far from zero lose no digits.

Products are in double precision: in single precision, libraries of linear algebra round a row by its place
among the others (on processors without AVX-512, six of twelve rows in one way, six in another). Every product
has the same number of rows, unused ones are ignored: for fewer rows, libraries switch to other algorithms. So
the result for a cell does not depend on which other cells are computed with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from .arrays import Floats, Ints
from .blocks import BLOCK_ROWS, RowNumbers, blocks, is_native, native

__all__ = ["Adder", "Centers", "mixed_into", "squared_distances", "sums_around"]

#: The smallest bandwidth that is divided by. With it, a cell follows its nearest centre only.
LEAST_BANDWIDTH = 1e-30


@dataclass(frozen=True, eq=False)
class Centers:
    """The centres of one batch: (K, d) positions, and (d,) a point in their middle."""

    center: Floats
    origin: Floats

    @cached_property
    def table(self) -> Floats:
        """(d + 1, K) whose product with rows and a 1 gives scores."""
        gap = self.center - self.origin
        return np.concatenate([gap.T, -0.5 * (gap**2).sum(1)[None]])


class Buffers:
    """Memory that all blocks of a run share: allocating it for each takes longer than the products."""

    def __init__(self, Z: Any, rows: RowNumbers, centers: Centers) -> None:
        self.Z, self.rows, self.centers = Z, rows, centers
        self.x = np.ones((BLOCK_ROWS, Z.shape[1] + 1))
        self.score = np.empty((BLOCK_ROWS, len(centers.center)))
        self.read = np.empty((BLOCK_ROWS, Z.shape[1]), Z.dtype) if is_native(Z) else None

    def blocks(self) -> Iterator[tuple[RowNumbers, np.ndarray]]:
        """Yield the row numbers and the cells of each block; the next block may overwrite the cells."""
        for part in blocks(self.rows):
            if self.read is None or isinstance(part, slice):
                yield part, native(self.Z[part])
            else:
                # mode="clip" instead of a check of the row numbers, for which numpy would make a copy.
                yield part, self.Z.take(part, axis=0, out=self.read[: part.size], mode="clip")

    def scores(self, block: np.ndarray) -> Floats:
        """(m, K) scores of the cells of a block."""
        np.subtract(block, self.centers.origin, out=self.x[: len(block), :-1])
        return np.matmul(self.x, self.centers.table, out=self.score)[: len(block)]


def sums_around(Z: Any, rows: RowNumbers, centers: Centers) -> tuple[Ints, Floats]:
    """(K,) numbers of cells nearest to each centre, and (2, K, d) sums of their deviations and squares."""
    K, d = centers.center.shape
    n, sums = np.zeros(K, np.int64), np.zeros((2, K, d))
    buffers = Buffers(Z, rows, centers)
    add = Adder(BLOCK_ROWS, d)
    with np.errstate(all="ignore"):
        for _, block in buffers.blocks():
            near = buffers.scores(block).argmax(1)
            n += np.bincount(near, minlength=K)
            sums += add(block, near, centers.center)
    return n, sums


class Adder:
    """Sums of blocks of up to ``max_rows`` rows by group; all blocks share one buffer."""

    def __init__(self, max_rows: int, n_dims: int) -> None:
        self._buffer = np.empty(2 * max_rows * n_dims)
        self._belongs: Any = None

    def __call__(self, block: np.ndarray, group: Ints, center: Floats) -> Floats:
        """(2, G, d) sums of the deviations of rows from the centre of their group, and of the squares."""
        m, d, G = *block.shape, len(center)
        both = self._buffer[: 2 * m * d].reshape(2, m, d)
        gap, square = both
        gap[...] = block
        gap -= center.take(group, axis=0, out=square, mode="clip")
        np.multiply(gap, gap, out=square)
        if self._belongs is None or self._belongs.shape != (2 * G, 2 * m):
            # A column per row with a single 1: the product adds each row to its group.
            self._belongs = sp.csc_array(
                (np.ones(2 * m), np.zeros(2 * m, np.int32), np.arange(2 * m + 1, dtype=np.int32)),
                shape=(2 * G, 2 * m),
            )
        self._belongs.indices[:m] = group
        np.add(group, G, out=self._belongs.indices[m:], casting="same_kind")
        return np.asarray(self._belongs @ both.reshape(2 * m, d)).reshape(2, G, d)


def mixed_into(
    Z: Any,
    rows: RowNumbers,
    centers: Centers,
    u: Floats,
    v: Floats,
    bandwidth: float,
    out: np.ndarray,
) -> bool:
    """Write ``out_i = z_i + sum_k r_ik (u_k x_i + v_k)`` for rows of one batch; return if all are finite.

    ``u`` and ``v`` (K, d) are one affine map per centre, for rows relative to the origin. ``r_ik`` is a
    softmax over k of minus half the squared distance over the bandwidth.
    """
    buffers, displacement = Buffers(Z, rows, centers), np.empty((BLOCK_ROWS, Z.shape[1]))
    # If all cells of each population are equal the bandwidth is 0.
    sharpness, scaled, finite = 1.0 / max(bandwidth, LEAST_BANDWIDTH), u.any(), True
    with np.errstate(all="ignore"):
        for part, block in buffers.blocks():
            m, weight = len(block), buffers.scores(block)
            weight -= weight.max(1, keepdims=True)
            weight *= sharpness
            np.exp(weight, out=weight)
            moved = np.matmul(buffers.score, v, out=displacement)[:m]
            if scaled:
                moved += np.matmul(buffers.score, u)[:m] * buffers.x[:m, :-1]
            moved /= weight.sum(1, keepdims=True)
            moved += block
            result = moved.astype(out.dtype, copy=False)
            finite &= bool(np.isfinite(result).all())
            out[part] = result
    return finite


def squared_distances(A: Floats, B: Floats) -> Floats:
    """(n, m) squared distances between rows of ``A`` and ``B``, which should be centred at the origin.

    They come from one matrix product. Far from the origin the squares cancel and rounding noise remains.
    """
    # scipy's cdist takes 1.6 to 2.6 times as long on one core, for 50 to 3,000 rows of 20 to 50 coordinates.
    D: Floats = (A**2).sum(1)[:, None] - 2.0 * (A @ B.T) + (B**2).sum(1)
    np.maximum(D, 0.0, out=D)
    return D
