"""The embedding that a user names: in an AnnData, in a MuData, or in one modality of a MuData.

``"rna:X_pca"`` is ``obsm["X_pca"]`` of the modality ``rna``. mudata is never imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..core.checks import absent_embedding, comes_from
from ..errors import BadType

__all__ = ["Found", "find_embedding"]


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
            return _in_anndata(modality, use_rep, _labels(data, name, modality.obs), f"{name}:")
    available = [*own, *(f"{name}:{key}" for name, part in data.mod.items() for key in part.obsm)]
    raise absent_embedding(use_rep, available)


def _in_anndata(adata: Any, use_rep: str, obs: Any, prefix: str = "") -> Found:
    key = use_rep.removeprefix(prefix)
    if key in adata.obsm:
        return Found(adata, key, adata.obsm[key], obs, prefix)
    if key == "X" and adata.X is not None:
        return Found(adata, key, adata.X, obs, prefix)
    raise absent_embedding(use_rep, [prefix + key for key in adata.obsm])


def _labels(mdata: Any, name: str, own: pd.DataFrame) -> pd.DataFrame:
    """Return the columns of a modality, also as ``"rna:column"``, and those of the MuData for its cells."""
    if not (own.index.is_unique and mdata.obs.index.is_unique):
        return own  # cells of the MuData cannot be found by name
    shared = mdata.obs.reindex(own.index)
    prefixed = own.add_prefix(f"{name}:")
    shared = shared[shared.columns.difference([*own.columns, *prefixed.columns], sort=False)]
    return pd.concat([own, shared, prefixed], axis=1)
