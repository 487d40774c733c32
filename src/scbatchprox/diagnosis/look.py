"""The check that ``refine`` makes after a fit: a diagnosis, a quick look, or nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ..core.checks import warn_user
from ..core.fit import Fit
from ..core.labels import Labels
from ..core.target import Cells, TargetRule
from ..kernels.arrays import Ints
from ..targets.population.find import looked_at
from .judge import judge_compositions, judge_kept
from .kept import Kept
from .quick_look import QuickLook, quick_look, quick_sample_sizes
from .table import diagnosis
from .words import composition_warning, kept_warning

__all__ = ["look", "quick_warning", "sample_sizes"]


def look(
    fit: Fit,
    cells: Cells,
    diagnose: bool | None = None,
    keep: Mapping[str, Labels] | None = None,
) -> pd.DataFrame | None:
    """Warn if the target is wrong for the batches, and return a diagnosis if one was made.

    ``True`` makes a diagnosis. ``None`` does so for a target with a consensus, which has computed most of it
    already, and if there are columns to ``keep``; for other targets it takes a quick look at a sample.
    ``False`` does nothing.
    """
    if diagnose is False:
        return None
    table = None
    if _in_full(fit.method.rule, diagnose) or keep:
        table = diagnosis(fit, cells, keep=keep)
        message = _kept(table, keep or {}) or _composition(fit, table)
    else:
        moments = fit.moments.by_batch.select(cells.labels.batches.tolist())
        message = quick_warning(fit, quick_look(cells, moments), cells.labels)
    if message is not None and fit.adapter.moves:
        warn_user(message)
    return table


def sample_sizes(
    rule: TargetRule, diagnose: bool | None, n_cells: Ints, keep: object = None
) -> Ints | None:
    """(B,) number of cells that :func:`look` will sample, so that an earlier pass can draw them."""
    if diagnose is False:
        return None
    in_full = bool(keep) or _in_full(rule, diagnose)
    return looked_at(n_cells) if in_full else quick_sample_sizes(n_cells)


def quick_warning(fit: Fit, found: QuickLook, labels: Labels) -> str | None:
    """Return the warning on compositions from a quick look at the batches of ``labels``."""
    table = pd.DataFrame(vars(found) | {"n_cells": labels.n}, index=labels.batches)
    return _composition(fit, table)


def _in_full(rule: TargetRule, diagnose: bool | None) -> bool:
    return bool(diagnose) or rule.registers


def _kept(table: pd.DataFrame, keep: Mapping[str, Labels]) -> str | None:
    """Return a warning if a refinement removes what it was told to keep."""
    for name in keep:
        column = Kept.of(table, name)
        verdict = judge_kept([column])
        if f"{name} removed" in verdict.names:
            return kept_warning(name, verdict, column.numbers)
    return None


def _composition(fit: Fit, table: pd.DataFrame) -> str | None:
    """Return a warning if the target is wrong for batches that differ in composition."""
    differing, overlap = judge_compositions(table, by_moments=not fit.method.rule.registers)
    return composition_warning(differing, overlap, "verdict" in table) if differing else None
