"""Elements of an AnnData group in HDF5 or zarr: rows of an embedding, columns of ``obs``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata.io import read_elem, sparse_dataset

from ...core.checks import absent_embedding, require_columns
from ...errors import BadValue, Part
from ..damaged import check_fits, reading
from .base import Rows
from .encoding import BLOCK_LABELS, Encoder
from .stored import categories_of, check_stored, child, group_in, path_of

__all__ = ["stored_obs", "stored_record", "stored_rows"]


class StoredRows:
    """Rows on disk; an error while they are read is one about the file."""

    def __init__(self, rows: Any, path: Path) -> None:
        self._rows, self._path = rows, path
        self.shape: tuple[int, ...] = tuple(rows.shape)
        self.dtype: np.dtype[Any] = np.dtype(rows.dtype)
        self.chunks = getattr(rows, "chunks", None)
        self.shards = getattr(rows, "shards", None)

    def __getitem__(self, rows: slice) -> Any:
        with reading(self._path):
            return _checked(self._rows[rows])


def stored_rows(group: Any, use_rep: str) -> Rows:
    """Return the rows of an embedding in an AnnData group of HDF5 or zarr."""
    path = path_of(group)
    with reading(path):
        return _rows(group, use_rep, path)


def _rows(group: Any, use_rep: str, path: Path) -> Rows:
    obsm = group_in(group, "obsm")
    element = child(obsm, use_rep, None)
    if element is None and use_rep == "X":
        element = child(group, "X", None)
    if element is None:
        raise absent_embedding(use_rep, obsm)
    kind = element.attrs.get("encoding-type", "array")
    if kind in ("csr_matrix", "csc_matrix"):
        check_stored(element, use_rep)
        rows = sparse_dataset(element)
        # Single rows of a column-compressed matrix cannot be read.
        return (
            StoredRows(rows, path) if kind == "csr_matrix" else _checked(rows.to_memory()).tocsr()
        )
    if kind == "dataframe":
        check_stored(element, use_rep)
        return read_elem(element).to_numpy()  # type: ignore[no-any-return]
    check_stored(element, use_rep, whole=False)
    if len(getattr(element, "shape", None) or ()) != 2:
        raise BadValue(
            f"Expected {use_rep!r} to be a matrix (cells x coordinates), found {kind} of shape "
            f"{getattr(element, 'shape', None)}."
        )
    return StoredRows(element, path)


def stored_obs(group: Any, keys: Sequence[str], what: Part) -> pd.DataFrame:
    """Read some columns of ``obs`` from an AnnData group of HDF5 or zarr."""
    with reading(path_of(group)):
        obs = child(group, "obs")
        if not hasattr(obs, "keys"):  # a table of records, before anndata 0.7
            raise BadValue(
                "Expected a file written by anndata 0.7 or newer, found an older one: read it and "
                "write it again with anndata."
            )
        internal = ("_index", "__categories")
        names = obs.attrs.get("column-order", [name for name in obs if name not in internal])
        available = [name.decode() if isinstance(name, bytes) else str(name) for name in names]
        require_columns(keys, available, what)
        return pd.DataFrame({key: _column(obs, key) for key in keys})


def stored_record(group: Any, key: str) -> dict[str, Any] | None:
    """Read the record of a result from an AnnData group; ``None`` if there is no such result or record."""
    with reading(path_of(group)):
        result, record = (child(group_in(group, at), key, None) for at in ("obsm", "uns"))
        # An entry from another program may not be a group.
        if result is None or not hasattr(record, "keys"):
            return None
        check_stored(record, key)
        found: dict[str, Any] = read_elem(record)
        return found


def _column(obs: Any, key: str) -> Any:
    column = child(obs, key)
    check_stored(column, key)
    if "categories" not in column.attrs:
        found = _texts(column) if _is_text(column) else read_elem(column)
    else:
        categories = categories_of(column, obs)
        check_stored(categories, key)
        found = pd.Categorical.from_codes(column[()], read_elem(categories))
    shape = getattr(found, "shape", None)
    if shape is None or len(shape) != 1 or getattr(found.dtype, "kind", "O") in "Vc":
        raise BadValue(
            f"Expected one label per cell in obs[{key!r}], found {type(found).__name__}."
        )
    check_fits(8 * shape[0], f"the labels {key!r}", path_of(obs))
    return found


def _checked(block: Any) -> Any:
    """Check positions in a sparse block: compiled loops would follow them anywhere."""
    if sp.issparse(block):
        block.check_format(full_check=True)
    return block


def _is_text(column: Any) -> bool:
    kind = column.attrs.get("encoding-type")
    return kind == "nullable-string-array" or (kind == "string-array" and len(column.shape) == 1)


def _texts(column: Any) -> pd.Series[Any]:
    """Read texts as codes and categories; here an empty text is a label."""
    values, mask = (
        (child(column, "values"), child(column, "mask"))
        if hasattr(column, "keys")
        else (column, None)
    )
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
