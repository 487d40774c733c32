"""Columns that must survive a refinement, as users name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..cells.dask import in_memory
from ..cells.keys import as_keys
from ..core.checks import require_columns
from ..core.labels import Labels, column_labels
from ..errors import BadValue

__all__ = ["check_keep", "kept_of"]


def check_keep(keep: object, diagnose: bool | None) -> None:
    """Raise if columns are to be kept, and nothing is examined."""
    if keep is not None and diagnose is False:
        raise BadValue(
            "Expected a diagnosis with keep, which is a part of it, found diagnose=False."
        )


def kept_of(
    obs: Any, keep: str | Sequence[str] | None, diagnose: bool | None = None
) -> Mapping[str, Labels]:
    """Return columns of ``obs`` to keep; they are only examined by a diagnosis."""
    check_keep(keep, diagnose)
    if keep is None:
        return {}
    names = as_keys(keep, "column to keep")
    require_columns(names, (key for key in obs if key in obs.columns), "keep")
    return column_labels({name: in_memory(obs[name]) for name in names}, len(obs))
