"""Planted batch effects: the displacement of each cell.

An effect takes cells, their batches and types as codes, the typical distance between types and a random
generator, and returns the displacement of each cell. The first batch is fixed, since only relative
positions matter.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from scbatchprox.kernels.arrays import Floats, Ints

__all__ = ["Effect", "by_type", "field", "nothing", "scale", "shift"]

#: Number of waves whose sum is a random field.
_WAVES = 200

Effect = Callable[[Floats, Ints, Ints, float, np.random.Generator], Floats]


def nothing(Z: Floats, batch: Ints, types: Ints, unit: float, rng: np.random.Generator) -> Floats:
    """Return no displacement."""
    return np.zeros_like(Z)


def shift(size: float) -> Effect:
    """Return a shift of this size, in a random direction for each batch."""

    def effect(
        Z: Floats, batch: Ints, types: Ints, unit: float, rng: np.random.Generator
    ) -> Floats:
        by_batch = size * unit * _directions(int(batch.max()) + 1, Z.shape[1], rng)
        by_batch[0] = 0.0
        found: Floats = by_batch[batch]
        return found

    return effect


def by_type(common: float, own: float) -> Effect:
    """Return a shift common to all types of a batch, plus a shift of each type."""

    def effect(
        Z: Floats, batch: Ints, types: Ints, unit: float, rng: np.random.Generator
    ) -> Floats:
        moved = shift(common)(Z, batch, types, unit, rng)
        n_types = int(types.max()) + 1
        pairs = _directions((int(batch.max()) + 1) * n_types, Z.shape[1], rng)
        moved += own * unit * pairs[batch * n_types + types] * (batch > 0)[:, None]
        return moved

    return effect


def field(size: float) -> Effect:
    r"""Return a smooth random displacement; ``size`` is its root mean square.

    :math:`\sum_j a_j \cos(w_j \cdot z + \varphi_j)` with normal :math:`a_j` and :math:`w_j`. The standard
    deviation of :math:`w_j` is one over the distance between types, so cells of one type have similar
    displacements and cells of different types do not.
    """

    def effect(
        Z: Floats, batch: Ints, types: Ints, unit: float, rng: np.random.Generator
    ) -> Floats:
        moved = np.zeros_like(Z)
        for b in range(1, int(batch.max()) + 1):
            waves = rng.normal(size=(Z.shape[1], _WAVES)) / unit
            phase = rng.uniform(0.0, 2.0 * np.pi, _WAVES)
            weight = rng.normal(size=(_WAVES, Z.shape[1]))
            rows = batch == b
            found = np.cos((Z[rows] - Z.mean(0)) @ waves + phase) @ weight
            moved[rows] = found * (size * unit / np.sqrt((found**2).sum(1).mean()))
        return moved

    return effect


def scale(low: float, high: float, size: float) -> Effect:
    """Return a scale of each coordinate about the mean of the batch, plus a shift of this size."""

    def effect(
        Z: Floats, batch: Ints, types: Ints, unit: float, rng: np.random.Generator
    ) -> Floats:
        moved = shift(size)(Z, batch, types, unit, rng)
        for b in range(1, int(batch.max()) + 1):
            rows = batch == b
            factor = np.exp(rng.uniform(np.log(low), np.log(high), Z.shape[1]))
            moved[rows] += (factor - 1.0) * (Z[rows] - Z[rows].mean(0))
        return moved

    return effect


def _directions(n: int, d: int, rng: np.random.Generator) -> Floats:
    """Return random directions of length 1."""
    found = rng.normal(size=(n, d))
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))
