"""The Adapter moves cells: one scale and one shift per batch and coordinate. It knows no fitting."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadValue
from ..io import store as _store
from ..kernels.arrays import Floats
from ..kernels.blocks import is_native, native_blocks, output_dtype, split
from ..kernels.loops import affine
from ..kernels.threads import get_num_threads, parallel_map
from .checks import check_embedding, check_out, nonfinite_error, some_of
from .labels import Labels, label_array, union
from .moments import CACHE_BYTES, Moments

__all__ = ["Adapter"]


@dataclass(frozen=True, eq=False)
class Adapter:
    r"""A batch-conditioned FiLM adapter: :math:`\tilde z_i = \gamma_{b_i} \odot z_i + \beta_{b_i}`.

    Attributes
    ----------
    batches
        (B,) distinct labels, sorted.
    scale, shift
        (B, d) float64, :math:`\gamma` and :math:`\beta`.
    """

    batches: np.ndarray
    scale: Floats
    shift: Floats

    def __post_init__(self) -> None:
        object.__setattr__(self, "batches", np.asarray(self.batches))
        B = self.batches.shape[0]
        if len(set(self.batches.tolist())) < B:
            raise BadValue(f"Expected distinct batches, found {some_of(self.batches.tolist())}.")
        check_rows(self, B)

    @classmethod
    def identity(cls, batches: Any, width: int) -> Adapter:
        """Return the adapter that moves nothing."""
        batches = label_array(sorted(np.asarray(batches).tolist()))
        shape = (batches.size, width)
        return cls(batches, np.ones(shape), np.zeros(shape))

    @property
    def width(self) -> int:
        """The number of coordinates d."""
        return int(self.scale.shape[1])

    def apply(self, Z: Any, batch: Any = None, *, out: np.ndarray | None = None) -> np.ndarray:
        """Refine cells (N, d) of known batches; ``batch=None`` if there is only one.

        Float32 stays float32; other types become float64. The result is always dense. ``out`` may be
        ``Z`` itself.
        """
        return self._map(Z, batch, self.scale, self.shift, out)

    def apply_finite(self, Z: Any, labels: Labels, out: np.ndarray | None = None) -> np.ndarray:
        """:meth:`apply` to cells that are known to be finite, as those just fitted to are."""
        return self._map(Z, labels, self.scale, self.shift, out, known_finite=True)

    def inverse(self, Z: Any, batch: Any = None, *, out: np.ndarray | None = None) -> np.ndarray:
        """Take refined cells back to where they came from."""
        if not self.scale.all():
            b, j = np.argwhere(self.scale == 0)[0]
            raise BadValue(
                f"Expected non-zero scales to invert, found 0 for batch "
                f"{self.batches.tolist()[b]!r}, column {j}."
            )
        return self._map(Z, batch, 1.0 / self.scale, -self.shift / self.scale, out)

    def eased(self, strength: float) -> Adapter:
        r"""Go only part of the way: :math:`z + \text{strength}\,(\tilde z - z)`; 0 is the identity."""
        if strength == 1:
            return self  # to the bit
        return Adapter(self.batches, 1.0 + strength * (self.scale - 1.0), strength * self.shift)

    def joined(self, other: Adapter) -> Adapter:
        """Return an adapter for the batches of both; no row is changed."""
        batches = union(self.batches, other.batches)
        entries = np.empty((2, batches.size, self.width))
        for part in (self, other):
            at = np.searchsorted(batches, part.batches)
            entries[:, at] = part.scale, part.shift
        return Adapter(batches, *entries)

    def without(self, batch: Hashable) -> Adapter:
        """Return an adapter that does not know a batch; no other row is changed."""
        keep = self.batches != batch
        return Adapter(self.batches[keep], self.scale[keep], self.shift[keep])

    def movement(self, summary: Any) -> pd.DataFrame:
        """Return what the adapter does to each batch that it was fitted on, one row per batch.

        ``moved`` is the root mean squared distance that a cell travels and ``mean_moved`` the
        distance that the batch's mean does; ``relative`` is ``moved`` over the batch's own spread.
        """
        moments = summary.by_batch
        at = Labels(np.arange(moments.batches.size, dtype=np.int32), moments.batches)
        rows = at.within(self.batches).codes
        return movement_table(moments, moments, self.scale[rows], self.shift[rows])

    def save(self, path: str | Path) -> None:
        """Write the adapter to a safetensors file; see the documentation for its layout."""
        _store.save(path, "adapter", self.tensors(), self.batches, {})

    def tensors(self) -> dict[str, np.ndarray]:
        """What a file holds of the adapter."""
        return {"scale": self.scale, "shift": self.shift}

    @classmethod
    def from_tensors(cls, batches: np.ndarray, found: dict[str, np.ndarray]) -> Adapter:
        """The adapter of what a file holds."""
        if "anchor" in found:
            raise BadValue(
                "Expected an adapter with one row per batch, found one that is conditioned on "
                "populations; PopulationAdapter.load reads it."
            )
        return cls(batches, found["scale"], found["shift"])

    @classmethod
    def load(cls, path: str | Path) -> Adapter:
        """Read the adapter from a file written by :meth:`save`, or from a saved model."""
        stored = _store.load(path, ("adapter", "model"))
        return cls.from_tensors(stored.batches, stored.tensors)

    def _map(
        self,
        Z: Any,
        batch: Any,
        scale: Floats,
        shift: Floats,
        out: np.ndarray | None,
        known_finite: bool = False,
    ) -> np.ndarray:
        def work(Z: Any, codes: np.ndarray, out: np.ndarray) -> bool:
            direct = is_native(out)

            def part(rows: tuple[int, int]) -> bool:
                finite = True
                for lo, hi, block in native_blocks(Z, *rows):
                    piece = out[lo:hi] if direct else np.empty(block.shape, out.dtype)
                    finite &= affine(block, codes[lo:hi], scale, shift, piece)
                    if not direct:
                        out[lo:hi] = piece
                return finite

            # One stretch of rows a thread: many small ones take page faults of a fresh `out` in turns.
            return all(parallel_map(part, split(Z.shape[0], get_num_threads())))

        return mapped(self, Z, batch, work, out, known_finite)


def mapped(
    adapter: Any,
    Z: Any,
    batch: Any,
    work: Callable[[Any, np.ndarray, np.ndarray], bool],
    out: np.ndarray | None = None,
    known_finite: bool = False,
) -> np.ndarray:
    """Map cells (N, d) of batches that an adapter knows.

    ``work(Z, codes, out)`` writes the result and returns whether all of it is finite.
    """
    Z = check_embedding(Z)
    if Z.shape[1] != adapter.width:
        raise BadValue(f"Expected {adapter.width} coordinates per cell, found {Z.shape[1]}.")
    if batch is None and adapter.batches.size > 1:
        raise BadValue(
            f"Expected a batch label per cell, found none, and the adapter knows "
            f"{adapter.batches.size} batches."
        )
    labels = (
        Labels(np.zeros(Z.shape[0], np.int32), adapter.batches)
        if batch is None
        else Labels.of(batch, Z.shape[0]).within(adapter.batches)
    )
    if out is None:
        out = np.empty(Z.shape, output_dtype(Z))
    else:
        check_out(out, Z)
        # A caller's array must not be touched for bad input; a fresh one is just thrown away.
        if not known_finite and not _finite(Z):
            raise nonfinite_error(Z)
    if not work(Z, labels.codes, out):
        raise nonfinite_error(Z)
    return out


def check_rows(adapter: Any, n_rows: int) -> None:
    """Check the rows of an adapter and hold them as contiguous doubles."""
    for name in ("scale", "shift"):
        entries = np.ascontiguousarray(getattr(adapter, name), dtype=np.float64)
        object.__setattr__(adapter, name, entries)
    shapes = (adapter.scale.shape, adapter.shift.shape)
    if adapter.scale.ndim != 2 or shapes != ((n_rows, adapter.scale.shape[1]),) * 2:
        raise BadValue(f"Expected scale and shift of one shape ({n_rows}, d), found {shapes}.")
    for name in ("scale", "shift"):
        if not np.isfinite(getattr(adapter, name)).all():
            raise BadValue(f"Expected a finite {name}, found NaN or infinity.")


def movement_table(summary: Any, rows: Moments, scale: Floats, shift: Floats) -> pd.DataFrame:
    """What rows of an adapter do to the cells that they were fitted to, one line per batch.

    ``rows`` are the moments of the batches of ``summary``, or of parts of them, in the same order.
    """
    moments = summary.by_batch
    per_batch = rows.n.size == moments.n.size
    batch = np.arange(moments.n.size) if per_batch else summary.anchors.batch
    at = np.searchsorted(batch, np.arange(moments.n.size))
    u = scale - 1.0
    v = shift + rows.mean * u
    share = (rows.n / moments.n[batch])[:, None]
    moved = np.sqrt(np.add.reduceat(share * (rows.var * u**2 + v**2), at).sum(1))
    mean_moved = np.add.reduceat(share * v, at)
    spread = np.sqrt(moments.var.sum(1))
    return pd.DataFrame(
        {
            "n_cells": moments.n,
            "moved": moved,
            "mean_moved": np.sqrt((mean_moved**2).sum(1)),
            "relative": np.divide(moved, spread, out=np.zeros_like(moved), where=spread > 0),
            "scale_min": np.minimum.reduceat(scale.min(1), at),
            "scale_median": [np.median(x) for x in np.split(scale, at[1:])],
            "scale_max": np.maximum.reduceat(scale.max(1), at),
        },
        index=pd.Index(moments.batches.tolist(), name="batch"),
    )


def _finite(Z: Any) -> bool:
    rows = max(1, CACHE_BYTES // (8 * Z.shape[1]))

    def part(edges: tuple[int, int]) -> bool:
        return all(
            bool(np.isfinite(block[lo : lo + rows]).all())
            for _, _, block in native_blocks(Z, *edges)
            for lo in range(0, len(block), rows)
        )

    return all(parallel_map(part, split(Z.shape[0], get_num_threads())))
