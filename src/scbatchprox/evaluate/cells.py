"""The input of every metric: an embedding as an array, and the labels of its cells as codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..core.checks import check_embedding, nonfinite_error
from ..core.labels import Labels
from ..errors import BadValue
from ..kernels.arrays import Floats, Ints

__all__ = ["ScoredCells", "embedding", "group_sums", "mean", "pairs", "sample"]

#: Sum of all squared values, at most: sums of squared distances are finite.
LARGEST = 1e290


def embedding(Z: Any) -> Floats:
    """Return an embedding as a dense float64 array; it must be finite and have at least two cells."""
    Z = check_embedding(Z)
    dense: Floats = np.asarray(Z.toarray() if sp.issparse(Z) else Z, np.float64)
    if len(dense) < 2:
        raise BadValue(f"Expected at least two cells to compare, found {len(dense)}.")
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->", dense, dense)
    if not squares < LARGEST:  # also NaN
        raise nonfinite_error(dense)
    return dense


@dataclass(frozen=True, eq=False)
class ScoredCells:
    """An embedding, the batch and the type of each cell, and the embedding before, if it is known."""

    Z: Floats
    batch: Labels
    cell_type: Labels
    before: Floats | None = None

    @classmethod
    def of(cls, Z: Any, batch: Any, cell_type: Any, before: Any = None) -> ScoredCells:
        """Check and encode the input of a user."""
        Z = embedding(Z)
        before = None if before is None else embedding(before)
        if before is not None and len(before) != len(Z):
            raise BadValue(
                f"Expected `before` to have the same cells as Z ({len(Z)}), found {len(before)}."
            )
        types = Labels.of(cell_type, len(Z), "cell type")
        return cls(Z, Labels.of(batch, len(Z)), types, before)

    def at(self, rows: Ints) -> ScoredCells:
        """Return a subset of the cells that has all batches and all types."""
        before = None if self.before is None else self.before[rows]
        return ScoredCells(self.Z[rows], self.batch.at(rows), self.cell_type.at(rows), before)


def pairs(cell_type: Labels, batch: Labels) -> Ints:
    """Return a number for the type and the batch of each cell: type * batches + batch."""
    found: Ints = cell_type.codes.astype(np.int64) * batch.batches.size + batch.codes
    return found


def group_sums(Z: Floats, codes: Ints, n: int) -> Floats:
    """Return the sums of the cells of each of ``n`` groups (groups x coordinates)."""
    sums = np.zeros((n, Z.shape[1]))
    np.add.at(sums, codes, Z)
    return sums


def mean(values: Any) -> float:
    """Return the mean of the values that are known; NaN if none is."""
    values = np.asarray(values, np.float64)
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def sample(batch: Labels, cell_type: Labels, most: int, seed: int) -> Ints:
    """Choose about ``most`` cells: the same share of every type in every batch, and at least one.

    The choice depends only on the labels and the seed, so embeddings of the same cells are compared on
    the same sample.
    """
    n = batch.codes.size
    if n <= most:
        return np.arange(n)
    group = pairs(cell_type, batch)
    shuffled = np.random.default_rng(seed).permutation(n)
    by_group = shuffled[np.argsort(group[shuffled], kind="stable")]
    _, first, size = np.unique(group[by_group], return_index=True, return_counts=True)
    position = np.arange(n) - np.repeat(first, size)
    kept: Ints = np.sort(by_group[position < np.repeat(np.ceil(size * (most / n)), size)])
    return kept
