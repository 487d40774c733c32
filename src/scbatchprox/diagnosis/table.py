"""The effect of a refinement on each batch, and a verdict in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..cells.memory import MemoryCells
from ..core.adapter import Adapter
from ..core.fit import Fit
from ..core.labels import Labels
from ..core.target import Cells
from ..kernels.arrays import Floats, Ints
from ..kernels.distances import squared_distances
from ..targets.population.find import looked_at
from .evidence import Evidence, evidence
from .groups import CENTRE_GROUPS, groups_of
from .judge import judge_batch, judge_kept, together
from .kept import Kept, kept_columns
from .limits import MIN_CELLS, MIN_MATCHED
from .printed import Diagnosis
from .verdict import COLUMNS, Verdict, verdict_columns, verdicts_of
from .words import sentence

__all__ = ["diagnosis", "with_kept"]

#: Nearest neighbours compared, and the number of cells, over all batches, whose neighbours are compared.
NEIGHBOURS, NEIGHBOUR_CELLS = 15, 2000


def diagnosis(
    fit: Fit, cells: Cells, *, seed: int = 0, keep: Mapping[str, Labels] | None = None
) -> pd.DataFrame:
    """:func:`scbatchprox.diagnose` for a fit and its cells, in memory or not."""
    sample = cells.sample(looked_at(cells.labels.n), seed)
    labels = sample.labels
    some = MemoryCells(sample.cells, labels)
    found = evidence(fit, some, seed)
    at = np.searchsorted(found.populations.batches, labels.batches)
    # By position, because pandas treats boolean labels as a mask.
    movement = fit.adapter.movement(fit.moments).iloc[
        np.searchsorted(fit.moments.batches, labels.batches)
    ]
    composition, distinct = _composition(found, seed)
    table = pd.DataFrame(
        {
            "n_cells": cells.labels.n,
            "moved": movement["relative"].to_numpy(),
            "scale_min": movement["scale_min"].to_numpy(),
            "scale_max": movement["scale_max"].to_numpy(),
            "matched": found.partners[at],
            "composition": np.where(cells.labels.n < MIN_CELLS, np.nan, composition[at]),
            "distinct": distinct,
            "neighbours_kept": _neighbours_kept(fit.adapter, some),
        },
        index=movement.index,
    )
    by_moments = not fit.method.rule.registers
    n_batches = fit.moments.batches.size + fit.elsewhere[1]
    verdicts = [
        judge_batch(row, by_moments, by_mean, n_batches)
        for row, by_mean in zip(table.to_dict("records"), found.by_mean[at], strict=True)
    ]
    return _judged(table, verdicts, kept_columns(keep or {}, cells, fit.adapter))


def with_kept(table: pd.DataFrame, columns: list[Kept]) -> pd.DataFrame:
    """Return a diagnosis without columns to keep with what happens to these, and what follows from it."""
    verdicts = [verdict for verdict in verdicts_of(table) if verdict is not None]
    return _judged(table.drop(columns=list(COLUMNS)), verdicts, columns)


def _judged(table: pd.DataFrame, verdicts: list[Verdict], columns: list[Kept]) -> pd.DataFrame:
    """Return a table of numbers with columns to keep and verdicts."""
    for column in columns:
        table = table.assign(**column.numbers)
    kept = judge_kept(columns)
    verdicts = [together(kept, verdict) for verdict in verdicts]
    rows = table.to_dict("records")
    said = [sentence(verdict, row) for verdict, row in zip(verdicts, rows, strict=True)]
    return Diagnosis(table.assign(**verdict_columns(verdicts), verdict=said))


def _composition(found: Evidence, seed: int) -> tuple[Floats, float]:
    """Compare the composition of each batch with that of all others.

    Returns (B,) the total variation between the shares of groups of centres, minus the part that chance
    explains; NaN for an unmatched batch. And the part of the variance of cells that is between groups.

    All cells of a population are in one group. So chance is that of drawing as many populations as there
    are, not as many cells.
    """
    populations = found.populations
    variation = np.full(populations.batches.size, np.nan)
    known = found.matched >= MIN_MATCHED
    if known.sum() < 2:
        return variation, np.nan
    keep = known[populations.batch]
    n, batch = populations.n[keep], (np.cumsum(known) - 1)[populations.batch[keep]]
    X = found.moved[keep]
    X = X - np.average(X, axis=0, weights=n)
    group, n_groups = groups_of(found, keep, int(known.sum()), seed)
    counts, squares = np.zeros((2, known.sum(), n_groups))
    np.add.at(counts, (batch, group), n)
    np.add.at(squares, (batch, group), n.astype(np.float64) ** 2)
    of_batch = counts.sum(1, keepdims=True)
    n_drawn = of_batch**2 / squares.sum(1, keepdims=True)
    own, rest = counts / of_batch, (counts.sum(0) - counts) / (of_batch.sum() - of_batch)
    chance = np.sqrt(2.0 * rest * (1.0 - rest) / (np.pi * n_drawn)).sum(1) / 2.0
    total = np.abs(own - rest).sum(1) / 2.0
    variation[known] = np.sqrt(np.maximum(total**2 - chance**2, 0.0))
    # With fewer groups than cell types, groups explain little even if the types are far apart.
    few = n_groups < CENTRE_GROUPS
    return variation, np.nan if few else _distinct(X, n, group, populations.m2[keep])


def _distinct(X: Floats, n: Ints, group: Ints, m2: Floats) -> float:
    """Part of the variance that is between groups of populations; the mean of ``X`` is zero."""
    sums = np.zeros((CENTRE_GROUPS, X.shape[1]))
    np.add.at(sums, group, n[:, None] * X)
    cells = np.bincount(group, weights=n, minlength=CENTRE_GROUPS)
    between = float(((sums**2).sum(1) / np.maximum(cells, 1.0)).sum())
    total = float(n @ (X**2).sum(1) + m2.sum())
    return between / total if total > 0 else np.nan


def _neighbours_kept(adapter: Adapter, some: MemoryCells) -> Floats:
    """(B,) part of the nearest neighbours in its own batch that a cell keeps, on some of the cells."""
    labels = some.labels
    refined = adapter.apply(some.Z, labels)
    kept = np.full(labels.batches.size, np.nan)
    most = max(NEIGHBOUR_CELLS // labels.batches.size, 10 * NEIGHBOURS)
    for b in range(labels.batches.size):
        rows: Ints = np.flatnonzero(labels.codes == b)[:most]
        k = min(NEIGHBOURS, len(rows) - 1)
        if k < 1:
            continue
        before, after = (_nearest(Z[rows], k) for Z in (some.Z, refined))
        kept[b] = (before[:, :, None] == after[:, None]).any(2).mean()
    return kept


def _nearest(Z: Any, k: int) -> Ints:
    """(m, k) the nearest other cells of each of a few hundred cells."""
    X = np.asarray(Z.toarray() if hasattr(Z, "toarray") else Z, np.float64)
    X = X - X.mean(0)
    D = squared_distances(X, X)
    np.fill_diagonal(D, np.inf)
    near: Ints = np.argpartition(D, k - 1, axis=1)[:, :k]
    return near
