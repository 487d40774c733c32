"""Elements of an AnnData group in HDF5 or zarr: rows of an embedding, columns of ``obs``.

What is really stored is checked before anything is read or changed. In HDF5 and zarr an array of any shape is
legal without a stored value: all values are then the fill value. And what an HDF5 file holds under a name may
be in any other file of the user: whoever opens it by that name reads the other file, and whoever writes there
changes it. So every entry is opened by :func:`child`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata.io import read_elem, sparse_dataset

from ...core.checks import BATCH_KEY, absent_embedding, require_columns
from ...errors import BadValue, Part
from ..damaged import check_fits, reading
from . import BLOCK_LABELS, CellFile, Encoder, RowsOnDisk

__all__ = [
    "AnnDataFile", "check_stored", "child", "group_in", "own_group", "parts_of", "stored_obs", "stored_rows",
]  # fmt: skip


class AnnDataFile(CellFile):
    """An AnnData in HDF5 or zarr, opened for reading."""

    #: Its group.
    group: Any

    def _embedding(self, use_rep: str | None) -> RowsOnDisk:
        """Return the rows of ``obsm[use_rep]``, or of ``X``."""
        name, obsm = use_rep or self.default_rep, group_in(self.group, "obsm")
        inside = name != "X" or "X" in obsm
        self.note(f"obsm/{name}" if inside else "X")
        element = child(obsm if inside else self.group, name, None)
        if element is None:
            raise absent_embedding(name, obsm)
        rows = stored_rows(element, name)
        chunks = getattr(rows, "shards", None) or getattr(rows, "chunks", None)
        self.row_step = chunks[0] if chunks else 1
        return rows

    def _obs(self, keys: Sequence[str], what: Part) -> pd.DataFrame:
        self.note(*(f"obs/{key}" for key in keys))
        return stored_obs(self.group, keys, what)

    def record(self, key: str) -> dict[str, Any] | None:
        """Read ``uns[key]``, if ``obsm`` has the result and the labels are those of the file."""
        if self.labels is not None:
            return None
        with reading(self.path):
            result, record = (child(group_in(self.group, at), key, None) for at in ("obsm", "uns"))
            # An entry from another program may not be a group.
            if result is None or not hasattr(record, "keys"):
                return None
            check_stored(record, key)
            found: dict[str, Any] = read_elem(record)
            return found


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


def stored_rows(element: Any, name: str) -> RowsOnDisk:
    """Return the rows of a matrix in HDF5 or zarr, in memory if they cannot be read in parts."""
    kind = element.attrs.get("encoding-type", "array")
    sparse = kind in ("csr_matrix", "csc_matrix")
    check_stored(element, name, whole=sparse or kind == "dataframe")
    if kind == "dataframe":
        return read_elem(element).to_numpy()  # type: ignore[no-any-return]
    # Not before the check: to know the shape of a virtual array other files are opened.
    shape = getattr(element, "shape", None)
    if not sparse and len(shape or ()) != 2:
        raise BadValue(
            f"Expected {name!r} to be a matrix (cells x coordinates), found {kind} of shape {shape}."
        )
    rows = sparse_dataset(element) if sparse else element
    if kind == "csc_matrix":  # its single rows cannot be read
        return _checked(rows.to_memory()).tocsr()  # type: ignore[no-any-return]
    return StoredRows(rows, path_of(element))


def stored_obs(group: Any, keys: Sequence[str], what: Part = BATCH_KEY) -> pd.DataFrame:
    """Read some columns of ``obs`` from an AnnData group of HDF5 or zarr."""
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


#: Groups within groups, at most, in an element that is read. A group can hold itself.
DEPTH = 6
#: Soft links on the way to an entry, at most, as in HDF5 itself.
LINKS = 16


def path_of(element: Any) -> Path:
    """Return the file of a group or array."""
    if isinstance(element, h5py.Group | h5py.Dataset):
        return Path(os.fsdecode(element.file.filename))
    return Path(str(getattr(element.store, "root", element.store)))


def parts_of(name: Any) -> list[str]:
    """Return the parts of a name, which may come from a file; none of them leads upwards or to the top."""
    parts = (name.decode() if isinstance(name, bytes) else str(name)).split("/")
    if not {"", ".", ".."}.isdisjoint(parts):
        raise BadValue(f"Expected the name of an entry, found {name!r}, a path to another place.")
    return parts


def child(group: Any, name: Any, *default: Any) -> Any:
    """Return an entry of a group, or the default if there is none; in HDF5 only if it is in the same file."""
    parts = parts_of(name)
    # Only what is absent has a default: an entry that is there and cannot be opened is damaged.
    if default and not (hasattr(group, "keys") and parts[0] in group):
        return default[0]
    return _followed(group, parts) if isinstance(group, h5py.Group) else group["/".join(parts)]


def _followed(group: h5py.Group, parts: list[str]) -> Any:
    """Go down from a group step by step: HDF5 itself would open other files on the way."""
    name, found, links = "/".join(parts), group, 0
    ahead = parts[::-1]
    while ahead:
        part = ahead.pop()
        link = found.get(part, getlink=True) if isinstance(found, h5py.Group) else None
        if isinstance(link, h5py.HardLink):
            found = found[part]
        elif isinstance(link, h5py.SoftLink):
            links += 1
            if links > LINKS:
                raise BadValue(
                    f"Expected links in the file to end, found damaged ones at {name!r}."
                )
            found = found.file if link.path.startswith("/") else found
            ahead += [step for step in link.path.split("/")[::-1] if step not in ("", ".")]
        elif link is None:
            raise KeyError(name)
        else:
            raise _elsewhere(name)
    return found


def group_in(group: Any, name: str) -> Any:
    """Return a group within a group; an empty one if there is none."""
    found = child(group, name, {})
    if not hasattr(found, "keys"):
        raise BadValue(f"Expected {name!r} as a group, found an array.")
    return found


def own_group(file: h5py.File, name: str) -> h5py.Group:
    """Return a group of a file that is to be changed; create it as anndata would if it is missing."""
    if name not in file:
        file.create_group(name).attrs.update({"encoding-type": "dict", "encoding-version": "0.1.0"})
    found: h5py.Group = group_in(file, name)
    link = file.get(name, getlink=True)
    # By another name it is part of another element, or the whole file, which a change would damage.
    if not isinstance(link, h5py.HardLink) or h5py.h5o.get_info(found.id).rc != 1:
        raise BadValue(
            f"Expected {name!r} as a group with one name to write to, found links between groups; read the "
            f"file and write it again with anndata."
        )
    return found


def categories_of(column: Any, group: Any) -> Any:
    """Return the categories of codes in a group, as anndata 0.7 stored them.

    It kept a reference (HDF5), which never leads to another file, or a path from the group (zarr).
    """
    place = column.attrs["categories"]
    return group[place] if isinstance(place, h5py.Reference) else child(group, place)


def check_stored(element: Any, what: str, *, whole: bool = True, depth: int = 0) -> None:
    """Check that all values of an element are stored in its file, and that memory can hold what is read.

    That is the ``whole`` element, or a few rows of it at a time.
    """
    if depth > DEPTH:
        raise BadValue(
            f"Expected an element {what!r} of a few groups, found one that holds itself."
        )
    if hasattr(element, "keys"):
        for name in dict.fromkeys([*element, *_columns(element)]):
            part = child(element, name)
            check_stored(part, what, depth=depth + 1)
            if "categories" in part.attrs:
                check_stored(categories_of(part, element), what, depth=depth + 1)
        return
    if isinstance(element, h5py.Dataset):
        _check_hdf5(element, what)
    if element.shape is None:  # HDF5 has arrays without any values
        return
    size = element.dtype.itemsize
    chunk = math.prod(getattr(element, "shards", None) or element.chunks or ())
    parts = math.prod(element.shape) if whole else max(chunk, *element.shape[1:], 1)
    check_fits(int(parts) * size, f"what is read at once of {what!r}", path_of(element))


def _columns(table: Any) -> Iterator[Any]:
    """Yield the names in the attributes of a table by which anndata finds its columns."""
    for key in ("_index", "column-order"):
        found = table.attrs.get(key, ())
        yield from (found,) if isinstance(found, str | bytes) else found


def _check_hdf5(data: h5py.Dataset, what: str) -> None:
    # First of all: the shape of a virtual array may be that of another file, which is opened to know it.
    if data.is_virtual or data.external:
        raise _elsewhere(what)
    if data.shape is None:
        return
    if data.chunks is None:
        there, wanted = data.id.get_storage_size(), data.size * data.id.get_type().get_size()
    else:
        there = data.id.get_num_chunks()
        wanted = math.prod(-(-n // c) for n, c in zip(data.shape, data.chunks, strict=True))
    if there < wanted:
        unit = "bytes" if data.chunks is None else "chunks"
        raise BadValue(
            f"Expected all values of {what!r} (shape {data.shape}), found {there:,} of {wanted:,} "
            f"{unit} stored."
        )


def _elsewhere(what: str) -> BadValue:
    return BadValue(
        f"Expected all values in one file, found {what!r} stored in another, which is never followed."
    )
