"""The Adapter moves cells: one scale and one shift per batch and coordinate. It knows no fitting."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from . import _store
from ._blocks import is_native, native_blocks, split
from ._kernels import affine, all_finite
from ._threads import get_num_threads, parallel_map
from ._types import Floats
from ._validate import check_embedding, check_out, nonfinite_error, output_dtype, some_of
from .errors import BadValue
from .labels import Labels, label_array, union
from .moments import Moments

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
        for name in ("scale", "shift"):
            entries = np.ascontiguousarray(getattr(self, name), dtype=np.float64)
            object.__setattr__(self, name, entries)
        B = self.batches.shape[0]
        if len(set(self.batches.tolist())) < B:
            raise BadValue(f"Expected distinct batches, found {some_of(self.batches.tolist())}.")
        shapes = (self.scale.shape, self.shift.shape)
        if self.scale.ndim != 2 or shapes != ((B, self.scale.shape[1]),) * 2:
            raise BadValue(f"Expected scale and shift of one shape ({B}, d), found {shapes}.")
        for name in ("scale", "shift"):
            if not np.isfinite(getattr(self, name)).all():
                raise BadValue(f"Expected a finite {name}, found NaN or infinity.")

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

    def movement(self, moments: Moments) -> pd.DataFrame:
        """Return what the adapter does to each batch that it was fitted on, one row per batch.

        ``moved`` is the root mean squared distance that a cell travels and ``mean_moved`` the
        distance that the batch's mean does; ``relative`` is ``moved`` over the batch's own spread.
        """
        at = Labels(np.arange(moments.batches.size, dtype=np.int32), moments.batches)
        rows = at.within(self.batches).codes
        u = self.scale[rows] - 1.0
        v = self.shift[rows] + moments.mean * u
        moved = np.sqrt((moments.var * u**2 + v**2).sum(1))
        spread = np.sqrt(moments.var.sum(1))
        return pd.DataFrame(
            {
                "n_cells": moments.n,
                "moved": moved,
                "mean_moved": np.sqrt((v**2).sum(1)),
                "relative": np.divide(moved, spread, out=np.zeros_like(moved), where=spread > 0),
                "scale_min": self.scale[rows].min(1),
                "scale_median": np.median(self.scale[rows], axis=1),
                "scale_max": self.scale[rows].max(1),
            },
            index=pd.Index(moments.batches.tolist(), name="batch"),
        )

    def save(self, path: str | Path) -> None:
        """Write the adapter to a safetensors file; see the documentation for its layout."""
        _store.save(path, "adapter", {"scale": self.scale, "shift": self.shift}, self.batches, {})

    @classmethod
    def load(cls, path: str | Path) -> Adapter:
        """Read the adapter from a file written by :meth:`save`, or from a saved model."""
        stored = _store.load(path, ("adapter", "model"))
        return cls(stored.batches, stored.tensors["scale"], stored.tensors["shift"])

    def _map(
        self,
        Z: Any,
        batch: Any,
        scale: Floats,
        shift: Floats,
        out: np.ndarray | None,
        known_finite: bool = False,
    ) -> np.ndarray:
        Z = check_embedding(Z)
        if Z.shape[1] != self.width:
            raise BadValue(f"Expected {self.width} coordinates per cell, found {Z.shape[1]}.")
        if batch is None and self.batches.size > 1:
            raise BadValue(
                f"Expected a batch label per cell, found none, and the adapter knows "
                f"{self.batches.size} batches."
            )
        labels = (
            Labels(np.zeros(Z.shape[0], np.int32), self.batches)
            if batch is None
            else Labels.of(batch, Z.shape[0]).within(self.batches)
        )
        if out is None:
            out = np.empty(Z.shape, output_dtype(Z))
        else:
            check_out(out, Z)
            # A caller's array must not be touched for bad input; a fresh one is just thrown away.
            if not known_finite and not _finite(Z):
                raise nonfinite_error(Z)
        direct = is_native(out)

        def part(rows: tuple[int, int]) -> bool:
            finite = True
            for lo, hi, block in native_blocks(Z, *rows):
                piece = out[lo:hi] if direct else np.empty(block.shape, out.dtype)
                finite &= affine(block, labels.codes[lo:hi], scale, shift, piece)
                if not direct:
                    out[lo:hi] = piece
            return finite

        # One stretch of rows a thread: many small ones take page faults of a fresh `out` in turns.
        if not all(parallel_map(part, split(Z.shape[0], get_num_threads()))):
            raise nonfinite_error(Z)
        return out


def _finite(Z: Any) -> bool:
    def part(rows: tuple[int, int]) -> bool:
        return all(all_finite(block) for _, _, block in native_blocks(Z, *rows))

    return all(parallel_map(part, split(Z.shape[0], get_num_threads())))
