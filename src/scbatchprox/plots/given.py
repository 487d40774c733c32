"""What a user has at hand: an AnnData that ``refine`` wrote to, a fitted model, or a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..api.record import record_of
from ..core.checks import some_of
from ..errors import BadKey, BadType, BadValue
from ..kernels.arrays import Floats

__all__ = [
    "REGISTERED", "SOLVED", "AdapterRows", "adapter_of", "diagnosis_of", "history_of", "is_anndata",
    "movement_of",
]  # fmt: skip


#: Columns of the rounds of a solver and of a registration, and what they are.
SOLVED = {
    "objective": "objective",
    "distance": "distance of a cell to its target",
    "step": "change of the adapter in the round",
}
REGISTERED = {
    "matched": "part of a batch that met others",
    "movement": "how far populations have moved",
    "agreement": "agreement of displacements",
}


@dataclass(frozen=True, eq=False)
class AdapterRows:
    """Rows of an adapter: the (R,) batch of each, and (R, d) scales and shifts."""

    batch: np.ndarray
    scale: Floats
    shift: Floats


def is_anndata(data: Any) -> bool:
    """Whether this has cells with named embeddings: an AnnData or a MuData."""
    return all(hasattr(data, name) for name in ("obs", "obsm", "uns"))


def movement_of(data: Any, key: str | None = None) -> pd.DataFrame:
    """Return a table with ``relative`` and ``n_cells`` per batch, and verdicts where there are some."""
    if is_anndata(data):
        record = record_of(data, key).values
        table, verdicts = record["movement"], record.get("diagnosis")
    elif hasattr(data, "movement") and hasattr(data, "fit_"):
        table, verdicts = data.movement(), data.diagnosis_
    else:
        table, verdicts = data, None
    table = _by_batch(table, "the movement of each batch")
    if (
        "relative" not in table and "verdict" in table
    ):  # a diagnosis, which has relative numbers only
        table = table.rename(columns={"moved": "relative"})
    _require(table, ["relative"], "model.movement() or diagnose()")
    if verdicts is not None and "verdict" not in table:
        found = _by_batch(verdicts, "a diagnosis")
        table = table.join(found[[name for name in ("level", "verdict") if name in found]])
    return table


def diagnosis_of(data: Any, key: str | None = None) -> pd.DataFrame:
    """Return the table of :func:`scbatchprox.diagnose`."""
    table = data
    if is_anndata(data):
        record = record_of(data, key)
        if "diagnosis" not in record.values:
            raise BadKey(
                f"Expected a diagnosis in uns[{record.key!r}], found none; refine(..., diagnose=True) "
                f"writes one."
            )
        table = record.values["diagnosis"]
    elif hasattr(data, "fit_"):
        table = data.diagnosis_
        if table is None:
            raise BadValue(
                "Expected a diagnosis, found a model that has none; draw the table of "
                "diagnose(Z, batch, model=model)."
            )
    table = _by_batch(table, "a diagnosis")
    _require(table, ["verdict"], "diagnose()")
    return table


def adapter_of(data: Any, key: str | None = None) -> AdapterRows:
    """Return the rows of an adapter, of a model, or in ``uns``."""
    if is_anndata(data):
        record = record_of(data, key).values
        batch = record.get("row_batch", record.get("batches"))
        return AdapterRows(
            np.asarray(batch), np.asarray(record["scale"]), np.asarray(record["shift"])
        )
    adapter = data.adapter_ if hasattr(data, "fit_") else data
    if not (hasattr(adapter, "scale") and hasattr(adapter, "batches")):
        raise BadType(
            f"Expected an AnnData, a fitted BatchProx or an Adapter, found {type(data).__name__}."
        )
    return AdapterRows(adapter.batches[adapter.batch], adapter.scale, adapter.shift)


def history_of(data: Any, key: str | None = None) -> pd.DataFrame:
    """Return the rounds of a fit."""
    found = data
    if is_anndata(data):
        found = record_of(data, key).values["history"]
    elif hasattr(data, "fit_"):
        found = data.history_
    if hasattr(found, "frame"):
        found = found.frame()
    if not isinstance(found, Mapping | pd.DataFrame):
        raise BadType(
            f"Expected an AnnData, a fitted BatchProx, a History or a Trace, found {type(data).__name__}."
        )
    table = pd.DataFrame(found)
    columns = [["round", *panels] for panels in (SOLVED, REGISTERED)]
    _require(table, columns["matched" in table], "model.history_")
    return table


def _by_batch(table: Any, what: str) -> pd.DataFrame:
    """Return a table indexed by batch; files of earlier versions have a dictionary of columns."""
    if not isinstance(table, Mapping | pd.DataFrame):
        raise BadType(
            f"Expected an AnnData, a fitted BatchProx or a table with {what}, found "
            f"{type(table).__name__}."
        )
    table = pd.DataFrame(table)
    return table.set_index("batch") if "batch" in table else table


def _require(table: pd.DataFrame, columns: list[str], source: str) -> None:
    absent = [name for name in columns if name not in table]
    if absent:
        raise BadKey(
            f"Expected the table of {source}, found one without {some_of(absent)}; available: "
            f"{some_of(table.columns, most=20)}."
        )
