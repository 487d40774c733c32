"""An embedding before and after refinement, with the groups of its cells, from whatever a user has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from ..api.record import record_of
from ..cells.modality import find_embedding
from ..core.checks import check_array_like, some_of
from ..core.tensors import to_numpy
from ..errors import BadKey, BadValue
from ..kernels.arrays import Floats, Ints
from .canvas import label
from .given import is_anndata
from .groups import Groups, batches_of, column
from .layout import dense

__all__ = ["Pair", "pair_of"]


@dataclass(frozen=True, eq=False)
class Pair:
    """Both embeddings with their names, the groups of cells by colouring, and what else is in ``obsm``."""

    before: Any
    after: Any
    groups: dict[str, Groups]
    names: tuple[str, str] = ("the embedding", "the refined embedding")
    titles: tuple[str, str] = ("before", "after")
    obsm: Mapping[str, Any] = field(default_factory=dict)

    def moved(self, rows: Ints) -> Floats:
        """How far cells moved, in spreads: square roots of the total variance of all cells."""
        before, after = (
            dense(Z if rows.size == Z.shape[0] else Z[rows]) for Z in (self.before, self.after)
        )
        difference = np.subtract(
            after, before, dtype=np.float64 if before.dtype.kind != "f" else None
        )
        step = np.sqrt(np.einsum("ij,ij->i", difference, difference))
        spread = float(np.sqrt(before.var(0, dtype=np.float64).sum()))
        moved: Floats = step / spread if spread > 0 else step
        return moved


def pair_of(data: Any, after: Any, key: str | None, batch_key: Any, label_key: Any) -> Pair:
    """Return both embeddings of an AnnData, or of two arrays; see :func:`.before_after`."""
    if is_anndata(data):
        return _of_anndata(data, after, key, batch_key, label_key)
    return _of_arrays(data, after, batch_key, label_key)


def _of_anndata(data: Any, after: Any, key: str | None, batch_key: Any, label_key: Any) -> Pair:
    if after is not None:
        raise BadValue("Expected key= with an AnnData, found an array as `after`.")
    record = record_of(data, key)
    obsm, prefix = dict(record.adata.obsm), record.prefix
    obsm |= {f"{prefix}{name}": Z for name, Z in obsm.items()}
    key, use_rep = record.key, str(record.values["params"]["use_rep"])
    for name in (key, use_rep):
        if name not in obsm and not (name == use_rep == "X"):
            raise BadKey(
                f"Expected an embedding in obsm, found no {name!r}; available: "
                f"{some_of(record.adata.obsm, most=20)}."
            )
    found = find_embedding(data, f"{prefix}{use_rep}")
    obs = found.obs
    given = {
        "batch": batches_of(obs, record)
        if batch_key is None
        else column(obs, batch_key, "batch_key"),
        "cell type": None if label_key is None else column(obs, label_key, "label_key"),
    }
    titles = (f"before: {label(use_rep)}", f"after: {label(key)}")
    pair = _array(found.Z), _array(obsm[key])
    return Pair(*pair, _groups(given, record.adata.n_obs), (use_rep, key), titles, obsm)


def _of_arrays(before: Any, after: Any, batch: Any, cell_type: Any) -> Pair:
    if after is None:
        raise BadValue("Expected two embeddings, before and after, found one array.")
    for Z in (before, after):
        check_array_like(Z)
    before, after = _array(before), _array(after)
    if before.shape != after.shape or before.ndim != 2:
        raise BadValue(
            f"Expected two embeddings of the same shape (cells, coordinates), found {before.shape} and "
            f"{after.shape}."
        )
    given = {"batch": batch, "cell type": cell_type}
    return Pair(before, after, _groups(given, before.shape[0]))


def _groups(given: dict[str, Any], n_cells: int) -> dict[str, Groups]:
    return {
        name: Groups.of(labels, n_cells, name)
        for name, labels in given.items()
        if labels is not None
    }


def _array(Z: Any) -> Any:
    """Return an embedding that can be indexed as an array; one that is not in memory stays where it is."""
    if isinstance(Z, pd.DataFrame):
        return Z.to_numpy()
    return Z if hasattr(Z, "ndim") else to_numpy(Z)
