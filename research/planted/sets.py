"""Cells of one batch, split into several batches with a known effect, so that the truth is known per cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.spatial.distance import pdist
from sklearn.neighbors import NearestNeighbors

from scbatchprox.core.checks import some_of
from scbatchprox.core.labels import Labels
from scbatchprox.errors import BadKey, BadValue
from scbatchprox.evaluate.cells import embedding
from scbatchprox.kernels.arrays import Floats, Ints

from .effects import Effect, by_type, field, nothing, scale, shift
from .splits import (
    GONE,
    Split,
    disjoint,
    halves,
    many,
    many_missing,
    missing,
    private,
    pure,
    two_shared,
    unequal,
)

__all__ = [
    *("KINDS", "Kind", "Planted"),
    *(
        "displacement_error",
        "knowing_types",
        "plant",
        "possible",
        "relative_error",
        "type_distance",
    ),
]

#: Cells of other batches around a cell, with whose error its own is compared.
_AROUND = 15


@dataclass(frozen=True)
class Kind:
    """How batches are made, and which effect is planted.

    Attributes
    ----------
    about
        Description for the page.
    split, effect
        The batch of each cell, and the displacement of each cell.
    """

    about: str
    split: Split
    effect: Effect = nothing

    @property
    def null(self) -> bool:
        """Whether nothing is displaced, so that no refinement is the best refinement."""
        return self.effect is nothing


@dataclass(frozen=True, eq=False)
class Planted:
    """Cells in planted batches, and the displacement that would undo the effect.

    Attributes
    ----------
    Z, batch, cell_type
        (N, d) cells with the effect, and one label of each kind per cell.
    truth
        (N, d) displacement from ``Z`` to the original cells, up to a translation of all cells.
    rows
        (N,) positions of these cells among the original cells.
    unit
        The typical distance between types, before the effect.
    """

    Z: Floats
    batch: np.ndarray
    cell_type: np.ndarray
    truth: Floats
    rows: Ints
    unit: float


def _half(n: int) -> int:
    return n // 2


KINDS: dict[str, Kind] = {
    "null": Kind("two random halves", halves),
    "null_unequal": Kind(
        "two random batches, 1 to 50, at least 30 cells in the small one", unequal(50)
    ),
    "null_many_10": Kind("10 random batches of at least 40 cells", many(10, 3)),
    "null_many_30": Kind("30 random batches of at least 40 cells", many(30, 11)),
    "missing_one": Kind("halves, one without a type", missing(lambda n: 1)),
    "missing_several": Kind(
        "halves, one without half of the types (at least two)", missing(lambda n: max(2, _half(n)))
    ),
    "private": Kind("halves, each without a different type", private),
    "missing_many_10": Kind(
        "10 random batches, each without a third of the types", many_missing(10, 3)
    ),
    "missing_many_30": Kind(
        "30 random batches, each without a third of the types", many_missing(30, 11)
    ),
    "disjoint_2x1": Kind("two batches of one type each", disjoint(2, 1)),
    "disjoint_2x2": Kind("two batches of two types each, none shared", disjoint(2, 2)),
    "disjoint_4x1": Kind("four batches of one type each", disjoint(4, 1)),
    "pure": Kind("four random batches, the last with one type only", pure),
    **{
        f"shift_{size:g}": Kind(
            f"halves, one shifted by {size:g} of the distance between types", halves, shift(size)
        )
        for size in (0.1, 0.3, 1.0, 3.0, 10.0)
    },
    "shift_missing": Kind(
        "one half shifted by 1, and without half of the types",
        missing(lambda n: max(1, _half(n))),
        shift(1.0),
    ),
    "shift_two_shared": Kind(
        "halves that share two of up to six types, one shifted by 1", two_shared, shift(1.0)
    ),
    "type_shift": Kind(
        "one half shifted by 0.5, and each of its types by 0.25 more", halves, by_type(0.5, 0.25)
    ),
    "field": Kind("one half displaced by 0.5 in a smooth random field", halves, field(0.5)),
    "scale": Kind(
        "one half shifted by 0.5, its coordinates scaled by 0.7 to 1.4",
        halves,
        scale(0.7, 1.4, 0.5),
    ),
    "shift_many": Kind(
        "10 batches, each shifted by 1 in a different direction", many(10, 3), shift(1.0)
    ),
}


def plant(Z: Any, cell_type: Any, kind: str, *, seed: int = 0) -> Planted:
    """Make batches with a known effect out of cells that have none.

    Parameters
    ----------
    Z, cell_type
        (N, d) cells of one batch, and the type of each.
    kind
        One of :data:`KINDS`.
    seed
        Seed of everything random. Kinds with the same split have the same cells in the same batches, and
        shifts of all sizes have the same direction, so that they can be compared.
    """
    Z = embedding(Z)
    types = Labels.of(cell_type, len(Z), "cell type")
    unit = type_distance(Z, types)
    found = _split(types, kind, seed)
    rows = np.flatnonzero(found != GONE)
    Z, batch, codes = Z[rows], found[rows], types.codes[rows]
    moved = KINDS[kind].effect(Z, batch, codes, unit, np.random.default_rng([seed, 1]))
    names = np.array([f"b{b:02d}" for b in range(int(batch.max()) + 1)])
    return Planted(Z + moved, names[batch], types.batches[codes], -moved, rows, unit)


def possible(cell_type: Any, kind: str, *, seed: int = 0) -> str | None:
    """Return why a kind cannot be planted in cells of these types; ``None`` if it can."""
    try:
        _split(Labels.of(cell_type, len(cell_type), "cell type"), kind, seed)
    except BadValue as reason:
        return str(reason)
    return None


def type_distance(Z: Any, cell_type: Any) -> float:
    """Return the typical distance between types: the median over all pairs of their means."""
    Z = embedding(Z)
    types = Labels.of(cell_type, len(Z), "cell type")
    means = [Z[rows].mean(0) for rows in types.rows() if rows.size]
    unit = float(np.median(pdist(means))) if len(means) > 1 else 0.0
    if not unit > 0:
        raise BadValue(
            f"Expected two cell types with different means, found {len(means)} at distance {unit:g}."
        )
    return unit


def displacement_error(planted: Planted, after: Any) -> float:
    """How far displacements are from the truth, in units of the distance between types.

    The root mean squared length of ``after - Z - truth`` about its mean over all cells, because a
    translation of all cells does not matter. ``displacement_error(planted, planted.Z)`` is the error
    without refinement.
    """
    error = _errors(planted, after)
    return _length(error - error.mean(0), planted)


def relative_error(planted: Planted, after: Any) -> float:
    """How far cells are from the cells of other batches that they should lie beside, in the same units.

    Half the root mean squared length of a cell's error less the mean error of the 15 nearest cells of other
    batches, where "nearest" is before the effect. (Half, because both sides may move: of two equal batches,
    one of which is shifted, this is the displacement error.) Batches that meet in the middle have no such
    error, though :func:`displacement_error` has one, because the truth fixes the first batch: no method that
    treats batches alike can reach 0 there if an effect differs between types.
    """
    error, origin = _errors(planted, after), planted.Z + planted.truth
    relative = np.empty_like(error)
    for name in np.unique(planted.batch):
        own = planted.batch == name
        others = NearestNeighbors(n_neighbors=min(_AROUND, int((~own).sum()))).fit(origin[~own])
        around = others.kneighbors(origin[own], return_distance=False)
        relative[own] = 0.5 * (error[own] - error[~own][around].mean(1))
    return _length(relative, planted)


def knowing_types(planted: Planted) -> Floats:
    """Cells without the shifts of their batches, as least squares find them for known types.

    A cell is the mean of its type, and the shift of its batch, and noise. No method that does not know the
    types can be expected to find shifts better: its error is that of the means of so many cells.
    """
    types, batches = (
        pd.get_dummies(of).to_numpy(float) for of in (planted.cell_type, planted.batch)
    )
    design = np.concatenate([types, batches[:, 1:]], axis=1)
    found = np.linalg.lstsq(design, planted.Z, rcond=None)[0]
    after: Floats = planted.Z - batches[:, 1:] @ found[types.shape[1] :]
    return after


def _errors(planted: Planted, after: Any) -> Floats:
    """Return what displacements add to the truth, for each cell."""
    after = embedding(after)
    if after.shape != planted.Z.shape:
        raise BadValue(
            f"Expected the planted cells, {planted.Z.shape}, after refinement, found {after.shape}."
        )
    found: Floats = after - planted.Z - planted.truth
    return found


def _length(error: Floats, planted: Planted) -> float:
    return float(np.sqrt((error**2).sum(1).mean()) / planted.unit)


def _split(types: Labels, kind: str, seed: int) -> Ints:
    if kind not in KINDS:
        raise BadKey(
            f"Expected a kind of planted set, found {kind!r}; available: {some_of(KINDS, most=40)}."
        )
    return KINDS[kind].split(types.codes.astype(np.int64), np.random.default_rng([seed, 0]))
