"""The check that ``refine`` makes after a fit: a diagnosis, a quick look, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.checks import warn_user
from ..core.fit import Fit
from ..core.target import Cells, TargetRule
from ..kernels.arrays import Ints
from ..targets.population.find import looked_at
from .quick_look import quick_look, quick_sample_sizes
from .table import composition_warning, diagnosis, quick_warning

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["look", "sample_sizes"]


def look(fit: Fit, cells: Cells, diagnose: bool | None = None) -> pd.DataFrame | None:
    """Warn if the target is wrong for the batches, and return a diagnosis if one was made.

    ``True`` makes a diagnosis. ``None`` does so for a target with a consensus, which has computed most of it
    already; for other targets it takes a quick look at a sample. ``False`` does nothing.
    """
    if diagnose is False:
        return None
    table = None
    if _in_full(fit.method.rule, diagnose):
        table = diagnosis(fit, cells)
        message = composition_warning(fit, table)
    else:
        moments = fit.moments.by_batch.select(cells.labels.batches.tolist())
        message = quick_warning(fit, quick_look(cells, moments), cells.labels)
    if message is not None and fit.adapter.moves:
        warn_user(message)
    return table


def sample_sizes(rule: TargetRule, diagnose: bool | None, n_cells: Ints) -> Ints | None:
    """(B,) number of cells that :func:`look` will sample, so that an earlier pass can draw them."""
    if diagnose is False:
        return None
    return looked_at(n_cells) if _in_full(rule, diagnose) else quick_sample_sizes(n_cells)


def _in_full(rule: TargetRule, diagnose: bool | None) -> bool:
    return bool(diagnose) or rule.registers
