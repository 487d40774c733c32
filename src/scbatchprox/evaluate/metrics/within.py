"""Batches and types together: like cells mixed, unlike cells on top of each other, spread that is kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.checks import check_number, check_whole
from ...core.labels import Labels
from ...kernels.arrays import Floats, Ints
from .cells import Cells, groups
from .neighbours import Neighbours, same_cells

__all__ = ["mixing_within_types", "over_correction", "variance_kept"]

#: Cells of a type that a batch needs, for its part in the mixing of that type to mean anything.
_FEWEST = 5


def mixing_within_types(Z: Any, batch: Any, cell_type: Any, *, k: int = 30) -> float:
    r"""How well batches mix among cells of the same type; 0 (apart) to about 1 (as shares allow).

    For each type, over the cells of batches that have at least five of it:
    :math:`(\mathrm{mean}_i\, 1 / \sum_b p_{ib}^2 - 1) / (1 / \sum_b q_b^2 - 1)` with :math:`p_{ib}` the
    share of batch b among the k nearest neighbours of cell i, searched among these cells alone, and
    :math:`q_b` its share of all of them. Types weigh by these cells. Unlike :func:`.ilisi` it cannot be
    raised by putting different types on top of each other.

    Types that one such batch alone has are left out; NaN if no other is left. Where a type has no more
    than k + 1 such cells all others are neighbours, so that it counts as mixed wherever its batches
    are; with many small types look at more than this score. Nothing is clipped: a cell is no neighbour
    of its own, so a small type may give more than 1, and so may batches that alternate, above all where
    one batch has nearly all cells and little is allowed.
    """
    _check_k(k)
    return mixing_of(Cells.of(Z, batch, cell_type), k)


def mixing_of(cells: Cells, k: int) -> float:
    """:func:`mixing_within_types` of cells that have been checked."""
    reached, weight = [], []
    for of_type in cells.cell_type.rows():
        codes = cells.batch.codes[of_type]
        enough = np.bincount(codes)[codes] >= _FEWEST
        rows = of_type[enough]
        _, own, n = np.unique(codes[enough], return_inverse=True, return_counts=True)
        if n.size < 2:
            continue
        near = own[Neighbours.of(cells.Z[rows], k).indices]
        share = np.stack([(near == b).mean(1) for b in range(n.size)])
        found = (1.0 / (share**2).sum(0)).mean()
        allowed = 1.0 / ((n / rows.size) ** 2).sum()
        reached.append((found - 1.0) / (allowed - 1.0))
        weight.append(rows.size)
    return float(np.average(reached, weights=weight)) if reached else float("nan")


def over_correction(Z: Any, batch: Any, cell_type: Any, *, k: int = 30) -> float:
    """Share of wrong meetings: neighbours from other batches that are of another type. Lower is better.

    Counted over the k nearest neighbours of all cells together: those of another batch and another type,
    over those of another batch. NaN if no cell has a neighbour from another batch.
    """
    _check_k(k)
    cells = Cells.of(Z, batch, cell_type)
    return over_corrected(Neighbours.of(cells.Z, k).indices, cells.batch, cells.cell_type)


def over_corrected(near: Ints, batch: Labels, cell_type: Labels) -> float:
    """:func:`over_correction` of neighbours that are known already (cells x k)."""
    met = batch.codes[near] != batch.codes[:, None]
    unlike = cell_type.codes[near] != cell_type.codes[:, None]
    n = int(met.sum())
    return float((met & unlike).sum() / n) if n else float("nan")


def variance_kept(before: Any, after: Any, batch: Any, cell_type: Any) -> float:
    """Spread of the cells of one type in one batch, after over before; 1 where it is untouched.

    The sum of squared distances from the mean of the own group (a type in a batch), over all cells. NaN
    where the two embeddings differ in the number of coordinates, as those of one and the other are not
    comparable, and where there was no spread before.
    """
    first, second = same_cells(before, after)
    n = len(first)
    batches, types = groups(batch, n, "batch label"), groups(cell_type, n, "cell type")
    pair = types.codes.astype(np.int64) * batches.batches.size + batches.codes
    _, group = np.unique(pair, return_inverse=True)
    was, now = (_within(Z, group) for Z in (first, second))
    same = first.shape == second.shape
    return now / was if same and was > 0 else float("nan")


def _within(Z: Floats, group: Ints) -> float:
    """Sum of squared deviations from the means of groups."""
    Z = Z - Z.mean(0)  # cells far from the origin would lose digits
    mean = np.zeros((int(group.max()) + 1, Z.shape[1]))
    np.add.at(mean, group, Z)
    mean /= np.bincount(group)[:, None]
    return float(((Z - mean[group]) ** 2).sum())


def _check_k(k: object) -> None:
    check_whole("k", k)
    check_number("k", k, positive=True)
