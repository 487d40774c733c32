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
from ..core.shown import count, names
from ..core.target import Cells
from ..kernels.arrays import Floats, Ints
from ..kernels.distances import squared_distances
from ..targets.population.find import looked_at
from .evidence import APART, Evidence, evidence
from .groups import CENTRE_GROUPS, groups_of
from .kept import MEASURES, Kept, kept_columns
from .levels import LEAVE_ALONE, SAFE, WITH_CARE, level_of
from .limits import (
    DIFFERENT,
    LARGE_MOVE,
    LARGE_SCALE,
    MANY_UNMATCHED,
    MIN_CELLS,
    MIN_DISTINCT,
    MIN_KEPT,
    MIN_MATCHED,
    VERY_DIFFERENT,
)
from .printed import Diagnosis
from .quick_look import QuickLook

__all__ = ["composition_warning", "diagnosis", "quick_warning", "with_kept"]

#: Nearest neighbours compared, and the number of cells, over all batches, whose neighbours are compared.
NEIGHBOURS, NEIGHBOUR_CELLS = 15, 2000
#: Batches that a warning names.
NAMED = 5


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
    table["verdict"] = (
        [
            _verdict(row, by_moments, by_mean)
            for row, by_mean in zip(table.to_dict("records"), found.by_mean[at], strict=True)
        ]
        if fit.moments.batches.size + fit.elsewhere[1] > 1
        else f"{LEAVE_ALONE}: there is no other batch to align it with"
    )
    return with_kept(table, kept_columns(keep or {}, cells, fit.adapter))


def with_kept(table: pd.DataFrame, columns: list[Kept]) -> pd.DataFrame:
    """Return a diagnosis without columns to keep with what happens to these, and what follows from it."""
    verdicts = [_with_kept(verdict, columns) for verdict in table["verdict"]]
    table = table.drop(columns="verdict")
    for column in columns:
        for what in MEASURES:
            table[f"{column.name} {what}"] = getattr(column, what)
    return Diagnosis(table.assign(verdict=verdicts))


def _with_kept(verdict: str, columns: list[Kept]) -> str:
    """Return a verdict on a batch with the reasons that columns to keep give."""
    for column in columns:
        if column.against is not None:
            return f"{LEAVE_ALONE}: {column.against}"
    care = [column.care for column in columns if column.care is not None]
    if not care or level_of(verdict, SAFE) == LEAVE_ALONE:
        return verdict
    _, _, others = verdict.partition(": ")
    return f"{WITH_CARE}: {'; '.join([*care, others] if others else care)}"


def composition_warning(fit: Fit, table: pd.DataFrame) -> str | None:
    """Return a warning if the target is wrong for batches that differ in composition."""
    if table["n_cells"].median() < MIN_CELLS:
        return None
    by_moments = not fit.method.rule.registers
    overlap = bool(_overlap(table["distinct"]).any())
    differing = table.index[table["composition"] > DIFFERENT].tolist()
    if not differing or not (by_moments or overlap):
        return None
    start = f"Batches differ in composition ({names(differing, NAMED)})"
    hint = "" if "verdict" in table else "; diagnose=True (--diagnose) gives a verdict per batch"
    if not overlap:
        return (
            f"{start}: a target that moves whole batches puts different populations on top of each "
            f"other; try target='population'{hint}."
        )
    return (
        f"{start} and their populations overlap so much that no target can match them; compare with "
        f"the unrefined embedding{hint}."
    )


def quick_warning(fit: Fit, found: QuickLook, labels: Labels) -> str | None:
    """:func:`composition_warning` from a quick look at the batches of ``labels``."""
    table = pd.DataFrame(
        {"n_cells": labels.n, "composition": found.composition, "distinct": found.distinct},
        index=labels.batches,
    )
    return composition_warning(fit, table)


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


def _overlap(distinct: Any) -> Any:
    """Whether populations overlap; false where ``distinct`` is NaN."""
    return distinct < MIN_DISTINCT


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


def _verdict(row: dict[str, Any], by_moments: bool, by_mean: bool) -> str:
    """Return the verdict on a batch, with the reasons against moving it or for care."""
    unmatched, variation = 1.0 - row["matched"], row["composition"]
    overlap = _overlap(row["distinct"])
    if row["matched"] < MIN_MATCHED and not by_mean:
        return f"leave alone: {unmatched:.0%} of its cells have no partner in other batches"
    if by_moments and variation > VERY_DIFFERENT:
        return (
            f"leave alone: its composition is very different from that of the others ({variation:.2f}), and "
            f"a target that moves whole batches would merge different populations"
        )
    if not by_moments and variation > DIFFERENT and overlap:
        return (
            f"leave alone: its composition differs ({variation:.2f}), and populations overlap too much to be "
            f"matched ({row['distinct']:.0%} of the variance is between groups of them)"
        )
    care = []
    if row["n_cells"] < MIN_CELLS:
        cells = count(row["n_cells"], "cell")
        care.append(f"it has {cells}, too few to know its composition")
    if by_mean:
        care.append(APART)
    elif unmatched > MANY_UNMATCHED:
        care.append(f"{unmatched:.0%} of its cells have no partner in other batches")
    if by_moments and variation > DIFFERENT:
        then = (
            "and populations overlap so much that no target can match them"
            if overlap
            else "and only target='population' takes that into account"
        )
        care.append(f"its composition differs ({variation:.2f}), {then}")
    if row["moved"] > LARGE_MOVE:
        care.append(f"cells move by {row['moved']:.2f} of its spread")
    if row["scale_max"] > LARGE_SCALE or row["scale_min"] < 1 / LARGE_SCALE:
        care.append(f"it is scaled by {row['scale_min']:.2f} to {row['scale_max']:.2f}")
    if row["neighbours_kept"] < MIN_KEPT:
        care.append(f"cells keep {row['neighbours_kept']:.0%} of their neighbours")
    return f"move with care: {'; '.join(care)}" if care else "safe"
