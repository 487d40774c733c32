"""A refinement that was made before, from the record that was written with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..cells.keys import as_keys
from ..core.adapter import Adapter
from ..core.anchors import Anchors
from ..core.fit import Fit, Method
from ..core.labels import Labels
from ..core.moments import Moments
from ..core.problem import Weights
from ..core.solvers import Exact, History
from ..core.target import Cells
from ..diagnosis.kept import MEASURES, kept_names
from ..diagnosis.verdict import COLUMNS as TEXTS
from ..diagnosis.verdict import level_of
from ..errors import BadValue
from ..io.model_file import checked, from_record
from ..targets.by_name import target_of
from ..targets.population.gather import gathered
from .tables import COLUMNS

__all__ = ["reason_against", "recorded_fit", "recorded_table"]

#: Numbers of a diagnosis, at most; more would fill the page with digits.
LARGEST = 1e12

#: Entries of a record that describe the adapter.
NEEDED = ("params", "batches", "row_batch", "scale", "shift")


def reason_against(
    record: Any, key: str, use_rep: str, batch_key: Any, labels: Labels
) -> str | None:
    """Say why a stored refined embedding cannot be shown, or ``None`` if it can."""
    start = f"There is a refined embedding {key!r}"
    if not isinstance(record, Mapping) or not set(NEEDED) <= set(record):
        return f"{start} without a record of the adapter that made it"
    if not isinstance(record["params"], Mapping):
        return f"{start} without a record of its parameters"
    source = record["params"].get("use_rep", use_rep)
    if source != use_rep:
        return f"{start} that was made from {source!r}, not from {use_rep!r}"
    used = [str(name) for name in np.atleast_1d(record["params"].get("batch_key", []))]
    if used != as_keys(batch_key):
        return f"{start} that was made for other batches ({', '.join(used) or 'unknown'})"
    if np.asarray(record["batches"]).tolist() != labels.batches.tolist():
        return f"{start} that was made when there were other batches"
    return None


def recorded_fit(record: dict[str, Any], cells: Cells) -> Fit:
    """Return the refinement of a record as a fit of these cells.

    Records of versions before 0.3.0 have no model: then it has no consensus, no evidence and no history.
    """
    if "model" in record:
        return _of_model(record, cells)
    batches = cells.labels.batches
    try:
        position = {str(batch): i for i, batch in enumerate(batches.tolist())}
        row_batch = np.array([position[str(batch)] for batch in np.asarray(record["row_batch"])])
        scale, shift = (np.asarray(record[name], np.float64) for name in ("scale", "shift"))
        anchors, bandwidth = (
            None if record.get(name) is None else np.asarray(record[name], np.float64)
            for name in ("anchors", "bandwidth")
        )
        adapter = Adapter(batches, row_batch, scale, shift, anchors, bandwidth)
        strength = float(record["params"].get("strength", 1.0))
    except (BadValue, ValueError, KeyError, TypeError) as error:
        raise _damaged(error) from error
    moments = _moments(cells, None if anchors is None else Anchors(batches, row_batch, anchors))
    if moments.n_dims != adapter.n_dims:
        raise BadValue(
            f"Expected the record of a refinement of {moments.n_dims} coordinates, found one of "
            f"{adapter.n_dims}."
        )
    params = record["params"]
    # A target with options is recorded as a text such as "PopulationTarget(...)".
    name = "population" if "population" in str(params.get("target")).lower() else "moment"
    method = Method(target_of(name), Exact(), 1, Weights(), strength)
    none = moments.select([])
    return Fit(method, moments, none, moments, adapter, History.none(), False)


def _of_model(record: dict[str, Any], cells: Cells) -> Fit:
    try:
        with checked("its model"):
            fit = from_record(record, "model").fit
    except BadValue as error:
        raise _damaged(error) from error
    rows = fit.moments
    if np.array_equal(rows.by_batch.n, cells.labels.n):
        return fit
    # Some cells are gone since.
    anchors = None if rows.anchors is None else Anchors(rows.batches, rows.batch, rows.anchors)
    return replace(fit, moments=_moments(cells, anchors))


def _damaged(error: Exception) -> BadValue:
    return BadValue(f"Expected the record of a refinement, found a damaged one ({error}).")


def _moments(cells: Cells, anchors: Anchors | None) -> Moments:
    """Return the moments that the rows of an adapter belong to: those of batches, or around its anchors."""
    if anchors is None:
        return cells.moments()
    # Some cells may be gone since: the rows of populations that have none are kept.
    return gathered(anchors, cells.moments(anchors), anchors)


def recorded_table(record: dict[str, Any], labels: Labels) -> pd.DataFrame | None:
    """Return the diagnosis in a record, if there is one of these cells, as far as their numbers tell."""
    stored = record.get("diagnosis")
    if not isinstance(stored, Mapping | pd.DataFrame):
        return None
    try:
        table = pd.DataFrame(stored)
    except (ValueError, TypeError):  # columns of other lengths, or of anything
        return None
    if "batch" in table:
        table = table.set_index("batch")
    if not _is_diagnosis(table):
        return None
    same = [str(batch) for batch in table.index] == [str(batch) for batch in labels.batches]
    return table if same and table["n_cells"].tolist() == labels.n.tolist() else None


def _is_diagnosis(table: pd.DataFrame) -> bool:
    """Whether a table has columns of a diagnosis and no others: words on each batch, and numbers."""
    # One of an earlier version may have no level and no reasons.
    judged = {"level", "reasons"} & set(table)
    needed = {"n_cells", "moved", "verdict", *(TEXTS if judged else ())}
    kept = (f"{name} {what}" for name in kept_names(table) for what in MEASURES)
    numbers = table.drop(columns=list(TEXTS), errors="ignore")
    return (
        needed <= set(table) <= {*TEXTS, "distinct", *COLUMNS, *kept}
        and table.columns.is_unique
        and all(isinstance(text, str) for name in TEXTS if name in table for text in table[name])
        and all(level_of(text) is not None for text in table.get("level", ()))
        and all(isinstance(x, np.dtype) and x.kind in "iuf" for x in numbers.dtypes)
        and not (numbers.abs() > LARGEST).any(axis=None)
    )
