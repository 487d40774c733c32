"""The place of a ``.zarr`` store: hidden folders beside it, and how a complete store gets its name.

=====================  ==================================================================================
``.NAME.HEX.partial``  being written by a process that holds the lock of the file ``lock`` in it
``.NAME.ready``        a complete result that is being moved into the store (see ``zarr_result``)
``.NAME.replacing``    a complete ``store`` that takes the place of ``old``, where this takes two steps
``.NAME.HEX.trash``    being removed; anybody may go on with it
=====================  ==================================================================================

A killed process holds no lock, so the next command knows what it left behind, and removes it.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path

from ...errors import BadFile, BadValue, InUse
from ..exchange import exchange
from ..locks import lock, unlock

__all__ = ["begin", "beside", "check_store_place", "discard", "put", "restore", "sweep"]

#: Not empty: a rename replaces only an empty folder.
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST}
_KINDS = re.compile(r"(\.[0-9a-f]{12}\.partial|\.ready|\.replacing)$")


def beside(store: Path, kind: str) -> Path:
    """Return a hidden folder beside a store itself, not beside a link to it."""
    store = store.resolve()
    return store.parent / f".{store.name}.{kind}"


def check_store_place(path: str | Path) -> None:
    """Raise an error if there is something that is not a store: it would be replaced, and lost."""
    # Before links are resolved: /dev/stdout may lead to a pipe, which has no name.
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        parent = Path(path).resolve().parent
        if not parent.is_dir():
            raise BadFile(f"Expected a folder to write to, found none at {parent}.") from None
        return
    kinds = {stat.S_IFREG: "file", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}
    if not stat.S_ISDIR(mode):
        what = kinds.get(stat.S_IFMT(mode), "device")
    elif not os.listdir(path) or any(
        (Path(path) / name).exists() for name in ("zarr.json", ".zgroup", ".zarray")
    ):
        return
    else:
        what = "folder of another kind"
    raise BadValue(f"Expected a .zarr store, or nothing, at {path}, found a {what}.")


def begin(destination: Path) -> tuple[Path, int | None]:
    """Make a ``.partial`` folder; return it with the handle of its lock, if there are locks."""
    while True:
        folder = beside(destination, f"{secrets.token_hex(6)}.partial")
        folder.mkdir()
        if sys.platform == "win32":
            return folder, None  # a folder with an open file cannot be renamed there
        try:
            handle = lock(folder / "lock", create=True)
        except (FileNotFoundError, InUse):
            continue  # another process took it for a leftover before we had the lock
        except BadValue:
            return folder, None  # no locks here, so nobody sweeps
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), os.stat(folder / "lock")):
                return folder, handle
        unlock(handle)


def discard(folder: Path) -> None:
    """Remove a hidden folder. It is renamed first, so that half of it is never taken for the whole.

    Threads of an interrupted write may still add chunks to it, and so make it anew.
    """
    for _ in range(50):
        trash = folder.with_name(f"{_KINDS.sub('', folder.name)}.{secrets.token_hex(6)}.trash")
        try:
            os.rename(folder, trash)
        except FileNotFoundError:
            return
        shutil.rmtree(trash, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)


def sweep(store: Path) -> None:
    """Remove what killed processes left beside a store, if we may."""
    store = store.resolve()
    ours = re.compile(re.escape(f".{store.name}.") + r"[0-9a-f]{12}\.(partial|trash)")
    with suppress(OSError), os.scandir(store.parent) as entries:
        for entry in entries:
            if ours.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                if entry.name.endswith(".trash"):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    _sweep_partial(Path(entry.path))


def _sweep_partial(folder: Path) -> None:
    with suppress(OSError):
        os.rmdir(folder)  # killed before it had a lock; if its process is alive, it begins again
        return
    # Without a lock file it is of an earlier version, which may have put the only copy of a store there.
    with suppress(OSError, BadValue):
        handle = lock(folder / "lock")
        try:
            discard(folder)
        finally:
            unlock(handle)


def put(folder: Path, destination: Path) -> None:
    """Give ``store`` in a ``.partial`` folder its name; what had the name before goes to the folder.

    Signals must be deferred: a Ctrl-C between two steps would leave the second one to the next command.
    """
    while True:
        try:
            os.rename(folder / "store", destination)
            return
        except OSError as error:
            if error.errno not in _TAKEN:
                raise
        try:
            if not exchange(folder / "store", destination):
                _put_in_steps(folder, destination)
            return
        except FileNotFoundError:
            if destination.exists():
                raise
            # somebody removed it in this moment


def _put_in_steps(folder: Path, destination: Path) -> None:
    """Replace a store by two renames; after a kill between them :func:`restore` does the second."""
    aside = beside(destination, "replacing")
    try:
        os.rename(folder, aside)
    except OSError as error:
        if error.errno not in _TAKEN:
            raise
        raise _busy(destination) from None
    try:
        with suppress(FileNotFoundError):  # somebody removed it in this moment
            os.rename(destination, aside / "old")
        try:
            os.rename(aside / "store", destination)
        except OSError:
            os.rename(aside / "old", destination)
            raise
    finally:
        if destination.exists():
            discard(aside)


def restore(store: Path, patience: float = 5.0) -> None:
    """Give a store its name if a process was killed between the two renames of a replacement."""
    aside, end = beside(store, "replacing"), time.monotonic() + patience
    while aside.is_dir():
        handle = None
        try:
            handle = lock(aside / "lock")
        except InUse:
            if time.monotonic() > end:
                raise _busy(store) from None
            time.sleep(0.02)
            continue
        except (FileNotFoundError, BadValue):
            pass  # no locks here; a running replacement takes far less time than to start a command
        try:
            store = store.resolve()
            if not store.exists() and (aside / "old").exists() and (aside / "store").exists():
                os.rename(aside / "store", store)
            discard(aside)
        finally:
            if handle is not None:
                unlock(handle)


def _busy(store: Path) -> InUse:
    return InUse(
        f"Expected {store} to be free, found that another process is replacing it; try again later."
    )
