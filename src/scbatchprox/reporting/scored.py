"""Scores of the unrefined and the refined embedding, where cell types are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from ..core.labels import Labels
from ..errors import BadValue
from ..evaluate.cells import sample
from ..evaluate.classification import f1_given_batch, leave_one_batch_out_f1
from ..evaluate.mixing import mixing_within_types, over_correction
from .facts import Scores

__all__ = ["SCORES", "scored"]

#: Cells that are scored, at most: more would take minutes.
MAX_CELLS = 5_000
#: Scores that are shown: name, what it tells, and whether a higher value is better.
SCORES: dict[str, tuple[str, str, bool]] = {
    "f1_given_batch": (
        "F1 given batch",
        "how well types are told apart by a linear classifier that knows the batch",
        True,
    ),
    "lobo_f1": (
        "Leave-one-batch-out F1",
        "how well types of a batch are predicted from the other batches",
        True,
    ),
    "mixing_within_types": ("Mixing within types", "how well batches mix inside each type", True),
    "over_correction": (
        "Over-correction",
        "part of the neighbours from other batches that are of another type",
        False,
    ),
}


def scored(
    before: Any, after: Any, batch: Labels, cell_type: Labels, missing: str, seed: int
) -> Scores | None:
    """Score both embeddings on cells with a type; ``None`` with fewer than two types."""
    known = np.flatnonzero(cell_type.batches[cell_type.codes].astype(str) != missing)
    if not known.size:
        return None
    batch = Labels.of(batch.batches[batch.codes[known]], known.size)
    cell_type = Labels.of(cell_type.batches[cell_type.codes[known]], known.size)
    if cell_type.batches.size < 2:
        return None
    rows = sample(batch, cell_type, MAX_CELLS, seed)
    batch, cell_type = batch.at(rows), cell_type.at(rows)
    first, second = (np.asarray(Z, np.float64)[known[rows]] for Z in (before, after))
    columns = {
        name: {
            "f1_given_batch": _f1_given_batch(Z, cell_type, batch, seed),
            "lobo_f1": leave_one_batch_out_f1(Z, cell_type, batch),
            "mixing_within_types": mixing_within_types(Z, batch, cell_type),
            "over_correction": over_correction(Z, batch, cell_type),
        }
        for name, Z in (("unrefined", first), ("refined", second))
    }
    return Scores(pd.DataFrame(columns).reindex(list(SCORES)), rows.size)


def _f1_given_batch(Z: Any, cell_type: Labels, batch: Labels, seed: int) -> float:
    try:
        return f1_given_batch(Z, cell_type, batch, seed=seed)
    except BadValue:  # there are too few cells for training and test cells of every type
        return float("nan")
