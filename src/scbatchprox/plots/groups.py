"""The group of each cell in a picture: its batch, or its type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..api.record import Record
from ..cells.keys import as_keys, batch_labels
from ..core.checks import require_columns, some_of
from ..core.labels import Labels
from ..core.tensors import is_tensor, to_numpy
from ..errors import BadKey, BadValue, Parameter
from ..kernels.arrays import Ints

__all__ = ["Groups", "batches_of", "column"]


@dataclass(frozen=True, eq=False)
class Groups:
    """The code of each cell, -1 for a cell without a label, and the names that the codes refer to."""

    codes: Ints
    names: list[Any]

    @classmethod
    def of(cls, labels: Any, n_cells: int, what: str) -> Groups:
        """Encode labels of any type; ``what`` they are is for errors. Types are often known for some only."""
        if is_tensor(labels):  # pandas would take each of its entries for a label of its own
            labels = to_numpy(labels)
        found = pd.Series(labels).reset_index(drop=True)
        if len(found) != n_cells:
            raise BadValue(f"Expected one {what} per cell ({n_cells}), found {len(found)} labels.")
        known = found.notna().to_numpy()
        encoded = Labels.of(found if known.all() else found[known], int(known.sum()))
        codes: Ints = np.full(n_cells, -1, np.int32)
        codes[known] = encoded.codes
        return cls(codes, encoded.batches.tolist())

    @property
    def incomplete(self) -> bool:
        """Whether some cells have no label."""
        return bool((self.codes < 0).any())


def column(obs: Any, key: Any, what: str) -> Any:
    """Return a column of ``obs``, or several as one; ``what`` is the argument that named it."""
    require_columns(as_keys(key), list(obs.columns), what)
    return batch_labels(obs, key)


def batches_of(obs: Any, record: Record) -> Any:
    """Return the batch of each cell that was refined."""
    keys = [str(key) for key in record.values["params"]["batch_key"]]
    absent = [key for key in keys if key not in obs.columns]
    if not absent:
        return column(obs, keys, "batch_key")
    # A record of a MuData may name "rna:batch", which the modality itself calls "batch".
    own = [key.partition(":")[2] if key in absent else key for key in keys]
    if all(key in obs.columns for key in own):
        found = column(obs, own, "batch_key")
        refined = set(map(str, np.asarray(record.values["batches"]).tolist()))
        if set(map(str, pd.unique(found))) == refined:
            return found
    raise BadKey(
        f"Expected the batches that were refined in obs, found no column {some_of(absent)}; available: "
        f"{some_of(obs.columns, most=20)}; name one with ", Parameter("batch_key="), ".",
    )  # fmt: skip
