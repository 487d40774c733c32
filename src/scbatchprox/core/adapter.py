"""The Adapter moves cells by a scale and a shift per row and coordinate, and tells how far each batch moves.

Fitting is elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadValue, Parameter
from ..io import store
from ..kernels.arrays import Floats
from ..kernels.blocks import (
    RowNumbers,
    is_native,
    map_runs,
    native,
    native_blocks,
    output_dtype,
    split,
)
from ..kernels.loops import affine
from ..kernels.products import mixed_into
from ..kernels.threads import get_num_threads, parallel_map
from .checks import check_embedding, check_out, nonfinite_error
from .labels import Labels, OfBatches, label_array
from .moments import CACHE_BYTES, Anchors, Moments
from .shown import count

__all__ = ["Adapter", "displacement", "length"]


@dataclass(frozen=True, eq=False, repr=False)
class Adapter(OfBatches):
    r"""A batch-conditioned FiLM adapter: :math:`\tilde z_i = \gamma_{b_i} \odot z_i + \beta_{b_i}`.

    With ``anchors`` a batch has several rows, and a cell follows those of its batch that it is close to:

    .. math::
        \tilde z_i = \sum_{k \in b_i} r_{ik}\,(\gamma_k \odot z_i + \beta_k), \qquad
        r_{ik} \propto \exp(-\lVert z_i - a_k \rVert^2 / 2 h_b) .

    Attributes
    ----------
    batches
        (B,) distinct labels, sorted.
    batch
        (R,) position in ``batches`` of each row's batch, in order.
    scale, shift
        (R, d) float64, :math:`\gamma` and :math:`\beta`.
    anchors
        (R, d) :math:`a_k`, positions of the populations; ``None`` with one row per batch.
    bandwidth
        (B,) :math:`h_b`, a variance; ``None`` without anchors.

    Examples
    --------
    >>> import numpy as np
    >>> from scbatchprox import Adapter
    >>> adapter = Adapter.per_batch(["a", "b"], np.ones((2, 1)), np.array([[2.5], [-2.5]]))
    >>> adapter.apply(np.array([[0.0], [5.0]]), ["a", "b"]).ravel().tolist()
    [2.5, 2.5]
    """

    _per_batch = ("bandwidth",)

    scale: Floats
    shift: Floats
    anchors: Floats | None = None
    bandwidth: Floats | None = None

    def _facts(self) -> str:
        return f"{self._of_batches()}, {count(self.n_dims, 'coordinate')}"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("scale", "shift"):
            entries = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, entries)
        shapes = (self.scale.shape, self.shift.shape)
        if self.scale.ndim != 2 or shapes != ((self.n_rows, self.scale.shape[1]),) * 2:
            raise BadValue(
                f"Expected scale and shift of one shape ({self.n_rows}, d), found {shapes}."
            )
        if self.anchors is None and not (self.one_each and self.bandwidth is None):
            raise BadValue(
                f"Expected one row per batch, or anchors, found {self.n_rows} rows for "
                f"{self.batches.size} batches and no anchors."
            )
        if self.anchors is not None:
            found = self.anchors.shape, np.asarray(self.bandwidth).shape
            if found != (self.scale.shape, self.batches.shape):
                raise BadValue(
                    f"Expected anchors and bandwidth of shapes {self.scale.shape} and "
                    f"{self.batches.shape}, found {found}."
                )
            if (np.asarray(self.bandwidth) < 0).any():
                raise BadValue("Expected a bandwidth >= 0, found a negative one.")
        self._check_finite("scale", "shift", "anchors", "bandwidth")

    @classmethod
    def per_batch(cls, batches: Any, scale: Floats, shift: Floats) -> Adapter:
        """Return the adapter with one row per batch."""
        return cls(batches, np.arange(len(batches)), scale, shift)

    @classmethod
    def identity(cls, batches: Any, n_dims: int) -> Adapter:
        """Return the adapter that moves nothing."""
        batches = label_array(sorted(np.asarray(batches).tolist()))
        shape = (batches.size, n_dims)
        return cls.per_batch(batches, np.ones(shape), np.zeros(shape))

    @property
    def n_dims(self) -> int:
        """The number of coordinates d."""
        return int(self.scale.shape[1])

    @property
    def moves(self) -> bool:
        """Whether any cell is moved."""
        return bool((self.scale != 1).any() or (self.shift != 0).any())

    def apply(self, Z: Any, batch: Any = None, *, out: np.ndarray | None = None) -> np.ndarray:
        """Refine cells (N, d) of known batches; ``batch=None`` if there is only one.

        Float32 stays float32; other types become float64. The result is always dense. ``out`` may be
        ``Z`` itself.
        """
        return self._map(Z, batch, out)

    def apply_finite(
        self, Z: Any, labels: Labels, out: np.ndarray | None = None, *, largest: float = np.inf
    ) -> np.ndarray:
        """:meth:`apply` to cells that are known to be finite, such as cells that were just fitted.

        ``largest`` is a bound on their absolute values.
        """
        return self._map(Z, labels, out, largest)

    def inverse(self, Z: Any, batch: Any = None, *, out: np.ndarray | None = None) -> np.ndarray:
        """Return refined cells to their unrefined positions; for adapters with one row per batch."""
        if self.anchors is not None:
            raise BadValue(
                "Expected an adapter with one row per batch to invert, found one with a row per "
                "population: a refined cell does not determine which rows moved it; keep the unrefined "
                "embedding, or fit with ", Parameter("conditioned=False"), ".",
            )  # fmt: skip
        if not self.scale.all():
            b, j = np.argwhere(self.scale == 0)[0]
            raise BadValue(
                f"Expected non-zero scales to invert, found 0 for batch "
                f"{self.batches.tolist()[b]!r}, column {j}."
            )
        inverted = replace(self, scale=1.0 / self.scale, shift=-self.shift / self.scale)
        return inverted._map(Z, batch, out)

    def eased(self, strength: float) -> Adapter:
        r"""Return a part of the refinement: :math:`z + \text{strength}\,(\tilde z - z)`."""
        if strength == 1:
            return self  # without rounding
        return replace(self, scale=1.0 + strength * (self.scale - 1.0), shift=strength * self.shift)

    def movement(self, moments: Moments) -> pd.DataFrame:
        """Return how far the adapter moves each batch of ``moments``, one line per batch.

        ``moved`` is the root mean squared displacement of a cell, ``mean_moved`` that of the batch's
        mean, and ``relative`` is ``moved`` over the standard deviation of the batch. With a row per
        population, the numbers assume that a cell follows the row of its own population only.
        """
        rows = moments.by_batch if self.anchors is None else moments
        own = self.rows_of(rows.batches)
        scale, shift = self.scale[own], self.shift[own]
        whole, at = rows.by_batch, rows.start[:-1]
        u = scale - 1.0
        v = shift + rows.mean * u
        share = (rows.n / whole.n[rows.batch])[:, None]
        moved = np.sqrt(np.add.reduceat(share * (rows.var * u**2 + v**2), at).sum(1))
        mean_moved = displacement(rows, scale, shift)
        spread = np.sqrt(whole.var.sum(1))
        return pd.DataFrame(
            {
                "n_cells": whole.n,
                "moved": moved,
                "mean_moved": np.sqrt((mean_moved**2).sum(1)),
                "relative": np.divide(moved, spread, out=np.zeros_like(moved), where=spread > 0),
                "scale_min": np.minimum.reduceat(scale.min(1), at),
                "scale_median": _medians(rows, scale),
                "scale_max": np.maximum.reduceat(scale.max(1), at),
            },
            index=pd.Index(whole.batches.tolist(), name="batch"),
        )

    def save(self, path: str | Path) -> None:
        """Write the adapter to a safetensors file; see the documentation for its layout."""
        store.save(path, "adapter", self.tensors(), self.batches, {})

    def tensors(self) -> dict[str, np.ndarray]:
        """The arrays that a file stores."""
        found = {"batch": self.batch, "scale": self.scale, "shift": self.shift}
        if self.anchors is not None and self.bandwidth is not None:
            found |= {"anchor": self.anchors, "bandwidth": self.bandwidth}
        return found

    @classmethod
    def from_tensors(cls, batches: np.ndarray, found: dict[str, np.ndarray]) -> Adapter:
        """The adapter from the arrays of a file."""
        rows = store.row_map(found, "", batches.size)
        return cls(
            batches,
            rows,
            found["scale"],
            found["shift"],
            found.get("anchor"),
            found.get("bandwidth"),
        )

    @classmethod
    def load(cls, path: str | Path) -> Adapter:
        """Read the adapter from a file written by :meth:`save`, or from a saved model."""
        stored = store.load(path, ("adapter", "model"))
        return cls.from_tensors(stored.batches, stored.tensors)

    def _map(
        self, Z: Any, batch: Any, out: np.ndarray | None, largest: float = np.nan
    ) -> np.ndarray:
        Z = check_embedding(Z)
        labels = self._labels(Z, batch)
        if out is None:
            return self._moved(Z, labels, np.empty(Z.shape, output_dtype(Z)))
        check_out(out, Z)
        # Bad input must not change the caller's array. Without `out`, the check comes later.
        largest = _largest(Z) if np.isnan(largest) else largest
        if np.isnan(largest):
            raise nonfinite_error(Z)
        if self._cannot_overflow(largest, out.dtype):
            return self._moved(Z, labels, out)
        out[:] = self._moved(Z, labels, np.empty(Z.shape, out.dtype))  # the results may overflow
        return out

    def _cannot_overflow(self, largest: float, dtype: np.dtype[Any]) -> bool:
        """Whether results are finite for all cells with absolute values up to ``largest``."""
        with np.errstate(over="ignore", invalid="ignore"):
            result = largest * np.abs(self.scale).max(initial=0.0)
            result += np.abs(self.shift).max(initial=0.0)
            if self.anchors is None:
                return bool(result < np.finfo(dtype).max)
            # Squared distances to the anchors are computed in single precision.
            squares = self.n_dims * (2.0 * largest + np.abs(self.anchors).max(initial=0.0)) ** 2
        return bool(result < np.finfo(dtype).max and squares < np.finfo(np.float32).max)

    def _moved(self, Z: Any, labels: Labels, out: np.ndarray) -> np.ndarray:
        work = self._affine if self._whole.all() else self._mixture
        if not work(Z, labels.codes, out):
            raise nonfinite_error(Z)
        return out

    def _labels(self, Z: Any, batch: Any) -> Labels:
        if Z.shape[1] != self.n_dims:
            raise BadValue(f"Expected {self.n_dims} coordinates per cell, found {Z.shape[1]}.")
        if batch is not None:
            return Labels.of(batch, Z.shape[0]).within(self.batches)
        if self.batches.size > 1:
            raise BadValue(
                f"Expected a batch label per cell, found none, and the adapter knows "
                f"{self.batches.size} batches."
            )
        return Labels(np.zeros(Z.shape[0], np.int32), self.batches)

    @cached_property
    def _anchored(self) -> Anchors:
        assert self.anchors is not None
        return Anchors(self.batches, self.batch, self.anchors)

    @cached_property
    def _whole(self) -> np.ndarray:
        """(B,) batches whose rows are equal: any mixture of them is the first row."""
        begin = self.start[:-1]
        first = begin[self.batch]
        same = (self.shift == self.shift[first]).all(1) & (self.scale == self.scale[first]).all(1)
        return np.asarray(np.logical_and.reduceat(same, begin))

    def _affine(self, Z: Any, codes: np.ndarray, out: np.ndarray) -> bool:
        """Move cells by the row of their batch; return whether all results are finite."""
        direct = is_native(out)
        scale, shift = self.scale[self.start[:-1]], self.shift[self.start[:-1]]

        def part(rows: tuple[int, int]) -> bool:
            finite = True
            for lo, hi, block in native_blocks(Z, *rows):
                piece = out[lo:hi] if direct else np.empty(block.shape, out.dtype)
                finite &= affine(block, codes[lo:hi], scale, shift, piece)
                if not direct:
                    out[lo:hi] = piece
            return finite

        # One contiguous part per thread: with many small ones the threads wait for each other's page faults.
        return all(parallel_map(part, split(Z.shape[0], get_num_threads())))

    def _mixture(self, Z: Any, codes: np.ndarray, out: np.ndarray) -> bool:
        """Move cells by a mixture of the rows of their batch; return whether all results are finite."""
        anchors, bandwidth = self._anchored, self.bandwidth
        assert bandwidth is not None

        def run(b: int, rows: RowNumbers) -> bool:
            centers, own = anchors.of_batch(b), anchors.own(b)
            if self._whole[b]:
                block = native(Z[rows])
                moved, first = np.empty(block.shape, out.dtype), slice(own.start, own.start + 1)
                row = np.zeros(len(block), codes.dtype)
                finite = affine(block, row, self.scale[first], self.shift[first], moved)
                out[rows] = moved
                return finite
            u = self.scale[own] - 1.0
            v = self.shift[own] + u * anchors.origin[b]
            return mixed_into(Z, rows, centers, u, v, float(bandwidth[b]), out)

        return all(finite for _, finite in map_runs(run, codes, self.batches.size))


def _largest(Z: Any) -> float:
    """The largest absolute value of a matrix; NaN if any value is not finite."""
    rows = max(1, CACHE_BYTES // (8 * Z.shape[1]))

    def part(edges: tuple[int, int]) -> float:
        blocks = (
            np.abs(block[lo : lo + rows]).max()
            for _, _, block in native_blocks(Z, *edges)
            for lo in range(0, len(block), rows)
        )
        return float(np.max(list(blocks)))  # NaN wins

    found = float(np.max(parallel_map(part, split(Z.shape[0], get_num_threads()))))
    return found if np.isfinite(found) else np.nan


def displacement(rows: Moments, scale: Floats, shift: Floats) -> Floats:
    """(B, d) displacement of the mean of each batch, if cells follow the row of their population only."""
    v = shift + rows.mean * (scale - 1.0)
    share = (rows.n / rows.by_batch.n[rows.batch])[:, None]
    mean_displacement: Floats = np.add.reduceat(share * v, rows.start[:-1])
    return mean_displacement


def length(rows: Moments, v: Floats) -> Floats:
    """(B,) root mean squared length of displacements ``v`` (R, d) of rows, weighted by cells."""
    # A power of two: no square overflows, and no bit depends on the other batches.
    size = np.ldexp(1.0, np.frexp(np.abs(v).max(initial=0.0))[1] - 1)
    share = rows.n / rows.by_batch.n[rows.batch]
    squares = np.add.reduceat(share * ((v / size) ** 2).sum(1), rows.start[:-1])
    return np.asarray(size * np.sqrt(squares))


def _medians(rows: Moments, scale: Floats) -> Floats:
    """(B,) the median of all scales of each batch."""
    if rows.one_each:  # at once: there may be very many batches
        return np.asarray(np.median(scale, axis=1))
    return np.array([np.median(part) for part in np.split(scale, rows.start[1:-1])])
