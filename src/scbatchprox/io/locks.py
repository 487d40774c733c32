"""Locks: one writer at a time, or a sentence that says why not; a killed process holds none.

A lock is taken on the file or folder itself, by ``filelock.lock_descriptor``. A ``FileLock`` beside it would
be worse: HDF5 locks its files in the same way, so that other programs that have an ``.h5ad`` open are seen;
nothing is left beside users' data; and version 0.1.0 locked the same files in the same way.

Two systems need a file of its own beside, ``.NAME.lock``: Windows, whose locks keep even readers out and
which cannot lock a folder; and NFS, for folders alone. It stays there: who opened it before it was removed
would lock another file than who comes after.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import BadValue, InUse

__all__ = ["lock", "locked", "locked_by", "unlock"]

_WINDOWS = sys.platform == "win32"


def lock(path: Path, name: str | None = None, *, create: bool = False) -> int:
    """Open a file or folder that nobody else may then write to."""
    # NFS lends a lock for writing only to those who may write; a folder cannot be opened so.
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR
    handle = os.open(path, flags | (os.O_CREAT if create else 0), 0o666)
    try:
        _take(handle, name or str(path))
    except BaseException:
        os.close(handle)
        raise
    return handle


def unlock(handle: int) -> None:
    """Give a lock back and close its file."""
    from filelock import unlock_descriptor

    try:
        unlock_descriptor(handle)  # closing alone would leave it to processes forked meanwhile
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, name: str | None = None, *, create: bool = False) -> Iterator[None]:
    """Be the only writer of a file or folder, or say that there is another."""
    name = name or str(path)
    if _WINDOWS:
        with locked_by(_beside(path), name):
            yield
        return
    try:
        handle = lock(path, name, create=create)
    except _NotThisOne:
        handle = lock(_beside(path), name, create=True)
    try:
        yield
    finally:
        unlock(handle)


@contextmanager
def locked_by(file: Path, name: str) -> Iterator[None]:
    """Hold the lock of a file that is there for nothing else, and is made if it is not."""
    handle = lock(file, name, create=True)
    try:
        yield
    finally:
        unlock(handle)


class _NotThisOne(BadValue):
    """A file system that has locks, but not for this."""


def _beside(path: Path) -> Path:
    path = path.resolve()
    return path.parent / f".{path.name}.lock"


def _take(handle: int, name: str) -> None:
    from filelock import lock_descriptor

    try:
        free = lock_descriptor(handle, blocking=False)
    except OSError as error:
        # To go on without would let two writers spoil a file.
        kind = _NotThisOne if error.errno == errno.EBADF else BadValue
        raise kind(
            f"Expected a file system with locks to write to {name}, found none ({error.strerror or error}); "
            f"write to another place instead."
        ) from None
    if not free:
        raise InUse(
            f"Expected {name} to be free to write to, found it in use elsewhere; try again later."
        )
