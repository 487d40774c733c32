r"""Cells against the centres of their batch by matrix products: nearest ones, sums, and soft mixtures.

A row x and a centre c, both about a point amid the batch and in single precision, score
:math:`x \cdot c - |c|^2 / 2`: minus half their squared distance, but for a term of the row alone.
:class:`scbatchprox.core.anchors.Anchors` chooses the point, so embeddings far from the origin lose nothing.

Every product has the same number of rows, some of which nobody asks for: linear algebra takes other ways for
fewer rows, which round differently. So what becomes of a cell does not depend on which others come with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from .arrays import Floats, Ints
from .blocks import is_native, native, output_dtype
from .kmeans import LEAST, padding
from .runs import BLOCK_ROWS, Rows, blocks

__all__ = ["Adder", "Centers", "Maps", "mixed_into", "sums_around"]

#: Weights of a row that add up to less than this are too close to underflow, and are taken anew.
FAINT = 1e-20


@dataclass(frozen=True, eq=False)
class Centers:
    """The centres of one batch.

    Attributes
    ----------
    center
        (K, d) where they are.
    origin
        (d,) a point amid them; float32 if rows of that type can be subtracted from it as they are.
    """

    center: Floats
    origin: np.ndarray
    table: np.ndarray

    @cached_property
    def padded(self) -> np.ndarray:
        """The table with columns that are never nearest."""
        more = np.zeros((len(self.table), padding(len(self.center))), np.float32)
        more[-1] = LEAST
        return np.concatenate([self.table, more], axis=1)

    @classmethod
    def of(cls, center: Floats, origin: Floats) -> Centers:
        """Centres, and the table (d + 1, K) whose product with rows and a 1 gives scores."""
        gap = center - origin
        table = np.concatenate([gap.T, -0.5 * (gap**2).sum(1)[None]]).astype(np.float32)
        narrow = origin.astype(np.float32)
        return cls(center, narrow if (narrow == origin).all() else origin, table)

    def seen(self, block: np.ndarray, X: np.ndarray) -> np.ndarray:
        """Rows about the origin, in the first columns of ``X``; the next one is 1."""
        n, d = block.shape
        if block.dtype == np.float64 or self.origin.dtype == np.float32:
            np.subtract(block, self.origin, out=X[:n, :d], casting="same_kind")
        else:
            X[:n, :d] = block.astype(np.float64) - self.origin
        X[:n, d] = 1.0
        return X


class Room:
    """Space for the blocks of a run: memory that is fresh for each costs more than the products."""

    def __init__(self, Z: Any, rows: Rows, width: int, n_centers: int) -> None:
        self.Z, self.rows = Z, rows
        self.x = np.zeros((BLOCK_ROWS, width), np.float32)
        self.score = np.empty((BLOCK_ROWS, n_centers), np.float32)
        self.read = np.empty((BLOCK_ROWS, Z.shape[1]), Z.dtype) if is_native(Z) else None

    def blocks(self) -> Iterator[tuple[Rows, np.ndarray]]:
        """Blocks of the run: which rows they are, and these; read the next one when done with one."""
        for part in blocks(self.rows):
            if self.read is None or isinstance(part, slice):
                yield part, native(self.Z[part])
            else:
                # Clipped rather than checked: numpy would make a copy to check first.
                yield part, self.Z.take(part, axis=0, out=self.read[: part.size], mode="clip")


def _nearest(block: np.ndarray, centers: Centers, room: Room) -> Ints:
    x = centers.seen(block, room.x)
    score = np.matmul(x, centers.padded, out=room.score)[: len(block)]
    return np.asarray(score.argmax(1))


def sums_around(Z: Any, rows: Rows, centers: Centers) -> tuple[Ints, Floats]:
    """Cells around each centre, (K,), and sums of their deviations from it and of the squares, (2, K, d)."""
    K, d = centers.center.shape
    n, sums = np.zeros(K, np.int64), np.zeros((2, K, d))
    room = Room(Z, rows, *centers.padded.shape)
    add = Adder(BLOCK_ROWS, d)
    with np.errstate(all="ignore"):
        for _, block in room.blocks():
            near = _nearest(block, centers, room)
            n += np.bincount(near, minlength=K)
            sums += add(block, near, centers.center)
    return n, sums


class Adder:
    """Sums of blocks of up to ``most`` rows by group, with space that is used again."""

    def __init__(self, most: int, width: int) -> None:
        self._room = np.empty(2 * most * width)
        self._belongs: Any = None

    def __call__(self, block: np.ndarray, group: Ints, center: Floats) -> Floats:
        """Sums (2, G, d) of rows about the centre of their group, and of the squares."""
        m, d, G = *block.shape, len(center)
        both = self._room[: 2 * m * d].reshape(2, m, d)
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
    r"""What the centres of one batch do to a row x about the origin: :math:`x + u_k x + v_k`.

    Attributes
    ----------
    u, v
        (K, d) of each, or (1, d) if all are the same; ``u`` is ``None`` if none scales.
    sharpness
        One over the width of the mixture.
    soft
        (d + 2, K) a table like that of the centres, for exponents: ``sharpness`` times minus half of the
        squared distance.
    """

    u: Floats | None
    v: Floats
    sharpness: np.float32
    soft: np.ndarray

    @classmethod
    def of(cls, centers: Centers, u: Floats, v: Floats, bandwidth: float) -> Maps:
        """Maps of the centres of a batch, (K, d) each."""
        # A batch whose populations are points has no width: its cells follow the nearest alone.
        sharpness = np.float32(1.0 / max(bandwidth, 1e-30))
        if (u == u[0]).all() and (v == v[0]).all():
            u, v = u[:1], v[:1]
        with np.errstate(over="ignore"):
            own = np.full((1, len(centers.center)), sharpness, np.float32)
            soft = np.concatenate([sharpness * centers.table, own])
        return cls(u if u.any() else None, v, sharpness, soft)


def mixed_into(Z: Any, rows: Rows, centers: Centers, maps: Maps, out: np.ndarray) -> bool:
    """``out_i = z_i + sum_k r_ik (u_k x_i + v_k)`` for rows of one batch; whether all are finite.

    ``r_ik`` is a softmax of minus half the squared distance over the width of the mixture.
    """
    room = Room(Z, rows, *maps.soft.shape)
    d = centers.center.shape[1]
    kind = np.promote_types(out.dtype, output_dtype(Z))
    v, u = maps.v.astype(kind), None if maps.u is None else maps.u.astype(kind)
    weight = room.score if kind == np.float32 else np.zeros(room.score.shape, kind)
    ones = np.ones(weight.shape[1], kind)
    way, stretch = np.empty((2, BLOCK_ROWS, d), kind)
    finite = True
    with np.errstate(all="ignore"):
        for part, found in room.blocks():
            block = found.astype(kind, copy=False)
            m = len(block)
            x = centers.seen(block, room.x)
            gap = x[:m, :d] if kind == np.float32 else block - centers.origin
            result = way[:m]
            if len(v) == 1:
                result[...] = v if u is None else v + u * gap
            else:
                _weigh(x, centers, maps, room.score, m)
                weight[:m] = room.score[:m]
                np.matmul(weight, v, out=way)
                if u is not None:
                    result += np.multiply(np.matmul(weight, u, out=stretch)[:m], gap)
                result /= (weight @ ones)[:m, None]
            result += block
            moved = result.astype(out.dtype, copy=False)
            finite &= bool(np.isfinite(moved).all())
            out[part] = moved
    return finite


def _weigh(x: np.ndarray, centers: Centers, maps: Maps, score: np.ndarray, m: int) -> None:
    """Write to ``score`` how the first ``m`` rows weigh the centres, up to a factor of the row."""
    d, some = centers.center.shape[1], x[:m]
    # Exponents are minus a squared distance: but for rounding none is above zero, and for most rows none is
    # so small that looking for the largest first would help.
    some[:, d + 1] = np.float32(-0.5) * np.einsum("ij,ij->i", some[:, :d], some[:, :d])
    weight = np.matmul(x, maps.soft, out=score)[:m]
    np.exp(weight, out=weight)
    total = score @ np.ones(score.shape[1], np.float32)
    most = 2.0 * len(centers.center)
    odd = np.flatnonzero(~((total[:m] >= FAINT) & (total[:m] <= most)))
    if odd.size:
        power = (x[:, : d + 1] @ centers.table)[odd]
        power -= power.max(1, keepdims=True)
        weight[odd] = np.exp(power * maps.sharpness)
