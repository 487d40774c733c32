"""Columns that must survive a refinement, as users name them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..cells.dask import in_memory
from ..cells.keys import as_names
from ..core.checks import require_columns
from ..core.labels import Labels, column_labels
from ..errors import BadType, BadValue, Parameter

__all__ = ["check_keep", "kept_of", "kept_values"]


def check_keep(keep: str | Sequence[str] | None, diagnose: bool | None) -> None:
    """Raise if columns are to be kept, and nothing is examined."""
    if diagnose is False and as_names(keep):
        raise BadValue(
            "Expected ", Parameter("keep"), " only with a diagnosis, which it is a part of, found ",
            Parameter("diagnose=False"), ".",
        )  # fmt: skip


def kept_of(
    obs: Any, keep: str | Sequence[str] | None, diagnose: bool | None = None
) -> Mapping[str, Labels]:
    """Return columns of ``obs`` to keep; they are only examined by a diagnosis."""
    check_keep(keep, diagnose)
    names = as_names(keep)
    require_columns(names, (key for key in obs if key in obs.columns), Parameter("keep"))
    return column_labels({name: in_memory(obs[name]) for name in names}, len(obs))


def kept_values(keep: Any, n_cells: int) -> Mapping[str, Labels]:
    """Return columns to keep that are given as values: of a data frame, a dictionary or a named column."""
    if keep is None:
        return {}
    if hasattr(keep, "columns"):  # pandas, polars
        columns = {name: keep[name] for name in keep.columns}
    elif isinstance(keep, Mapping):
        columns = dict(keep)
    elif hasattr(keep, "name") and hasattr(keep, "dtype"):
        if keep.name in (None, ""):
            raise BadValue(
                "Expected a column to keep with a name, found a Series without one; "
                "keep={'name': values} gives it one."
            )
        columns = {keep.name: keep}
    else:
        raise BadType(
            f"Expected a data frame, a dictionary of columns or a named Series to keep, found "
            f"{type(keep).__name__}."
        )
    return column_labels({name: in_memory(values) for name, values in columns.items()}, n_cells)
