"""Locks: one writer, or any number of readers, at a time. A killed process holds no lock.

A lock is taken on the file or folder itself, by ``filelock.lock_descriptor``, not on a lock file beside it.
There are three reasons. HDF5 locks its files in the same way, so we notice other programs that have an
``.h5ad`` open. No lock files are left beside users' data. And version 0.1.0 took the same locks.

Two systems do need a lock file, ``.NAME.lock``: Windows, where locks exclude readers and a folder cannot be
locked; and NFS, for folders only. The lock file is never removed: a process that opened it before the
removal and one that creates it afterwards would lock different files.

Readers of files that are changed in place share the lock, by ``flock`` on a descriptor open for reading.
``filelock`` and HDF5 use ``flock`` too, so all of them exclude each other. Where there are no locks nothing
is written in place, so that readers need none.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import BadValue, InUse

__all__ = ["is_busy", "lock", "locked", "locked_by", "share", "unlock"]

_WINDOWS = sys.platform == "win32"


def lock(path: Path, name: str | None = None, *, create: bool = False) -> int:
    """Open and lock a file or folder; return its descriptor."""
    # NFS grants an exclusive lock only on files open for writing. A folder cannot be opened so.
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR
    handle = os.open(path, flags | (os.O_CREAT if create else 0), 0o666)
    return _held(handle, _take, name or str(path))


def share(path: Path) -> int:
    """Open a file for reading, and lock it against writers if possible; return its descriptor."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    return _held(handle, _take_shared, str(path))


def _held(handle: int, take: Callable[[int, str], None], name: str) -> int:
    try:
        take(handle, name)
    except BaseException:
        os.close(handle)
        raise
    return handle


def is_busy(error: OSError) -> bool:
    """Whether a lock was refused because another process has it, not because there are no locks."""
    return error.errno in (errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES)


def unlock(handle: int) -> None:
    """Release a lock and close its file."""
    from filelock import unlock_descriptor

    try:
        with suppress(OSError):  # of a shared lock where there are no locks
            unlock_descriptor(handle)  # closing is not enough: forked processes would keep it
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path, name: str | None = None, *, create: bool = False) -> Iterator[None]:
    """Be the only writer of a file or folder; raise if there is another."""
    name = name or str(path)
    try:
        if _WINDOWS:
            raise _CannotLock
        handle = lock(path, name, create=create)
    except _CannotLock:
        place = path.resolve()
        handle = lock(place.with_name(f".{place.name}.lock"), name, create=True)
    try:
        yield
    finally:
        unlock(handle)


@contextmanager
def locked_by(file: Path, name: str) -> Iterator[None]:
    """Hold the lock of a lock file, which is created if needed."""
    handle = lock(file, name, create=True)
    try:
        yield
    finally:
        unlock(handle)


class _CannotLock(BadValue):
    """A file system that has locks, but not for this kind of file."""


def _take(handle: int, name: str) -> None:
    from filelock import lock_descriptor

    try:
        free = lock_descriptor(handle, blocking=False)
    except OSError as error:
        # Without a lock two writers could damage the file.
        kind = _CannotLock if error.errno == errno.EBADF else BadValue
        raise kind(
            f"Expected a file system with locks to write to {name}, found none ({error.strerror or error}); "
            f"write to another folder."
        ) from None
    if not free:
        raise InUse(
            f"Expected {name} to be free to write to, found it in use elsewhere; try again later."
        )


def _take_shared(handle: int, name: str) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if is_busy(error):
            raise InUse(
                f"Expected {name} to be free to read, found it in use elsewhere: it is open for writing, "
                f"perhaps in another process; try again later."
            ) from None
        # There are no locks here, so nobody writes in place.
