"""A refinement that was made before, from the record that was written with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..cells.keys import as_keys
from ..core.adapter import Adapter
from ..core.anchors import Anchors
from ..core.fit import Fit, Method
from ..core.labels import Labels
from ..core.problem import Weights
from ..core.solvers import Exact, History
from ..core.target import Cells
from ..errors import BadValue
from ..targets.by_name import target_of

__all__ = ["reason_against", "recorded_fit", "recorded_table"]

#: Entries of a record that describe the adapter.
NEEDED = ("params", "batches", "row_batch", "scale", "shift")


def reason_against(record: Any, key: str, batch_key: Any, labels: Labels) -> str | None:
    """Say why a stored refined embedding cannot be shown, or ``None`` if it can."""
    start = f"There is a refined embedding {key!r}"
    if not isinstance(record, dict) or not set(NEEDED) <= set(record):
        return f"{start} without a record of the adapter that made it"
    used = [str(name) for name in np.atleast_1d(record["params"].get("batch_key", []))]
    if used != as_keys(batch_key):
        return f"{start} that was made for other batches ({', '.join(used) or 'unknown'})"
    if record["batches"].tolist() != labels.batches.tolist():
        return f"{start} that was made when there were other batches"
    return None


def recorded_fit(record: dict[str, Any], cells: Cells) -> Fit:
    """Return the refinement of a record as a fit of these cells; it has no consensus and no history."""
    batches = cells.labels.batches
    row_batch = np.searchsorted(batches, np.asarray(record["row_batch"]).astype(batches.dtype))
    anchors = record.get("anchors")
    try:
        adapter = Adapter(
            batches, row_batch, record["scale"], record["shift"], anchors, record.get("bandwidth")
        )
        by = None if anchors is None else Anchors(batches, row_batch, np.asarray(anchors))
        moments = cells.moments(by)
        if moments.n_dims != adapter.n_dims:
            raise BadValue(f"it has {adapter.n_dims} coordinates, the cells {moments.n_dims}")
    except (BadValue, ValueError, IndexError, TypeError) as error:
        raise BadValue(
            f"Expected a record of a refinement of these cells, found a damaged one ({error})."
        ) from error
    params = record["params"]
    # A target with options is recorded as a text such as "PopulationTarget(...)".
    name = "population" if "population" in str(params.get("target")).lower() else "moment"
    strength = float(params.get("strength", 1.0))
    method = Method(target_of(name), Exact(), 1, Weights(), strength)
    none = moments.select([])
    return Fit(method, moments, none, moments, adapter, History.none(), False)


def recorded_table(record: dict[str, Any], labels: Labels) -> pd.DataFrame | None:
    """Return the diagnosis in a record, if there is one for these batches."""
    if "diagnosis" not in record:
        return None
    table = pd.DataFrame(record["diagnosis"])
    if "batch" in table:
        table = table.set_index("batch")
    same = [str(batch) for batch in table.index] == [str(batch) for batch in labels.batches]
    return table if same and "verdict" in table else None
