"""Elements of an AnnData group in HDF5 or zarr: rows of an embedding, columns of ``obs``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from anndata.io import read_elem, sparse_dataset

from ...core.checks import require_columns, some_of
from ...errors import BadKey, BadValue
from .base import Rows
from .encoding import BLOCK_LABELS, Encoder

__all__ = ["stored_obs", "stored_rows"]


def stored_rows(group: Any, use_rep: str) -> Rows:
    """Return the rows of an embedding in an AnnData group of HDF5 or zarr."""
    obsm = group.get("obsm", {})
    if use_rep in obsm:
        element = obsm[use_rep]
    elif use_rep == "X" and "X" in group:
        element = group["X"]
    else:
        raise BadKey(
            f"Expected use_rep in obsm, found no {use_rep!r}; available: {some_of(obsm, most=20)}."
        )
    kind = element.attrs.get("encoding-type", "array")
    if kind in ("csr_matrix", "csc_matrix"):
        rows = sparse_dataset(element)
        # Single rows of a column-compressed matrix cannot be read.
        return rows if kind == "csr_matrix" else rows.to_memory().tocsr()  # type: ignore[no-any-return]
    if kind == "dataframe":
        return read_elem(element).to_numpy()  # type: ignore[no-any-return]
    if not hasattr(element, "shape") or len(element.shape) != 2:
        raise BadValue(
            f"Expected {use_rep!r} to be a matrix (cells x coordinates), found {kind} of shape "
            f"{getattr(element, 'shape', None)}."
        )
    return element  # type: ignore[no-any-return]


def stored_obs(group: Any, keys: Sequence[str]) -> pd.DataFrame:
    """Read some columns of ``obs`` from an AnnData group of HDF5 or zarr."""
    obs = group["obs"]
    if not hasattr(obs, "keys"):  # a table of records, before anndata 0.7
        raise BadValue(
            "Expected a file written by anndata 0.7 or newer, found an older one: read it and "
            "write it again with anndata."
        )
    internal = ("_index", "__categories")
    names = obs.attrs.get("column-order", [name for name in obs if name not in internal])
    available = [name.decode() if isinstance(name, bytes) else str(name) for name in names]
    require_columns(keys, available)
    return pd.DataFrame({key: _column(obs, key) for key in keys})


def _column(obs: Any, key: str) -> Any:
    column = obs[key]
    if "categories" not in column.attrs:
        return _texts(column) if _is_text(column) else read_elem(column)
    # anndata 0.7: codes, with a reference (HDF5) or a path from obs (zarr) to the categories.
    categories = read_elem(obs[column.attrs["categories"]])
    return pd.Categorical.from_codes(column[()], categories)


def _is_text(column: Any) -> bool:
    kind = column.attrs.get("encoding-type")
    return kind == "nullable-string-array" or (kind == "string-array" and len(column.shape) == 1)


def _texts(column: Any) -> pd.Series[Any]:
    """Read texts as codes and categories; here an empty text is a label."""
    values, mask = (column["values"], column["mask"]) if hasattr(column, "keys") else (column, None)
    labels = Encoder(missing=())
    strings = values.asstr() if hasattr(values, "asstr") else values
    chunk = (getattr(values, "shards", None) or values.chunks or [1])[0]
    step = max(1, BLOCK_LABELS // chunk) * chunk  # no stored chunk is unpacked twice
    for lo in range(0, values.shape[0], step):
        block = np.array(strings[lo : lo + step], object)
        if mask is not None:
            block[mask[lo : lo + step]] = None
        labels.add(block.tolist())
    return labels.series()
