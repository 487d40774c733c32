"""The effect of a refinement on each batch, and a verdict in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ..cells.memory import MemoryCells
from ..core.adapter import Adapter
from ..core.evidence import Decision, Evidence
from ..core.fit import Fit
from ..core.labels import Labels
from ..core.moments import Moments
from ..core.problem import Weights
from ..core.target import Cells, TargetRule
from ..kernels.arrays import Floats, Ints
from ..kernels.distances import squared_distances
from ..kernels.threads import one_numpy_thread
from ..targets.population.find import looked_at
from ..targets.population.target import PopulationTarget
from .judge import DEFAULTS, judge_batch, judge_kept, with_care
from .kept import Kept, kept_columns
from .limits import MIN_CELLS
from .printed import Diagnosis
from .verdict import COLUMNS, Verdict, verdict_columns, verdicts_of, why
from .words import clauses, sentence

__all__ = ["composition_of", "diagnosis", "found_in", "mover_of", "with_kept"]

#: Numbers of the evidence in the table.
EVIDENCE = (
    "matched", "agreement", "evidence", "support", "chance", "gain", "smooth", "composition", "removed",
)  # fmt: skip
#: Nearest neighbours compared, and the number of cells, over all batches, whose neighbours are compared.
NEIGHBOURS, NEIGHBOUR_CELLS = 15, 2000


def diagnosis(
    fit: Fit, cells: Cells, *, seed: int = 0, keep: Mapping[str, Labels] | None = None
) -> pd.DataFrame:
    """:func:`scbatchprox.diagnose` for a fit and its cells, in memory or not."""
    sample = cells.sample(looked_at(cells.labels.n), seed)
    labels = sample.labels
    some = MemoryCells(sample.cells, labels)
    found, is_own = _evidence(fit, some, seed)
    numbers = {name: getattr(found, name) for name in EVIDENCE}
    numbers["composition"] = composition_of(found, cells.labels.n)
    # By position, because pandas treats boolean labels as a mask.
    movement = fit.adapter.movement(fit.moments).iloc[
        np.searchsorted(fit.moments.batches, labels.batches)
    ]
    table = pd.DataFrame(
        {
            "n_cells": cells.labels.n,
            "moved": movement["relative"].to_numpy(),
            "scale_min": movement["scale_min"].to_numpy(),
            "scale_max": movement["scale_max"].to_numpy(),
            **numbers,
            "neighbours_kept": _neighbours_kept(fit.adapter, some),
        },
        index=movement.index,
    )
    rule = fit.method.rule
    verdicts = [
        judge_batch(
            row,
            None if math.isnan(row["evidence"]) else decision,
            settings=getattr(rule, "settings", DEFAULTS),
            by_moments=not rule.registers,
            n_batches=fit.moments.batches.size + fit.elsewhere[1],
        )
        for row, decision in zip(table.to_dict("records"), found.decision.tolist(), strict=True)
    ]
    mover = mover_of(rule, is_own)
    said = [
        sentence(verdict, row, mover=mover)
        for verdict, row in zip(verdicts, table.to_dict("records"), strict=True)
    ]
    table = table.assign(**verdict_columns(verdicts), verdict=said)
    return with_kept(table, kept_columns(keep or {}, cells, fit.adapter))


def with_kept(table: pd.DataFrame, columns: list[Kept]) -> pd.DataFrame:
    """Return a diagnosis without columns to keep with what happens to these, and what follows from it."""
    reasons, texts = judge_kept(columns), table[list(COLUMNS)]
    numbers = {name: value for column in columns for name, value in column.numbers.items()}
    table = table.drop(columns=list(COLUMNS)).assign(**numbers)
    verdicts, said = [], []
    for verdict, moved, text in zip(
        verdicts_of(table.join(texts)), table["moved"], texts["verdict"], strict=True
    ):
        assert verdict is not None
        judged = with_care(verdict, reasons, moved)
        verdicts.append(judged)
        if judged != verdict:
            new = "; ".join(clauses(Verdict(judged.level, tuple(reasons)), numbers))
            old = "" if verdict.level.fine else why(text)
            text = f"{judged.level}: {'; '.join(part for part in (old, new) if part)}"
        said.append(text)
    return Diagnosis(table.assign(**verdict_columns(verdicts), verdict=said))


def found_in(cells: Cells, seed: int = 0) -> Evidence:
    """Return the evidence that the population target finds in some cells."""
    rule = PopulationTarget(seed=seed)
    return _aimed(rule, rule.describe(cells))


def composition_of(found: Evidence, n_cells: Ints) -> Floats:
    """(B,) how far compositions differ; NaN for batches with few cells, where that is unknown."""
    return np.where(n_cells < MIN_CELLS, np.nan, found.composition)


def _aimed(rule: PopulationTarget, populations: Moments) -> Evidence:
    found = rule.aim(populations, Weights(), rule.default_rounds).evidence
    assert found is not None
    return found


def _evidence(fit: Fit, some: Cells, seed: int) -> tuple[Evidence, bool]:
    """Return the evidence on the batches of some cells, and whether the fit decided by it."""
    batches = some.labels.batches
    own = fit.evidence.select(batches.tolist())
    if own.batches.size == batches.size and not np.isnan(own.evidence).any():
        return own, True
    if fit.moments.anchors is not None:
        return _aimed(PopulationTarget(seed=seed), fit.moments).select(batches.tolist()), False
    if batches.size < 2:  # the others are not at hand
        return Evidence.of(batches, [Decision.ALONE] * batches.size), False
    return found_in(some, seed), False


def mover_of(rule: TargetRule, is_own: bool = True) -> str | None:
    """What moves batches without regard to the evidence."""
    if not rule.registers:
        return "target='moment'"
    if not is_own:
        return "this model"
    return "force=True" if getattr(rule, "force", False) else None


def _neighbours_kept(adapter: Adapter, some: MemoryCells) -> Floats:
    """(B,) part of the nearest neighbours in its own batch that a cell keeps, on some of the cells."""
    n_batches = some.labels.batches.size
    most = max(NEIGHBOUR_CELLS // n_batches, 10 * NEIGHBOURS)
    rows = [own[:most] for own in some.labels.rows()]
    few = np.concatenate(rows)
    moved = adapter.apply(some.Z[few], some.labels.at(few))
    kept, ends = np.full(n_batches, np.nan), np.cumsum([own.size for own in rows])
    with one_numpy_thread():  # for many small products a second thread only takes time
        for b, (own, refined) in enumerate(zip(rows, np.split(moved, ends[:-1]), strict=True)):
            k = min(NEIGHBOURS, own.size - 1)
            if k > 0:
                before, after = _nearest(some.Z[own], k), _nearest(refined, k)
                kept[b] = (before[:, :, None] == after[:, None]).any(2).mean()
    return kept


def _nearest(Z: Any, k: int) -> Ints:
    """(m, k) the nearest other cells of each of a few hundred cells."""
    X = np.asarray(Z.toarray() if hasattr(Z, "toarray") else Z, np.float64)
    X = X / (np.abs(X).max(initial=0.0) or 1.0)  # squares of very large coordinates overflow
    X = X - X.mean(0)
    D = squared_distances(X, X)
    np.fill_diagonal(D, np.inf)
    near: Ints = np.argpartition(D, k - 1, axis=1)[:, :k]
    return near
