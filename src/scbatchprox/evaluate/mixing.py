"""How batches mix: among nearest neighbours, within cell types, and in the variance between batches.

Neighbours are searched exactly. Beside mixing there is what it may cost: neighbours that a refinement does
not keep, over-correction, and variance within batches and types. ``asw_batch``, ``kbet`` and
``batch_variance`` are as in the paper's appendix, where scib-metrics has another score or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import chi2
from sklearn.neighbors import NearestNeighbors

from ..core.checks import check_number, check_whole
from ..core.labels import Labels
from ..errors import BadValue
from ..kernels.arrays import Floats, Ints
from .cells import ScoredCells, embedding, group_sums, mean, pairs
from .clusters import Silhouettes

__all__ = [
    "N_NEIGHBOURS", "Neighbours", "asw_batch", "asw_batch_scib", "batch_variance", "ilisi", "kbet",
    "mixing_within_types", "neighbours_kept", "over_correction", "variance_kept",
]  # fmt: skip

#: Number of nearest neighbours of a cell that scores use, if the user gives none.
N_NEIGHBOURS = 30


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The k nearest cells of each cell, nearest first; the cell itself is not among them.

    The search is exact (scikit-learn): errors of an approximate search would look like differences
    between embeddings.
    """

    indices: Ints
    distances: Floats

    @classmethod
    def of(cls, Z: Floats, k: int) -> Neighbours:
        """Find the k nearest cells, or all other cells if there are fewer."""
        # Centred, because distances between cells far from the origin lose digits.
        search = NearestNeighbors(n_neighbors=min(k, len(Z) - 1)).fit(Z - Z.mean(0))
        distances, indices = search.kneighbors()
        return cls(indices, distances)


def ilisi(Z: Any, batch: Any, *, k: int = N_NEIGHBOURS) -> float:
    r"""Batch diversity among a cell's nearest neighbours, 0 (one batch only) to 1 (equal shares).

    The paper's iLISI, :math:`1 / \sum_b p_{ib}^2` with :math:`p_{ib}` the share of batch b among the k
    nearest neighbours of cell i, averaged over cells and scaled by the number of batches B:
    :math:`(\mathrm{iLISI} - 1) / (B - 1)`. NaN if there is only one batch.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import ilisi
    >>> mixed = ilisi(Z, batch)
    >>> Z[batch == "b"] += 100.0
    >>> ilisi(Z, batch) < mixed
    True
    """
    Z = embedding(Z)
    return mean_ilisi(Neighbours.of(Z, k).indices, Labels.of(batch, len(Z)))


def mean_ilisi(near: Ints, batch: Labels) -> float:
    """:func:`ilisi` from given neighbours (cells x k)."""
    n_batches = batch.batches.size
    if n_batches < 2:
        return float("nan")
    return (_diversity(batch.codes[near], n_batches) - 1.0) / (n_batches - 1)


def _diversity(near: Ints, n_batches: int) -> float:
    """Mean number of batches among neighbours, from their batches (cells x k): the inverse Simpson index."""
    share = np.stack([(near == b).mean(1) for b in range(n_batches)])
    return float((1.0 / (share**2).sum(0)).mean())


def neighbours_kept(before: Any, after: Any, *, k: int = N_NEIGHBOURS, batch: Any = None) -> Floats:
    """Share of each cell's k nearest neighbours before that are among its k nearest after.

    One number per cell, 0 to 1; about k / n for an unrelated embedding. The two embeddings may have
    different numbers of coordinates.

    With ``batch``, neighbours are searched only among the cells of the same batch: moving a whole batch
    keeps all of them. NaN for the only cell of a batch.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import neighbours_kept
    >>> neighbours_kept(Z, 2.0 * Z + 1.0).mean()
    np.float64(1.0)
    """
    first, second = same_cells(before, after)
    if batch is None:
        return _kept(first, second, k)
    kept = np.full(len(first), np.nan)
    for rows in Labels.of(batch, len(first)).rows():
        if rows.size > 1:
            kept[rows] = _kept(first[rows], second[rows], k)
    return kept


def mean_kept_in_batch(before: Any, after: Any, batch: Any, *, k: int = N_NEIGHBOURS) -> float:
    """Mean of :func:`neighbours_kept` within batches, over cells with neighbours in their batch."""
    return mean(neighbours_kept(before, after, k=k, batch=batch))


def same_cells(before: Any, after: Any) -> tuple[Floats, Floats]:
    """Return two embeddings of the same cells as arrays."""
    first, second = embedding(before), embedding(after)
    if len(first) != len(second):
        raise BadValue(
            f"Expected embeddings of the same cells, found {len(first)} and {len(second)} cells."
        )
    return first, second


def _kept(first: Floats, second: Floats, k: int) -> Floats:
    a, b = (Neighbours.of(Z, k).indices for Z in (first, second))
    # Every pair of cells gets a unique number, so that one lookup finds all pairs.
    row = np.arange(len(a))[:, None] * len(a)
    kept: Floats = np.isin(a + row, b + row).mean(1)
    return kept


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
    cells = ScoredCells.of(Z, batch, cell_type)
    reached, weight = [], []
    for of_type in cells.cell_type.rows():
        codes = cells.batch.codes[of_type]
        enough = np.bincount(codes)[codes] >= _FEWEST
        rows = of_type[enough]
        _, own, n = np.unique(codes[enough], return_inverse=True, return_counts=True)
        if n.size < 2:
            continue
        found = _diversity(own[Neighbours.of(cells.Z[rows], k).indices], n.size)
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
    cells = ScoredCells.of(Z, batch, cell_type)
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
    batches, types = Labels.of(batch, len(first)), Labels.of(cell_type, len(first), "cell type")
    _, group = np.unique(pairs(types, batches), return_inverse=True)
    was, now = (_within(Z, group) for Z in (first, second))
    same = first.shape == second.shape
    return now / was if same and was > 0 else float("nan")


def _within(Z: Floats, group: Ints) -> float:
    """Return the sum of squared deviations from the means of groups."""
    Z = Z - Z.mean(0)  # centred, because sums far from the origin lose digits
    n = np.bincount(group)
    mean = group_sums(Z, group, n.size) / n[:, None]
    return float(((Z - mean[group]) ** 2).sum())


def _check_k(k: object) -> None:
    check_whole("k", k)
    check_number("k", k, positive=True)


#: Significance level of the test.
_ALPHA = 0.05
#: Types with fewer cells are not tested.
_TESTABLE = 10


def asw_batch(silhouettes: Silhouettes) -> float:
    r"""Batch ASW of the paper's appendix: :math:`1 - |s(i)|` of batch labels, averaged over all cells.

    If batches hold different cell types, these count as a batch effect; :func:`asw_batch_scib` scores one
    type at a time. scib-metrics now recommends BRAS, another quantity (cosine distances, all other batches
    instead of the nearest).
    """
    return float(1 - np.abs(silhouettes.batches).mean())


def asw_batch_scib(silhouettes: Silhouettes, cell_type: Labels) -> float:
    """Batch ASW of scIB: within each type, averaged over its cells, then over types.

    Equal to ``scib_metrics.silhouette_batch``, which compiles again for every type and takes half a minute;
    here the score comes from the same pass as the other silhouette widths. Types in one batch are left out.
    NaN if no type remains.
    """
    absolute = np.abs(silhouettes.batches_within_types)
    defined = ~np.isnan(absolute)
    types = cell_type.codes[defined]
    n = np.bincount(types)
    total = np.bincount(types, absolute[defined])
    return float(1 - (total[n > 0] / n[n > 0]).mean()) if n.any() else float("nan")


def kbet(cells: ScoredCells) -> float:
    r"""KBET per label: the share of neighbourhoods with the same batch frequencies as the whole type.

    For each type, every cell and its k nearest cells *of that type* are tested against the type's
    batch frequencies :math:`f_b`: with :math:`O_b` cells of batch b among :math:`m = k + 1`,
    :math:`\sum_b (O_b - m f_b)^2 / (m f_b)` is compared with the chi-squared distribution of
    :math:`B - 1` degrees of freedom at the 5 % level. As in scIB, k is a
    quarter of the type's mean number of cells per batch, between 10 and 70. Accepted shares are averaged
    over types. Types in one batch, or with fewer than ten cells, are left out, as in scIB. NaN if no type
    remains.

    The test is that of ``scib_metrics.kbet``. ``scib_metrics.kbet_per_label`` finds neighbours in a
    diffusion map of the neighbourhood graph, because some methods in scIB return only a graph; here, as in
    the paper, they are neighbours in the embedding.
    """
    accepted = []
    for rows in cells.cell_type.rows():
        _, batch, n = np.unique(cells.batch.codes[rows], return_inverse=True, return_counts=True)
        if rows.size < _TESTABLE or n.size < 2:
            continue
        k = min(70, max(10, int(n.mean() / 4)))
        near = Neighbours.of(cells.Z[rows], k).indices
        near = np.column_stack([np.arange(rows.size), near])
        observed = np.stack([(batch[near] == b).sum(1) for b in range(n.size)], axis=1)
        expected = near.shape[1] * n / rows.size
        statistic = ((observed - expected) ** 2 / expected).sum(1)
        accepted.append((chi2.sf(statistic, n.size - 1) >= _ALPHA).mean())
    return mean(accepted)


def batch_variance(Z: Floats, batch: Labels) -> float:
    r"""Share of the variance of an embedding that its batches explain (PCR), 0 to 1.

    The :math:`R^2` of regressing each principal component on the batch, averaged with the components'
    variances as weights (``scib_metrics.utils.principal_component_regression``). This
    weighted mean is the sum of squares between batches divided by the total sum of squares, for any axes.
    So no decomposition is needed, and a constant coordinate does not divide by zero. The result is 0 for an
    embedding without variance.
    """
    centred = Z - Z.mean(0)
    sums = group_sums(centred, batch.codes, batch.batches.size)
    between = float((sums**2 / batch.n[:, None]).sum())
    total = float((centred**2).sum())
    return between / total if total > 0 else 0.0
