"""The look at a refinement that the doors take: a table, a warning, or neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.checks import warn_user
from ..core.fit import Fit
from ..core.target import Cells, TargetRule
from ..kernels.arrays import Ints
from ..targets.population.find import looked_at
from .quick_look import quick_look, quick_most
from .table import diagnosis, quick_warning, unlike

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["look", "sample_sizes"]


def look(fit: Fit, cells: Cells, diagnose: bool | None = None) -> pd.DataFrame | None:
    """Diagnose a fit if that is asked for, or costs next to nothing, and warn of a wrong target.

    ``None`` is the table for a target with a consensus, which knows most of it already; for others a
    quick look at a sample. ``False`` is no look at all.
    """
    if diagnose is False:
        return None
    table = None
    if _in_full(fit.method.rule, diagnose):
        table = diagnosis(fit, cells)
        message = unlike(fit, table)
    else:
        moments = fit.moments.by_batch.select(cells.labels.batches.tolist())
        message = quick_warning(fit, quick_look(cells, moments), cells.labels)
    if message is not None:
        warn_user(message)
    return table


def sample_sizes(rule: TargetRule, diagnose: bool | None, n_cells: Ints) -> Ints | None:
    """(B,) how many cells :func:`look` will sample, so that an earlier pass can draw them."""
    if diagnose is False:
        return None
    return looked_at(n_cells) if _in_full(rule, diagnose) else quick_most(n_cells)


def _in_full(rule: TargetRule, diagnose: bool | None) -> bool:
    return bool(diagnose) or rule.registers
