"""Nearest neighbours of cells: exact search, the batches among them, and how many a refinement keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.neighbors import NearestNeighbors

from ...core.labels import Labels
from ...errors import BadValue
from ...kernels.arrays import Floats, Ints
from .cells import embedding, groups

__all__ = ["N_NEIGHBOURS", "Neighbours", "ilisi", "neighbours_kept"]

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
    return mean_ilisi(Neighbours.of(Z, k).indices, groups(batch, len(Z), "batch label"))


def mean_ilisi(near: Ints, batch: Labels) -> float:
    """:func:`ilisi` from given neighbours (cells x k)."""
    n_batches = batch.batches.size
    if n_batches < 2:
        return float("nan")
    share = np.stack([(batch.codes[near] == b).mean(1) for b in range(n_batches)])
    diversity = float((1.0 / (share**2).sum(0)).mean())
    return (diversity - 1.0) / (n_batches - 1)


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
    for rows in groups(batch, len(first), "batch label").rows():
        if rows.size > 1:
            kept[rows] = _kept(first[rows], second[rows], k)
    return kept


def mean_kept_in_batch(before: Any, after: Any, batch: Any, *, k: int = N_NEIGHBOURS) -> float:
    """Mean of :func:`neighbours_kept` within batches, over cells with neighbours in their batch."""
    kept = neighbours_kept(before, after, k=k, batch=batch)
    known = kept[~np.isnan(kept)]
    return float(known.mean()) if known.size else float("nan")


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
