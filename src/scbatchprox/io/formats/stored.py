"""What an AnnData file really stores: checked before anything of it is read.

In HDF5 and zarr an array of any shape is legal without a stored value: all values are then the fill value.
And the values of an HDF5 array may be those of any other file of the user.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import h5py

from ...errors import BadValue
from ..damaged import check_fits

__all__ = ["check_stored", "child", "path_of"]

#: Groups within groups, at most, in an element that is read. A group can hold itself.
DEPTH = 6


def path_of(element: Any) -> Path:
    """Return the file of a group or array; of a dictionary, that of its first entry."""
    if isinstance(element, dict):
        element = next(iter(element.values()))
    if isinstance(element, h5py.Group | h5py.Dataset):
        return Path(os.fsdecode(element.file.filename))
    return Path(str(getattr(element.store, "root", element.store)))


def child(group: Any, name: str) -> Any:
    """Return an entry of a group; in HDF5 only if it is in the same file."""
    if not isinstance(group, h5py.Group):
        return group[name]
    if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
        raise _elsewhere(name)
    found = group[name]
    if found.file.filename != group.file.filename:  # by a link to a link
        raise _elsewhere(name)
    return found


def check_stored(element: Any, what: str, *, whole: bool = True, depth: int = 0) -> None:
    """Check that all values of an element are stored in its file, and that memory can hold what is read.

    That is the ``whole`` element, or a few rows of it at a time.
    """
    if depth > DEPTH:
        raise BadValue(
            f"Expected an element {what!r} of a few groups, found one that holds itself."
        )
    if hasattr(element, "keys"):
        for name in element:
            check_stored(child(element, name), what, depth=depth + 1)
        return
    if element.shape is None:  # HDF5 has arrays without any values
        return
    size = element.dtype.itemsize
    if isinstance(element, h5py.Dataset):
        _check_hdf5(element, what)
    chunk = math.prod(getattr(element, "shards", None) or element.chunks or ())
    parts = math.prod(element.shape) if whole else max(chunk, *element.shape[1:], 1)
    check_fits(int(parts) * size, f"what is read at once of {what!r}", path_of(element))


def _check_hdf5(data: h5py.Dataset, what: str) -> None:
    if data.external or data.is_virtual:
        raise _elsewhere(what)
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
