"""The check that ``refine`` makes after a fit: a diagnosis, a quick look, or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..core.checks import warn_user
from ..core.fit import Fit
from ..core.labels import Labels
from ..core.target import Cells, TargetRule
from ..kernels.arrays import Ints
from ..targets.population.find import looked_at
from .kept import kept_warning
from .quick_look import quick_look, quick_sample_sizes
from .table import composition_warning, diagnosis, quick_warning

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["look", "sample_sizes"]


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
        message = kept_warning(table, keep or {}) or composition_warning(fit, table)
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


def _in_full(rule: TargetRule, diagnose: bool | None) -> bool:
    return bool(diagnose) or rule.registers
