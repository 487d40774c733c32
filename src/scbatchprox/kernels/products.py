r"""Cells and the centres of their batch by matrix products: nearest centres, sums, and soft mixtures.

Rows x and centres c are in single precision, relative to an origin in the middle of the batch. The score is
:math:`x \cdot c - |c|^2 / 2`: minus half their squared distance, up to a term that only depends on the row.
:class:`scbatchprox.core.moments.Anchors` chooses the origin, so embeddings far from zero lose no digits.

Every product has the same number of rows; unused rows are ignored. Linear algebra libraries switch to other
algorithms for fewer rows, and these round differently. So the result for a cell does not depend on which
other cells are computed with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from .arrays import Floats, Ints
from .blocks import BLOCK_ROWS, Rows, blocks, is_native, native, output_dtype

__all__ = ["Adder", "Centers", "Maps", "mixed_into", "squared_distances", "sums_around"]

#: From this many columns on, numpy's argmax uses vector instructions: 4 ms instead of 11 for 200,000 rows.
VECTOR_COLUMNS = 64
#: Up to this many columns, padding to ``VECTOR_COLUMNS`` takes longer than it saves.
FEW_COLUMNS = 24
#: The score of a padding column, which is never the largest.
LEAST = np.finfo(np.float32).min
#: Weights of a row with a sum below this are close to underflow: they are computed again, scaled.
UNDERFLOW = 1e-20
#: The smallest bandwidth that is divided by. With it, a cell follows its nearest centre only.
LEAST_BANDWIDTH = 1e-30


@dataclass(frozen=True, eq=False)
class Centers:
    """The centres of one batch.

    Attributes
    ----------
    center
        (K, d) positions.
    origin
        (d,) a point in their middle. It is float32 if that is exact: then float32 rows need no conversion.
    table
        (d + 1, K) whose product with rows and a 1 gives scores.
    """

    center: Floats
    origin: np.ndarray
    table: np.ndarray

    @cached_property
    def padded(self) -> np.ndarray:
        """The table with padding columns, which are never nearest."""
        K = len(self.center)
        padding = VECTOR_COLUMNS - K if FEW_COLUMNS < K < VECTOR_COLUMNS else 0
        more = np.zeros((len(self.table), padding), np.float32)
        more[-1] = LEAST
        return np.concatenate([self.table, more], axis=1)

    @classmethod
    def of(cls, center: Floats, origin: Floats) -> Centers:
        """Centres at some positions, with their table."""
        gap = center - origin
        table = np.concatenate([gap.T, -0.5 * (gap**2).sum(1)[None]]).astype(np.float32)
        with np.errstate(over="ignore"):
            single = origin.astype(np.float32)
        return cls(center, single if (single == origin).all() else origin, table)

    def relative(self, block: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Write rows minus the origin to the first columns of ``X``, and 1 to the next one; return it."""
        n, d = block.shape
        if block.dtype == np.float64 or self.origin.dtype == np.float32:
            np.subtract(block, self.origin, out=X[:n, :d], casting="same_kind")
        else:
            X[:n, :d] = block.astype(np.float64) - self.origin
        X[:n, d] = 1.0
        return X


class Buffers:
    """Memory that all blocks of a run share: allocating it for each takes longer than the products."""

    def __init__(self, Z: Any, rows: Rows, n_columns: int, n_centers: int) -> None:
        self.Z, self.rows = Z, rows
        self.x = np.zeros((BLOCK_ROWS, n_columns), np.float32)
        self.score = np.empty((BLOCK_ROWS, n_centers), np.float32)
        self.read = np.empty((BLOCK_ROWS, Z.shape[1]), Z.dtype) if is_native(Z) else None

    def blocks(self) -> Iterator[tuple[Rows, np.ndarray]]:
        """Yield the row numbers and the cells of each block; the next block may overwrite the cells."""
        for part in blocks(self.rows):
            if self.read is None or isinstance(part, slice):
                yield part, native(self.Z[part])
            else:
                # mode="clip" instead of a check of the row numbers, for which numpy would make a copy.
                yield part, self.Z.take(part, axis=0, out=self.read[: part.size], mode="clip")


def _nearest(block: np.ndarray, centers: Centers, buffers: Buffers) -> Ints:
    x = centers.relative(block, buffers.x)
    score = np.matmul(x, centers.padded, out=buffers.score)[: len(block)]
    return np.asarray(score.argmax(1))


def sums_around(Z: Any, rows: Rows, centers: Centers) -> tuple[Ints, Floats]:
    """(K,) numbers of cells nearest to each centre, and (2, K, d) sums of their deviations and squares."""
    K, d = centers.center.shape
    n, sums = np.zeros(K, np.int64), np.zeros((2, K, d))
    buffers = Buffers(Z, rows, *centers.padded.shape)
    add = Adder(BLOCK_ROWS, d)
    with np.errstate(all="ignore"):
        for _, block in buffers.blocks():
            near = _nearest(block, centers, buffers)
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


@dataclass(frozen=True, eq=False)
class Maps:
    r"""One affine map per centre of a batch, for rows x relative to the origin: :math:`x + u_k x + v_k`.

    Attributes
    ----------
    u, v
        (K, d); ``u`` is ``None`` if all are zero.
    sharpness
        One over the bandwidth.
    soft
        (d + 2, K) a table like that of the centres, whose product with rows gives the exponents of the
        softmax: ``sharpness`` times minus half the squared distance.
    """

    u: Floats | None
    v: Floats
    sharpness: np.float32
    soft: np.ndarray

    @classmethod
    def of(cls, centers: Centers, u: Floats, v: Floats, bandwidth: float) -> Maps:
        """Maps of the centres of a batch, (K, d) each."""
        # If all cells of each population are equal the bandwidth is 0.
        sharpness = np.float32(1.0 / max(bandwidth, LEAST_BANDWIDTH))
        with np.errstate(over="ignore"):
            last = np.full((1, len(centers.center)), sharpness, np.float32)
            soft = np.concatenate([sharpness * centers.table, last])
        return cls(u if u.any() else None, v, sharpness, soft)


def mixed_into(Z: Any, rows: Rows, centers: Centers, maps: Maps, out: np.ndarray) -> bool:
    """Write ``out_i = z_i + sum_k r_ik (u_k x_i + v_k)`` for rows of one batch; return if all are finite.

    ``r_ik`` is a softmax over k of minus half the squared distance over the bandwidth.
    """
    buffers = Buffers(Z, rows, *maps.soft.shape)
    d = centers.center.shape[1]
    kind = np.promote_types(out.dtype, output_dtype(Z))
    v, u = maps.v.astype(kind), None if maps.u is None else maps.u.astype(kind)
    weight = buffers.score if kind == np.float32 else np.zeros(buffers.score.shape, kind)
    ones = np.ones(weight.shape[1], kind)
    displacement, stretch = np.empty((2, BLOCK_ROWS, d), kind)
    finite = True
    with np.errstate(all="ignore"):
        for part, found in buffers.blocks():
            block = found.astype(kind, copy=False)
            m = len(block)
            x = centers.relative(block, buffers.x)
            gap = x[:m, :d] if kind == np.float32 else block - centers.origin
            result = displacement[:m]
            _weigh(x, centers, maps, buffers.score, m)
            weight[:m] = buffers.score[:m]
            np.matmul(weight, v, out=displacement)
            if u is not None:
                result += np.multiply(np.matmul(weight, u, out=stretch)[:m], gap)
            result /= (weight @ ones)[:m, None]
            result += block
            moved = result.astype(out.dtype, copy=False)
            finite &= bool(np.isfinite(moved).all())
            out[part] = moved
    return finite


def _weigh(x: np.ndarray, centers: Centers, maps: Maps, score: np.ndarray, m: int) -> None:
    """Write the weights of the centres for the first ``m`` rows to ``score``, not normalised."""
    d, some = centers.center.shape[1], x[:m]
    # Exponents are minus a squared distance, so up to rounding they are not positive. For most rows the
    # largest is not so small that the weights underflow; subtracting it first would cost time.
    some[:, d + 1] = np.float32(-0.5) * np.einsum("ij,ij->i", some[:, :d], some[:, :d])
    weight = np.matmul(x, maps.soft, out=score)[:m]
    np.exp(weight, out=weight)
    total = score @ np.ones(score.shape[1], np.float32)
    most = 2.0 * len(centers.center)
    unsafe = np.flatnonzero(~((total[:m] >= UNDERFLOW) & (total[:m] <= most)))
    if unsafe.size:
        exponent = (x[:, : d + 1] @ centers.table)[unsafe]
        exponent -= exponent.max(1, keepdims=True)
        weight[unsafe] = np.exp(exponent * maps.sharpness)


def squared_distances(A: Floats, B: Floats) -> Floats:
    """(n, m) squared distances between rows of ``A`` and ``B``, which should be centred at the origin.

    They come from one matrix product. Far from the origin the squares cancel and rounding noise remains.
    """
    # scipy's cdist takes 1.6 to 2.6 times as long on one core, for 50 to 3,000 rows of 20 to 50 coordinates.
    D: Floats = (A**2).sum(1)[:, None] - 2.0 * (A @ B.T) + (B**2).sum(1)
    np.maximum(D, 0.0, out=D)
    return D
