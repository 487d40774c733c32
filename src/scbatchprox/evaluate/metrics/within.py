"""Scores that use batches and types: mixing within types, over-correction, variance kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.checks import check_number, check_whole
from ...core.labels import Labels
from ...kernels.arrays import Floats, Ints
from .cells import Cells, groups
from .neighbours import N_NEIGHBOURS, Neighbours, same_cells

__all__ = ["mixing_within_types", "over_correction", "variance_kept"]

#: Batches with fewer cells of a type are left out of the mixing of that type.
_FEWEST = 5


def mixing_within_types(Z: Any, batch: Any, cell_type: Any, *, k: int = N_NEIGHBOURS) -> float:
    r"""How well batches mix among cells of the same type; 0 (separate) to about 1 (fully mixed).

    For each type, over the cells of batches that have at least five cells of it:
    :math:`(\mathrm{mean}_i\, 1 / \sum_b p_{ib}^2 - 1) / (1 / \sum_b q_b^2 - 1)` with :math:`p_{ib}` the
    share of batch b among the k nearest neighbours of cell i, searched only among these cells, and
    :math:`q_b` the share of batch b in all of these cells. Types are weighted by the number of these cells.
    Unlike :func:`.ilisi`, the score does not rise if different types overlap.

    Types in one such batch are left out; NaN if no type remains. If a type has at most k + 1 such cells, all
    of them are neighbours, so it counts as mixed in any case; do not rely on this score alone if many types
    are small. Values are not clipped. A cell is not its own neighbour, so a small type may give more than 1.
    So may batches that alternate, mainly if one batch has nearly all cells.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import mixing_within_types
    >>> mixing_within_types(Z, batch, cell_type, k=10) > 0.7
    True
    >>> Z[batch == "b"] += 100.0
    >>> mixing_within_types(Z, batch, cell_type, k=10)
    0.0
    """
    _check_k(k)
    return mixing_of(Cells.of(Z, batch, cell_type), k)


def mixing_of(cells: Cells, k: int) -> float:
    """:func:`mixing_within_types` of checked cells."""
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


def over_correction(Z: Any, batch: Any, cell_type: Any, *, k: int = N_NEIGHBOURS) -> float:
    """Share of neighbours of another type, among neighbours from other batches. Lower is better.

    Pooled over the k nearest neighbours of all cells: the number from another batch and of another type,
    divided by the number from another batch. NaN if no cell has a neighbour from another batch.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import over_correction
    >>> over_correction(Z, batch, cell_type, k=10)
    0.0
    """
    _check_k(k)
    cells = Cells.of(Z, batch, cell_type)
    return over_corrected(Neighbours.of(cells.Z, k).indices, cells.batch, cells.cell_type)


def over_corrected(near: Ints, batch: Labels, cell_type: Labels) -> float:
    """:func:`over_correction` from given neighbours (cells x k)."""
    other_batch = batch.codes[near] != batch.codes[:, None]
    other_type = cell_type.codes[near] != cell_type.codes[:, None]
    n = int(other_batch.sum())
    return float((other_batch & other_type).sum() / n) if n else float("nan")


def variance_kept(before: Any, after: Any, batch: Any, cell_type: Any) -> float:
    """Spread within each type and batch, after divided by before; 1 if it is unchanged.

    The spread is the sum, over all cells, of squared distances from the mean of their group (a type in a
    batch). NaN if the embeddings have different numbers of coordinates, which cannot be compared, or if
    there was no spread before.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import variance_kept
    >>> round(variance_kept(Z, 0.5 * Z, batch, cell_type), 3)
    0.25
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
    """Return the sum of squared deviations from the means of groups."""
    Z = Z - Z.mean(0)  # centred, because sums far from the origin lose digits
    mean = np.zeros((int(group.max()) + 1, Z.shape[1]))
    np.add.at(mean, group, Z)
    mean /= np.bincount(group)[:, None]
    return float(((Z - mean[group]) ** 2).sum())


def _check_k(k: object) -> None:
    check_whole("k", k)
    check_number("k", k, positive=True)
