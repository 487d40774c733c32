"""An embedding before and after refinement, with the labels of its cells, from whatever a user has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..cells.keys import as_keys, batch_labels
from ..core.checks import check_array_like, some_of
from ..core.labels import Labels
from ..errors import BadKey, BadValue
from ..kernels.arrays import Floats, Ints
from .canvas import label
from .given import is_anndata, record_of
from .layout import dense

__all__ = ["Pair", "pair_of"]

#: The name of cells without a label.
UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class Pair:
    """Both embeddings, and the labels of the cells by the name of the colouring."""

    before: Any
    after: Any
    groups: dict[str, Labels]
    name: str = "the embedding"
    titles: tuple[str, str] = ("before", "after")
    adata: Any = None

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


def _of_anndata(adata: Any, after: Any, key: str | None, batch_key: Any, label_key: Any) -> Pair:
    if after is not None:
        raise BadValue("Expected key= with an AnnData, found an array as `after`.")
    key, record = record_of(adata, key)
    use_rep = str(record["params"]["use_rep"])
    for name in (key, use_rep):
        if name not in adata.obsm and not (name == use_rep == "X"):
            raise BadKey(
                f"Expected an embedding in obsm, found no {name!r}; available: "
                f"{some_of(adata.obsm, most=20)}."
            )
    batch_key = [str(k) for k in record["params"]["batch_key"]] if batch_key is None else batch_key
    keys = {"batch": batch_key, "cell type": label_key}
    groups = {
        name: Labels.of(_labels(adata.obs, found), adata.n_obs)
        for name, found in keys.items()
        if found is not None
    }
    before = adata.X if use_rep == "X" else adata.obsm[use_rep]
    titles = (f"before: {label(use_rep)}", f"after: {label(key)}")
    return Pair(before, adata.obsm[key], groups, use_rep, titles, adata)


def _of_arrays(before: Any, after: Any, batch: Any, label: Any) -> Pair:
    if after is None:
        raise BadValue("Expected two embeddings, before and after, found one array.")
    for Z in (before, after):
        check_array_like(Z)
    before, after = (Z if hasattr(Z, "shape") else np.asarray(Z) for Z in (before, after))
    before, after = (Z.to_numpy() if isinstance(Z, pd.DataFrame) else Z for Z in (before, after))
    if before.shape != after.shape or before.ndim != 2:
        raise BadValue(
            f"Expected two embeddings of the same shape (cells, coordinates), found {before.shape} and "
            f"{after.shape}."
        )
    given = {"batch": batch, "cell type": label}
    groups = {
        name: Labels.of(_known(labels), before.shape[0])
        for name, labels in given.items()
        if labels is not None
    }
    return Pair(before, after, groups)


def _labels(obs: pd.DataFrame, key: Any) -> Any:
    return _known(batch_labels(obs, key)) if len(as_keys(key)) == 1 else batch_labels(obs, key)


def _known(labels: Any) -> Any:
    """Labels with a name for missing ones: types are often known for some cells only."""
    found = pd.Series(labels).reset_index(drop=True)
    missing = found.isna()
    if not missing.any():
        return found
    return found.astype(object).where(~missing, UNKNOWN).astype(str)
