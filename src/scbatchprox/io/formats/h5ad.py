"""``.h5ad`` files: rows are read and written by h5py; nothing else is loaded.

A file that is open for reading has a shared lock, so that no other process changes it in place meanwhile.
To write in place the lock must become exclusive, and systems differ in how they do this: most give up the
shared lock first, and another process may be faster. So we give it up ourselves, take the exclusive one or
fail at once, and then check that the file is still the one that was read. Of two processes that want to
write in place one fails, and none waits for the other. Workers of a cluster take no locks: the process
that started them has one.
"""

from __future__ import annotations

import os
import secrets
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from anndata.io import write_elem

from ...core.checks import some_of
from ...errors import BadValue, InUse
from ..atomic import replacing
from ..locks import is_busy, share, unlock
from . import Writer
from .elements import AnnDataFile, own_group
from .journal import JournaledFile, WatchedFile, deferred_signals, journal_of, recover

__all__ = ["H5adFile", "changing", "unlocked"]


class H5adFile(AnnDataFile):
    """An AnnData file in HDF5."""

    def _open(self) -> None:
        try:
            handle = os.open(self.path, os.O_RDONLY) if self.worker else _shared(self.path)
            self._handle, self.state = handle, os.fstat(handle)
            #: Gives up the lock, once; also if the file is never closed.
            self._release = weakref.finalize(self, unlock, handle)
            self.opened.callback(self._release)
            if not self.worker:
                _check_no_writer(self.path)
            self.group = self.opened.enter_context(unlocked(self.path))
            if not os.path.samestat(os.stat(self.path), self.state):
                found = f"{self.path}, which was replaced while it was opened; try again"
                raise BadValue(f"Expected an .h5ad file, found {found}.")
            if "obs" not in self.group:
                found = f"{self.path} without obs; available: {some_of(self.group)}"
                raise BadValue(f"Expected an .h5ad file, found {found}.")
        except OSError as error:
            raise BadValue(
                f"Expected an .h5ad file, found {self.path}, which is damaged or of another kind ({error})."
            ) from None

    @contextmanager
    def writer(
        self, out: Path | None, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> Iterator[Writer]:
        """Open a writer for a result in this file, or in a copy of it."""
        if out is None:
            self._release()
            try:
                with _open_in(JournaledFile(self.path, self.state)) as (file, check):
                    yield _H5adWriter(file, key, shape, dtype, check)
            finally:
                self.close()  # it has no lock any more, so nothing may be read
        else:
            with replacing(out, self.check_unchanged) as temporary:
                _copy(self._handle, temporary)
                with _open_in(WatchedFile(temporary, "r+")) as (file, check):
                    yield _H5adWriter(file, key, shape, dtype, check)


@contextmanager
def changing(path: Path, read: os.stat_result | None = None) -> Iterator[h5py.File]:
    """Yield an HDF5 file for a short change in place; all changes take effect at the end, or none do.

    ``read`` is the state of the file when it was read; another one is refused.
    """
    with _open_in(JournaledFile(path, read)) as (file, _), deferred_signals():
        yield file


@contextmanager
def _open_in(watched: WatchedFile) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """Yield an HDF5 file to change, and a check for failed writes; the caller defers signals meanwhile."""
    file = None
    try:
        try:
            with deferred_signals():
                file = h5py.File(watched, "r+")
            yield file, watched.check
        finally:
            if file is not None:
                with deferred_signals():
                    file.close()
        watched.commit()
    except BaseException:
        watched.discard()
        watched.check()  # HDF5 may have stumbled over what could not be written; that is not the cause
        raise
    finally:
        watched.close()


class _H5adWriter(Writer):
    """Ctrl-C waits for the end of a method: the file is written through Python, by a WatchedFile.

    ``check`` raises an error of the system that HDF5 was not told of.
    """

    @deferred_signals()
    def __init__(
        self,
        file: h5py.File,
        key: str,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        check: Callable[[], None],
    ) -> None:
        self._key, self._check = key, check
        self._obsm, self._uns = own_group(file, "obsm"), own_group(file, "uns")
        # Under a temporary name until it is complete. If an older result were deleted first, HDF5
        # would reuse its bytes, but they must stay until the commit.
        self._partial = f"{key}.{secrets.token_hex(6)}.partial"
        self._data = self._obsm.create_dataset(self._partial, shape, dtype)
        self._data.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})

    @deferred_signals()
    def write(self, lo: int, block: np.ndarray) -> None:
        """Write rows, starting at row ``lo``."""
        self._data[lo : lo + len(block)] = block
        self._check()  # a full disk is no reason to go through all other rows

    @deferred_signals()
    def finish(self, record: dict[str, Any]) -> None:
        """Add the record to ``uns`` and give the result its name."""
        if self._key in self._obsm:
            del self._obsm[self._key]
        self._obsm.move(self._partial, self._key)
        if self._key in self._uns:
            del self._uns[self._key]
        write_elem(self._uns, self._key, record)


def _shared(path: Path) -> int:
    """Open a file and share its lock; first restore it if a killed process left it half changed."""
    while True:
        try:
            handle = share(path)
        except InUse:
            if not _writes_itself(path):
                raise
            return os.open(path, os.O_RDONLY)
        if not journal_of(path).exists():
            return handle
        # No commit is running, since that needs the whole lock; and so does restoring.
        unlock(handle)
        recover(path)


def _writes_itself(path: Path) -> bool:
    """Whether this process has a file open for writing by HDF5; it may read what it writes."""
    try:
        with h5py.File(path, "r") as file:  # takes HDF5's lock, unless it is ours already
            return bool(file.id.get_intent() & h5py.h5f.ACC_RDWR)
    except OSError:
        return False


def _check_no_writer(path: Path) -> None:
    """Open a file as HDF5 would, with its lock and its own mark of files that are being written."""
    try:
        h5py.File(path, "r").close()
    except OSError as error:
        # An error of the system is that there are no locks here, so that nobody writes in place. Any other
        # one comes again when the file is opened without a lock.
        no_locks = error.errno is not None and not is_busy(error)
        if not no_locks and not _opened_otherwise(error):
            raise


def unlocked(path: Path) -> h5py.File:
    """Open for reading without HDF5's lock, which would block our own writer."""
    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        if not _opened_otherwise(error):
            raise
        return h5py.File(path, "r")


def _opened_otherwise(error: OSError) -> bool:
    """Whether this process has the file open with the lock, perhaps in backed mode, or without it."""
    return "flag values don't match" in str(error)


def _copy(source: int, target: Path) -> None:
    """Copy an open file by the operating system if possible; some file systems then share the blocks."""
    with open(source, "rb", closefd=False) as a, open(target, "wb") as b:
        a.seek(0)
        size = os.fstat(a.fileno()).st_size
        try:
            done = 0
            while done < size:
                n = os.copy_file_range(a.fileno(), b.fileno(), size - done)
                if n == 0:
                    raise OSError("copied in part")
                done += n
        except (OSError, AttributeError):  # only Linux has it
            a.seek(0)
            b.seek(0)
            shutil.copyfileobj(a, b, 1 << 24)
