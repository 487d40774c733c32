"""Rows of an array in a file, read when they are requested.

They are read, not memory-mapped: the pages of a map count as memory of the process, and a file that gets
shorter while it is mapped would kill the process.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from pathlib import Path
from threading import Lock
from typing import IO, Any

import numpy as np

from ...errors import BadValue, DiskFull

__all__ = ["DiskRows", "check_room", "scratch_file"]


class DiskRows:
    """An array of numbers or text that begins at some byte of an open file."""

    def __init__(
        self,
        file: IO[bytes],
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        fortran: bool = False,
    ) -> None:
        self.shape, self.dtype, self.ndim = shape, dtype, len(shape)
        self._file, self.offset = file, offset
        self._by_column = fortran and self.ndim == 2
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """Size of the array in the file."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __getitem__(self, rows: slice) -> np.ndarray:
        lo, hi, step = rows.indices(self.shape[0])
        assert step == 1
        block = np.empty(
            (max(0, hi - lo), *self.shape[1:]), self.dtype, "F" if self._by_column else "C"
        )
        if self._by_column:
            for j, column in enumerate(block.T):
                self._read(j * self.shape[0] + lo, column)
        else:
            self._read(lo * math.prod(self.shape[1:]), block)
        return block

    def close(self) -> None:
        """Close the file."""
        self._file.close()

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
