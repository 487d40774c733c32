"""The check that ``refine`` makes after a fit: a diagnosis, a look at a sample, or nothing."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..cells.memory import MemoryCells
from ..core.checks import warn_user
from ..core.fit import Fit
from ..core.labels import Labels
from ..core.target import Cells, TargetRule
from ..errors import Part
from ..kernels.arrays import Ints
from ..targets.population.find import looked_at
from .judge import judge_kept
from .kept import Kept
from .limits import DIFFERENT
from .table import composition_of, diagnosis, found_in
from .words import composition_warning, kept_warning

__all__ = ["look", "sample_sizes"]

#: Cells of a small sample of all batches, and the fewest and most cells of one batch in it.
MAX_CELLS, MIN_PER_BATCH, MAX_PER_BATCH = 6000, 300, 1000


def look(
    fit: Fit,
    cells: Cells,
    diagnose: bool | None = None,
    keep: Mapping[str, Labels] | None = None,
) -> pd.DataFrame | None:
    """Warn if the target is wrong for the batches, and return a diagnosis if one was made.

    ``True`` makes a diagnosis. ``None`` does so for a target with a consensus, which has computed most of it
    already, and if there are columns to ``keep``; for other targets it looks at a small sample.
    ``False`` does nothing.
    """
    if diagnose is False:
        return None
    if _in_full(fit.method.rule, diagnose) or keep:
        table = diagnosis(fit, cells, keep=keep)
        message = _kept(table, keep or {}) or _composition(fit, table)
    else:
        table, message = None, _composition(fit, _small_look(cells))
    if message is not None and fit.adapter.moves:
        warn_user(*message)
    return table


def sample_sizes(
    rule: TargetRule, diagnose: bool | None, n_cells: Ints, keep: object = None
) -> Ints | None:
    """(B,) number of cells that :func:`look` will sample, so that an earlier pass can draw them."""
    if diagnose is False:
        return None
    in_full = bool(keep) or _in_full(rule, diagnose)
    return looked_at(n_cells) if in_full else _small(n_cells)


def _small_look(cells: Cells) -> pd.DataFrame:
    """Return the compositions of batches, on a small sample."""
    sample = cells.small_sample(_small(cells.labels.n))
    named = sample.labels.batches[sample.labels.codes]
    labels = Labels.of(named, named.size)  # without batches that have no cells in the sample
    composition = np.full(labels.batches.size, np.nan)
    if labels.batches.size > 1:
        found = found_in(MemoryCells(sample.cells, labels))
        composition = composition_of(found, labels.n)
    return pd.DataFrame({"composition": composition}, labels.batches.tolist())


def _small(n_cells: Ints) -> Ints:
    """(B,) cells of a small sample of batches of ``n_cells``; none of the smallest of very many batches."""
    n = np.asarray(n_cells, np.int64)
    most = np.minimum(n, int(np.clip(MAX_CELLS // max(n.size, 1), MIN_PER_BATCH, MAX_PER_BATCH)))
    most[np.argsort(-n, kind="stable")[MAX_CELLS // MIN_PER_BATCH :]] = 0
    return most


def _in_full(rule: TargetRule, diagnose: bool | None) -> bool:
    return bool(diagnose) or rule.registers


def _kept(table: pd.DataFrame, keep: Mapping[str, Labels]) -> list[Part] | None:
    """Return a warning if a refinement removes what it was told to keep."""
    for name in keep:
        column = Kept.of(table, name)
        reasons = judge_kept([column])
        if f"{name} removed" in [reason.name for reason in reasons]:
            return kept_warning(name, reasons, column.numbers)
    return None


def _composition(fit: Fit, table: pd.DataFrame) -> list[Part] | None:
    """Return a warning if the target moves whole batches, and they differ in composition."""
    differing = table.index[table["composition"] > DIFFERENT].tolist()
    if fit.method.rule.registers or not differing:
        return None
    return composition_warning(differing, "verdict" in table)
