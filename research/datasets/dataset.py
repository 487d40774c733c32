"""The data set of an experiment, made from any AnnData with a batch and a type per cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anndata as ad
import pandas as pd
import scipy.sparse as sp

from scbatchprox.cells.keys import batch_labels
from scbatchprox.core.checks import check_embedding, some_of
from scbatchprox.errors import BadKey, BadValue, Parameter
from scbatchprox.upstream.components import N_HVGS

from .counts import with_counts

__all__ = ["Dataset", "Keys"]

#: Preferred embeddings, in this order, if a file has several.
_FIRST = ("X_pca", "X_scvi", "X_scVI")
#: Parts of names of embeddings for pictures, which are not refined.
_PICTURES = ("umap", "tsne", "draw_graph", "spatial", "phate", "diffmap")


@dataclass(frozen=True)
class Dataset:
    """Cells to evaluate on.

    Attributes
    ----------
    name
        Name of the preset, or of the file.
    adata
        The cells; ``obs`` has the categorical columns ``batch`` and ``cell_type``, without missing
        values and unused categories.
    counts
        Whether ``adata.X`` holds raw counts.
    rep
        Key of ``obsm`` of an embedding to start from, if there is one.
    note
        Remarks for readers of results, such as cells left out, or where counts were found.
    """

    name: str
    adata: ad.AnnData
    counts: bool
    rep: str | None
    note: str = ""

    @classmethod
    def of(cls, name: str, adata: ad.AnnData, keys: Keys, note: str = "") -> Dataset:
        """Make a data set from an AnnData, which may be changed; missing parts are an error."""
        notes = [note] if note else []
        labels = _labels(adata.obs, keys.label)
        known = labels.notna().to_numpy()
        if not known.any():
            raise BadValue(
                f"Expected cell types in obs[{keys.label!r}] of {name}, found none in {len(labels)} cells."
            )
        if not known.all():
            n = int((~known).sum())
            notes.append(f"{n:,} cell{'s' * (n > 1)} without a cell type left out")
            adata, labels = adata[known].copy(), labels[known]
        batch = batch_labels(adata.obs, keys.batch)
        if batch.isna().any():
            raise BadValue(
                f"Expected a batch for every cell of {name}, found {int(batch.isna().sum()):,} of "
                f"{len(batch):,} cells without one in obs[{keys.batch!r}]."
            )
        # Both are read before either is written: the column "batch" may hold the types, or vice versa.
        columns = _categorical(batch, keys.batch), _categorical(labels, keys.label)
        adata.obs["batch"], adata.obs["cell_type"] = columns
        adata, where = with_counts(adata)
        if where not in (None, "X"):
            notes.append(f"counts from {where}")
        if where is not None and adata.n_vars < N_HVGS:
            notes.append(f"all of its {adata.n_vars:,} genes are used (fewer than {N_HVGS:,})")
        rep = _representation(name, adata, keys.rep, where is not None)
        if rep is not None:
            Z = check_embedding(adata.obsm[rep])
            adata.obsm[rep] = Z.toarray() if sp.issparse(Z) else Z
        return cls(name, adata, where is not None, rep, "; ".join(notes))


@dataclass(frozen=True)
class Keys:
    """Names of the columns of ``obs`` to read, and of the embedding in ``obsm``."""

    batch: str | Sequence[str] = "batch"
    label: str = "cell_type"
    rep: str | None = None


def _labels(obs: pd.DataFrame, key: str) -> pd.Series[Any]:
    if key not in obs:
        raise BadKey(
            "Expected ", Parameter("label_key"), f" in obs, found no column {key!r}; available: "
            f"{some_of(obs, most=20)}.",
        )  # fmt: skip
    return obs[key]


def _categorical(values: pd.Series[Any], key: object) -> pd.Categorical:
    """Return labels as categories with text names, in the same order."""
    found = pd.Categorical(values).remove_unused_categories()
    names = [str(name) for name in found.categories]
    if len(set(names)) < len(names):
        raise BadValue(
            f"Expected labels in obs[{key!r}] that differ as text, found {some_of(found.categories)}."
        )
    return pd.Categorical.from_codes(found.codes, names)


def _representation(name: str, adata: ad.AnnData, rep: str | None, counts: bool) -> str | None:
    """Return the name of the requested embedding, else of a preferred one, else of the only one."""
    available = some_of(adata.obsm, most=20)
    if rep is not None:
        if rep not in adata.obsm:
            raise BadKey(
                "Expected ", Parameter("use_rep"), f" in obsm, found no {rep!r}; available: {available}."
            )  # fmt: skip
        return rep
    several = [key for key in adata.obsm if not any(word in key.lower() for word in _PICTURES)]
    several = [key for key in _FIRST if key in several][:1] or several
    if len(several) == 1:
        return several[0]
    if counts:
        return None
    raise BadValue(
        f"Expected counts or one embedding in {name}, found neither; choose one with ",
        Parameter("use_rep"), f"; available: {available}.",
    )  # fmt: skip
