"""The look at a refinement that the doors take: a table, a warning, or neither."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.checks import warn_user
from ..core.fit import Fit
from ..core.target import Cells
from .table import diagnosis, unlike

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["look"]


def look(fit: Fit, cells: Cells, diagnose: bool | None = None) -> pd.DataFrame | None:
    """Diagnose a fit if that is asked for, or costs next to nothing, and warn of a wrong target.

    ``None`` is the table for a target with a consensus, which knows most of it already; for others a
    quick look at a sample.
    """
    if diagnose is False:
        return None
    table = diagnosis(fit, cells)
    message = unlike(fit, table)
    if message is not None:
        warn_user(message)
    return table
