"""New batches at the door of an atlas: what makes them impossible, and what became of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..api.estimator import BatchProx
from ..core.checks import some_of
from ..core.labels import union
from ..errors import BadValue
from ..kernels.arrays import Floats

__all__ = ["Arrival", "check_arrival"]


@dataclass(frozen=True, eq=False)
class Arrival:
    """What became of new cells: how they were judged, and the version that holds them, if any.

    ``scores`` are those of :func:`scbatchprox.atlas.cell_scores`, where they were asked for.
    """

    judgement: pd.DataFrame
    version: int | None
    scores: Floats | None = None


def check_arrival(
    before: BatchProx | None,
    batches: np.ndarray,
    n_dims: int,
    merge: bool,
    name: str | None = None,
) -> None:
    """Say what makes new cells impossible to add, before they are read."""
    if before is None:
        return
    if n_dims != before.n_features_in_:
        where = "" if name is None else f" in {name}"
        raise BadValue(
            f"Expected an embedding of {before.n_features_in_} coordinates, as the atlas has, found "
            f"{n_dims}{where}."
        )
    union(before.batches_, batches)  # labels of another type are an error
    known = set(before.batches_.tolist())
    if not merge and (there := [b for b in batches.tolist() if b in known]):
        raise BadValue(
            f"Expected new batches, found {some_of(there)} in the atlas already; merge=True "
            f"(--merge) counts more cells of a known batch."
        )
