"""NumPy files, read and written some rows at a time; a compressed array is first unpacked to disk.

Rows are read, not memory-mapped: the pages of a map count as memory of the process, and a file that gets
shorter while it is mapped would kill the process.
"""

from __future__ import annotations

import math
import os
import shutil
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.lib import format as npy

from ...core.checks import some_of
from ...errors import BadKey, BadValue, DiskFull, Parameter, Part
from ..atomic import replacing
from ..damaged import damaged, reading
from . import BLOCK_LABELS, CellFile, Encoder, RowsOnDisk, Writer

__all__ = ["DiskRows", "NpyFile", "NpzFile", "npy_labels", "npy_writer", "scratch_file"]


class DiskRows:
    """An array of numbers or text that begins at some byte of an open file, or some columns of it."""

    def __init__(
        self,
        file: IO[bytes],
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        fortran: bool = False,
        columns: list[int] | None = None,
    ) -> None:
        self.shape = shape if columns is None else (shape[0], len(columns))
        self.dtype, self.ndim = dtype, len(shape)
        self._file, self.offset, self._stored, self._columns = file, offset, shape, columns
        self._by_column = fortran and self.ndim == 2
        self._lock = Lock()

    def __getitem__(self, rows: slice) -> np.ndarray:
        lo, hi, step = rows.indices(self.shape[0])
        assert step == 1
        shape = (max(0, hi - lo), *self._stored[1:])
        block = np.empty(shape, self.dtype, "F" if self._by_column else "C")
        if self._by_column:
            for j, column in enumerate(block.T):
                self._read(j * self.shape[0] + lo, column)
        else:
            self._read(lo * math.prod(shape[1:]), block)
        return block if self.shape == self._stored else block[:, self._columns]

    def _read(self, first: int, into: np.ndarray) -> None:
        """Fill an array with the entries from number ``first`` on."""
        if not into.nbytes:
            return
        wanted = into.reshape(-1).view(np.uint8).data
        with self._lock:
            self._file.seek(self.offset + first * self.dtype.itemsize)
            if self._file.readinto(wanted) != len(wanted):  # type: ignore[attr-defined]
                raise BadValue(
                    f"Expected {Path(str(self._file.name)).name} not to change while it is read, "
                    f"found it shorter."
                )


def check_room(n_bytes: int, beside: Path) -> None:
    """Raise an error if a temporary file of this size does not fit on its disk."""
    folder = beside.resolve().parent
    place = folder if os.access(folder, os.W_OK) else Path(tempfile.gettempdir())
    free = shutil.disk_usage(place).free
    if n_bytes > free:
        raise DiskFull(
            f"Expected {n_bytes / 1e9:,.1f} GB of free disk in {place} to unpack {beside.name}, found "
            f"{free / 1e9:,.1f} GB."
        )


def scratch_file(beside: Path) -> IO[bytes]:
    """Open a temporary file without a name, on the disk of another file if its folder is writeable.

    The folder for temporary files may be too small, or in memory.
    """
    try:
        return tempfile.TemporaryFile(dir=beside.resolve().parent)
    except OSError:
        return tempfile.TemporaryFile()


#: Bytes of a member of a zip file that are copied at a time.
COPY_BYTES = 1 << 20

_HEADS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
#: Bytes that one byte of a member can become, at most, by the usual compression.
_DEFLATE_RATIO = 1032


class NpyFile(CellFile):
    """One matrix without labels."""

    keyed = False
    named = False
    default_rep = "X"

    def _open(self) -> None:
        file = self.opened.enter_context(open(self.path, "rb"))  # noqa: SIM115
        self._rows = _npy_rows(file, self.path)

    def _embedding(self, use_rep: str | None) -> RowsOnDisk:
        rows = self._rows
        if rows.ndim != 2:
            raise BadValue(
                f"Expected a matrix (cells x coordinates) in {self.path.name}, found shape {rows.shape}."
            )
        return rows

    def _obs(self, keys: Sequence[str], what: Part) -> pd.DataFrame:
        raise BadValue(
            f"Expected the labels {some_of(keys)} in a second file (--labels), found only "
            f"{self.path.name}, and a .npy file has no labels."
        )

    def writer(
        self, out: Path | None, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> AbstractContextManager[Writer]:
        """Open a writer for a matrix that replaces this one, or is written to ``out``."""
        return npy_writer(out or self.path, key, shape, dtype, self.check_unchanged)


@contextmanager
def npy_writer(
    out: Path | None,
    key: str,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    check: Callable[[], None] | None = None,
) -> Iterator[Writer]:
    """Open a writer of a ``.npy`` file; ``key`` is ignored, ``check`` is called when it is complete."""
    assert out is not None
    with replacing(out, check) as temporary, open(temporary, "wb") as file:
        yield _NpyWriter(file, shape, dtype)


class _NpyWriter(Writer):
    """Writes without a memory map, which on a full disk would kill the process instead of raising."""

    def __init__(self, file: IO[bytes], shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self._file, self._dtype, self._next = file, dtype, 0
        npy.write_array_header_1_0(
            file, {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        )

    def write(self, lo: int, block: np.ndarray) -> None:
        """Write rows, starting at row ``lo``."""
        assert lo == self._next, "rows come in order"
        self._next += len(block)
        self._file.write(np.ascontiguousarray(block, self._dtype).data)


class NpzFile(CellFile):
    """Arrays by name: matrices are embeddings, one-dimensional arrays are labels."""

    def _open(self) -> None:
        self._zip = self.opened.enter_context(zipfile.ZipFile(self.path))
        _check_directory(self.path, self._zip.infolist())
        self._members = {
            info.filename.removesuffix(".npy"): info
            for info in self._zip.infolist()
            if info.filename.endswith(".npy")
        }
        self._source: str | None = None

    def _embedding(self, use_rep: str | None) -> RowsOnDisk:
        name = use_rep or self._only_matrix()
        self.require([name], self._members, "arrays", Parameter("use_rep"))
        array = self._array(name)
        if array.ndim != 2:
            raise BadValue(
                f"Expected {name!r} to be a matrix (cells x coordinates), found shape {array.shape}; "
                f"available: {some_of(self._matrices(), most=20)}."
            )
        self._source = self.default_rep = name
        return array

    def _obs(self, keys: Sequence[str], what: Part) -> pd.DataFrame:
        self.require(keys, self._members, "arrays", what)
        columns = {key: _as_labels(self._array(key), repr(key)) for key in keys}
        sizes = {key: column.size for key, column in columns.items()}
        if len(set(sizes.values())) > 1:
            raise BadValue(f"Expected labels of one length, found {sizes} in {self.path.name}.")
        return pd.DataFrame(columns)

    @contextmanager
    def writer(
        self, out: Path | None, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> Iterator[Writer]:
        """Open a writer for one more array; all others are kept."""
        self.check_unchanged()  # now too: the other arrays of another file could not be read
        like = self._members.get(self._source or "")
        result = zipfile.ZipInfo(f"{key}.npy")
        result.compress_type = like.compress_type if like else zipfile.ZIP_STORED
        with (
            replacing(out or self.path, self.check_unchanged) as temporary,
            zipfile.ZipFile(temporary, "w", allowZip64=True) as target,
        ):
            for info in self._zip.infolist():
                if info.filename != result.filename:
                    self._copy(info, target)
            with target.open(result, "w", force_zip64=True) as member:
                yield _NpyWriter(member, shape, dtype)

    def _copy(self, info: zipfile.ZipInfo, target: zipfile.ZipFile) -> None:
        copy = zipfile.ZipInfo(info.filename, info.date_time)
        copy.compress_type, copy.external_attr = info.compress_type, info.external_attr
        with (
            reading(self.path),
            self._zip.open(info) as a,
            target.open(copy, "w", force_zip64=True) as b,
        ):
            shutil.copyfileobj(a, b, COPY_BYTES)

    def _array(self, name: str) -> DiskRows:
        """Return the rows of an array, whose checksum has been compared."""
        info = self._members[name]
        packed = info.compress_type != zipfile.ZIP_STORED
        head = self._head(name)
        _check_head(head, info.file_size, f"{name!r} of {self.path.name}")
        file = scratch_file(self.path) if packed else open(self.path, "rb")  # noqa: SIM115
        rows = DiskRows(self.opened.enter_context(file), *head)
        if packed:
            check_room(info.file_size, self.path)
        with self._zip.open(info) as member:
            # To the end, where zipfile compares the checksum.
            while block := member.read(COPY_BYTES):
                if packed:
                    file.write(block)
        if not packed:
            rows.offset += _start_of(info, file)
        return rows

    def _head(self, name: str) -> _Head:
        with self._zip.open(self._members[name]) as member:
            return _head(member)

    def _matrices(self) -> list[str]:
        heads = {name: self._head(name) for name in self._members}
        return [n for n, h in heads.items() if len(h.shape) == 2 and h.dtype.kind in "fiu"]

    def _only_matrix(self) -> str:
        matrices = self._matrices()
        # Ignore earlier results, so that the same command can be run twice.
        results = {self.default_key(name) for name in matrices}
        inputs = [name for name in matrices if name not in results]
        if len(inputs) != 1:
            raise BadKey(
                "Expected ", Parameter("use_rep"), f" to name an array of {self.path.name} unless it has "
                f"only one matrix of numbers, found {len(inputs)}; available: "
                f"{some_of(inputs or self._members, most=20)}.",
            )  # fmt: skip
        return inputs[0]


def _npy_rows(file: IO[bytes], path: Path) -> DiskRows:
    """Return the rows of an array, without reading it."""
    head = _head(file)
    _check_head(head, path.stat().st_size, path.name)
    return DiskRows(file, *head)


class _Head(NamedTuple):
    """What is known of an array before it is read, in the order of :class:`DiskRows`."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool


def _head(file: IO[bytes]) -> _Head:
    """Read the head of an array; raise an error for a shape that no array has."""
    head = _HEADS.get(npy.read_magic(file))
    if head is None:  # version 3 is only for records with non-ASCII names
        return _Head(0, (), np.dtype("V"), False)
    shape, fortran, dtype = head(file)
    if any(isinstance(n, bool) or n < 0 for n in shape) or math.prod(shape) >= 2**63:
        raise ValueError(f"an array of shape {shape}")
    return _Head(file.tell(), shape, dtype, fortran)


def _check_head(head: _Head, size: int, where: str) -> None:
    """Raise an error for an array of objects, and for one that ``size`` bytes, with its head, cannot hold."""
    if head.dtype.hasobject:
        raise BadValue(
            f"Expected an array in {where}, found pickled objects, which are never loaded; save them with "
            f".astype(str) or as numbers."
        )
    wanted = math.prod(head.shape) * head.dtype.itemsize
    if head.offset + wanted > size:
        raise ValueError(f"{where} of {head.shape} needs {wanted:,} bytes, and there are {size:,}")


def npy_labels(path: Path) -> pd.Series[Any]:
    """Read the labels in a ``.npy`` file."""
    with open(path, "rb") as file:
        return _as_labels(_npy_rows(file, path), path.name)


def _as_labels(array: DiskRows, where: str) -> pd.Series[Any]:
    """Return a one-dimensional array as labels; an empty string is a missing label."""
    if array.ndim != 1 or array.dtype.kind in "Vc":
        raise BadValue(
            f"Expected one label per cell in {where}, found {array.dtype} of shape {array.shape}."
        )
    n = array.shape[0]
    if array.dtype.kind not in "SU":
        return pd.Series(array[0:n].astype(array.dtype.newbyteorder("="), copy=False))
    labels = Encoder()
    for lo in range(0, n, BLOCK_LABELS):
        block = array[lo : lo + BLOCK_LABELS]
        if array.dtype.kind == "S":
            block = np.char.decode(block, "utf-8", "backslashreplace")
        labels.add(_with_text(block).tolist())
    return labels.series()


def _start_of(info: zipfile.ZipInfo, file: IO[bytes]) -> int:
    """Return the first byte of a stored member, which follows its name and its extra field."""
    file.seek(info.header_offset + 26)
    name, extra = struct.unpack("<HH", file.read(4))
    return int(info.header_offset + 30 + name + extra)


def _with_text(array: np.ndarray) -> np.ndarray:
    """Return an array; raise an error if text in it is none. Python would not notice until it is printed."""
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        letters = np.ascontiguousarray(array).view(f"{array.dtype.byteorder}u4")
        if letters.max() > sys.maxunicode:
            raise ValueError(f"text with the character {letters.max()}")
    return array


def _check_directory(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Check that a file can hold its members: a few bytes must not claim to be terabytes."""
    packed, size = sum(info.compress_size for info in members), path.stat().st_size
    if packed > size:  # members that share their bytes, or a damaged directory
        raise damaged(path, f"members of {packed:,} bytes in a file of {size:,}")
    for info in members:
        if not 0 <= info.header_offset < size:
            raise damaged(path, f"{info.filename!r} begins outside of the file")
        ratio = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: _DEFLATE_RATIO}.get(
            info.compress_type
        )
        if ratio is not None and info.file_size > ratio * info.compress_size:
            raise damaged(
                path,
                f"{info.filename!r} claims {info.file_size:,} bytes, packed in {info.compress_size:,}",
            )
