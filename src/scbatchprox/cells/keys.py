"""What users name: columns of ``obs``, as one label per cell, and the embedding of an AnnData or MuData.

``"rna:X_pca"`` is ``obsm["X_pca"]`` of the modality ``rna`` of a MuData. mudata is never imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..core.checks import absent_embedding, comes_from, require_columns, some_of
from ..errors import BadType, BadValue
from ..kernels.arrays import Ints
from .dask import in_memory

__all__ = ["Found", "as_keys", "as_names", "batch_labels", "find_embedding"]


def as_keys(batch_key: str | Sequence[str], what: str = "batch key") -> list[str]:
    """Return one or several names of columns as a list."""
    keys = [batch_key] if isinstance(batch_key, str) else batch_key
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) for key in keys):
        # The type only: a whole column of labels is no part of a sentence.
        raise BadType(
            f"Expected the name of a column of obs as {what}, or a list of names, found "
            f"{_kind(batch_key)}."
        )
    if not keys:
        raise BadValue(f"Expected at least one {what}, found an empty list.")
    if len(set(keys)) < len(keys):
        raise BadValue(f"Expected each {what} once, found {some_of(keys)}.")
    return list(keys)


def as_names(keep: str | Sequence[str] | None) -> list[str]:
    """Return the names of columns to keep; an empty list is as good as ``None``."""
    if keep is None or (isinstance(keep, list | tuple) and not keep):
        return []
    return as_keys(keep, "column to keep")


def _kind(value: object) -> str:
    found = type(value).__name__
    if isinstance(value, list | tuple):
        other = next(item for item in value if not isinstance(item, str))
        found += f" of {type(other).__name__}"
    return found


def batch_labels(obs: pd.DataFrame, batch_key: str | Sequence[str]) -> pd.Series[Any]:
    """Return the batch of each cell; several columns are combined as ``"a | b"``."""
    keys = as_keys(batch_key)
    require_columns(keys, (key for key in obs if key in obs.columns))
    if not isinstance(obs, pd.DataFrame):  # of a lazily opened AnnData: read only these columns
        obs = pd.DataFrame({key: in_memory(obs[key]) for key in keys})
    if len(keys) == 1:
        return obs[keys[0]]
    missing = int(obs[keys].isna().any(axis=1).sum())
    if missing:
        raise BadValue(
            f"Expected a batch label for every cell, found {missing} of {len(obs)} cells with a "
            f"missing label in {some_of(keys)}."
        )
    codes = _combined(obs, keys)
    # One row of each combination, in the order of the codes, so that pandas names and sorts few rows.
    first = obs.loc[~pd.Series(codes, obs.index).duplicated(), keys]
    group = first.groupby(keys, observed=True, sort=True)
    names = [" | ".join(map(str, name)) for name in group.size().index]
    if len(set(names)) < len(names):
        raise BadValue(
            f"Expected combinations of {some_of(keys)} with distinct names, found two that read the "
            f"same when joined with ' | '; rename the labels."
        )
    position = group.ngroup().to_numpy(np.int32)
    return pd.Series(pd.Categorical.from_codes(position[codes], names), index=obs.index)


def _combined(obs: pd.DataFrame, keys: Sequence[str]) -> Ints:
    """Number the combinations of labels in the order of their first cells.

    Two columns at a time: this needs less memory than a grouping of all cells.
    """
    codes: Ints = np.zeros(len(obs), np.int32)
    for key in keys:
        column = obs[key]
        more = (
            column.cat.codes.to_numpy()
            if isinstance(column.dtype, pd.CategoricalDtype)
            else pd.factorize(column)[0]
        )
        both = codes.astype(np.int64)
        both *= int(more.max(initial=0)) + 1
        both += more
        del more
        codes = pd.factorize(both)[0].astype(np.int32)
    return codes


@dataclass(frozen=True, eq=False)
class Found:
    """An embedding, and where it was found.

    Attributes
    ----------
    adata
        The AnnData (a modality of a MuData) or MuData whose ``obsm`` holds it; results go there.
    key
        Its key in that ``obsm``, or ``"X"``.
    Z
        The embedding (cells x coordinates).
    obs
        Columns with labels of its cells. For a modality: its own, then those of the whole MuData.
    prefix
        ``"rna:"`` for the modality ``rna``.
    """

    adata: Any
    key: str
    Z: Any
    obs: Any
    prefix: str = ""

    def result_key(self, key_added: str | None) -> str:
        """Return the key to write a result to, in ``obsm`` and ``uns``; users may write the prefix or not."""
        return (key_added or f"{self.key}_batchprox").removeprefix(self.prefix)


def find_embedding(data: Any, use_rep: str) -> Found:
    """Find an embedding by its key of ``obsm``, by ``"X"``, or by ``"modality:key"`` in a MuData."""
    if not hasattr(data, "obsm"):
        raise BadType(
            f"Expected an AnnData or MuData, found {type(data).__name__}; for an array, call "
            f"BatchProx().fit_transform(Z, batch=labels)."
        )
    if not comes_from(data, "mudata.MuData"):
        return _in_anndata(data, use_rep, data.obs)
    # MuData keeps a mask of cells in its own obsm, under the name of each modality.
    own = [key for key in data.obsm if key not in data.mod]
    if use_rep in own:
        return Found(data, use_rep, data.obsm[use_rep], data.obs)
    for name, modality in data.mod.items():
        if use_rep.startswith(f"{name}:"):
            return _in_anndata(
                modality, use_rep, _modality_obs(data, name, modality.obs), f"{name}:"
            )
    available = [*own, *(f"{name}:{key}" for name, part in data.mod.items() for key in part.obsm)]
    raise absent_embedding(use_rep, available)


def _in_anndata(adata: Any, use_rep: str, obs: Any, prefix: str = "") -> Found:
    key = use_rep.removeprefix(prefix)
    if key in adata.obsm:
        return Found(adata, key, adata.obsm[key], obs, prefix)
    if key == "X" and adata.X is not None:
        return Found(adata, key, adata.X, obs, prefix)
    raise absent_embedding(use_rep, [prefix + key for key in adata.obsm])


def _modality_obs(mdata: Any, name: str, own: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of a modality, also as ``"rna:column"``, and those of the MuData for its cells."""
    if not (own.index.is_unique and mdata.obs.index.is_unique):
        return own  # cells of the MuData cannot be found by name
    shared = mdata.obs.reindex(own.index)
    prefixed = own.add_prefix(f"{name}:")
    shared = shared[shared.columns.difference([*own.columns, *prefixed.columns], sort=False)]
    return pd.concat([own, shared, prefixed], axis=1)
