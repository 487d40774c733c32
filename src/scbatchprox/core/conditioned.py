"""Adapters conditioned on population as well as batch: a cell follows those of its batch it is close to."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import BadValue
from ..io import store as _store
from ..kernels.arrays import Floats
from ..kernels.products import Maps, mixed_into
from ..kernels.runs import Rows, map_runs
from .adapter import check_rows, mapped, movement_table
from .anchors import Anchors
from .labels import Labels
from .populations import Populations

__all__ = ["PopulationAdapter"]


@dataclass(frozen=True, eq=False)
class PopulationAdapter:
    r"""One FiLM row per population, and every cell a soft mixture of those of its batch.

    .. math::
        \tilde z_i = \sum_{k \in b_i} r_{ik}\,(\gamma_k \odot z_i + \beta_k), \qquad
        r_{ik} \propto \exp(-\lVert z_i - a_k \rVert^2 / 2 h_b)

    with the anchors :math:`a_k` of the cell's own batch. With one population a batch it is the
    paper's adapter.

    Attributes
    ----------
    anchors
        Where the populations of each batch are.
    bandwidth
        (B,) :math:`h_b`.
    scale, shift
        (P, d) float64, :math:`\gamma` and :math:`\beta` of each population.
    """

    anchors: Anchors
    bandwidth: Floats
    scale: Floats
    shift: Floats

    def __post_init__(self) -> None:
        check_rows(self, self.anchors.batch.size)

    @classmethod
    def of(
        cls, populations: Populations, scale: Floats, shift: Floats, bandwidth: float
    ) -> PopulationAdapter:
        """Rows fitted to populations; a cell sees ``bandwidth`` times their width."""
        return cls(populations.anchors, bandwidth * populations.within, scale, shift)

    @property
    def batches(self) -> np.ndarray:
        """(B,) batches, sorted."""
        return self.anchors.batches

    @property
    def width(self) -> int:
        """The number of coordinates d."""
        return int(self.scale.shape[1])

    def apply(self, Z: Any, batch: Any = None, *, out: np.ndarray | None = None) -> np.ndarray:
        """Refine cells (N, d) of known batches; as :meth:`Adapter.apply`."""
        return self._map(Z, batch, out)

    def apply_finite(self, Z: Any, labels: Labels, out: np.ndarray | None = None) -> np.ndarray:
        """:meth:`apply` to cells that are known to be finite, as those just fitted to are."""
        return self._map(Z, labels, out, known_finite=True)

    def inverse(self, Z: Any, batch: Any = None, *, out: np.ndarray | None = None) -> np.ndarray:
        """Say that there is no way back: where a cell came from decides how it moved."""
        raise BadValue(
            "Expected an adapter with one row per batch to invert, found one that is conditioned on "
            "populations; keep the embedding that was refined, or fit with conditioned=False."
        )

    def eased(self, strength: float) -> PopulationAdapter:
        """Go only part of the way, as :meth:`Adapter.eased`."""
        if strength == 1:
            return self
        scale, shift = 1.0 + strength * (self.scale - 1.0), strength * self.shift
        return PopulationAdapter(self.anchors, self.bandwidth, scale, shift)

    def joined(self, other: PopulationAdapter) -> PopulationAdapter:
        """Return an adapter for the batches of both; no row is changed."""
        anchors, order = self.anchors.joined(other.anchors)
        rows = [
            np.concatenate([getattr(a, f) for a in (self, other)])[order]
            for f in ("scale", "shift")
        ]
        bandwidth = np.empty(anchors.batches.size)
        for part in (self, other):
            bandwidth[np.searchsorted(anchors.batches, part.batches)] = part.bandwidth
        return PopulationAdapter(anchors, bandwidth, *rows)

    def without(self, batch: Hashable) -> PopulationAdapter:
        """Return an adapter that does not know a batch; no other row is changed."""
        keep = self.batches != batch
        anchors, rows = self.anchors.select(self.batches[keep].tolist())
        return PopulationAdapter(anchors, self.bandwidth[keep], self.scale[rows], self.shift[rows])

    def movement(self, populations: Populations) -> pd.DataFrame:
        """Return what the adapter does to each batch, as :meth:`Adapter.movement`.

        Every cell is taken to follow its own population alone.
        """
        rows = np.isin(self.batches, populations.batches)[self.anchors.batch]
        return movement_table(populations, populations.rows, self.scale[rows], self.shift[rows])

    def save(self, path: str | Path) -> None:
        """Write the adapter to a safetensors file; see the documentation for its layout."""
        _store.save(path, "adapter", self.tensors(), self.batches, {})

    @classmethod
    def load(cls, path: str | Path) -> PopulationAdapter:
        """Read the adapter from a file written by :meth:`save`, or from a saved model."""
        stored = _store.load(path, ("adapter", "model"))
        if "anchor" not in stored.tensors:
            raise BadValue(
                f"Expected an adapter that is conditioned on populations, found one with a row per "
                f"batch in {path}; Adapter.load reads it."
            )
        return cls.from_tensors(stored.batches, stored.tensors)

    def tensors(self) -> dict[str, np.ndarray]:
        """What a file holds of the adapter."""
        return {
            "scale": self.scale,
            "shift": self.shift,
            "anchor": self.anchors.center,
            "anchor_batch": np.asarray(self.anchors.batch, np.int64),
            "bandwidth": self.bandwidth,
        }

    @classmethod
    def from_tensors(cls, batches: np.ndarray, found: dict[str, np.ndarray]) -> PopulationAdapter:
        """The adapter of what a file holds."""
        anchors = Anchors(batches, found["anchor_batch"], found["anchor"])
        return cls(anchors, found["bandwidth"], found["scale"], found["shift"])

    def _map(
        self, Z: Any, batch: Any, out: np.ndarray | None, known_finite: bool = False
    ) -> np.ndarray:
        anchors = self.anchors

        def work(Z: Any, codes: np.ndarray, out: np.ndarray) -> bool:
            def run(b: int, rows: Rows) -> bool:
                centers, own = anchors.of_batch(b), anchors.own(b)
                u = self.scale[own] - 1.0
                v = self.shift[own] + u * anchors.origin[b]
                maps = Maps.of(centers, u, v, float(self.bandwidth[b]))
                return mixed_into(Z, rows, centers, maps, out)

            return all(finite for _, finite in map_runs(run, codes, anchors.batches.size))

        return mapped(self, Z, batch, work, out, known_finite)
