"""The folder of a ``.zarr`` store: read safely, copied, and changed so that a kill leaves it whole.

A copy is written beside the place of the store and exchanged with it in one step, where the system can do
that. A result in place is complete in ``.NAME.ready`` before anything in the store changes. A record in that
folder says which cells it is made from, so that it is never moved into another store of the same name; the
next command finishes it if this one is killed. These are the hidden folders beside a store:

=====================  ==================================================================================
``.NAME.HEX.partial``  being written by a process that holds the lock of the file ``lock`` in it
``.NAME.ready``        a complete result that is being moved into the store
``.NAME.replacing``    a complete ``store`` that takes the place of ``old``, where this takes two steps
``.NAME.HEX.trash``    being removed; anybody may go on with it
=====================  ==================================================================================

A killed process holds no lock, so the next command knows what it left behind, and removes it.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import zarr
from zarr.storage import LocalStore, WrapperStore

from ...core.checks import some_of
from ...errors import BadFile, BadValue, InUse
from ...kernels.threads import get_num_threads
from ..atomic import check_file, kind_at, sync_folder
from ..damaged import reading
from ..locks import lock, locked, unlock
from .elements import parts_of
from .journal import deferred_signals

__all__ = [
    "begin", "check_index", "check_store_place", "copy_store", "discard", "finish", "move_in", "opened",
    "put", "ready_of", "restore", "settle", "state", "sweep", "write_record",
]  # fmt: skip

#: Errors that mean: this system, or this file system, has no such step. Some containers answer EPERM.
_UNABLE = {
    errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM
}  # fmt: skip
_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS


def _exchanged(a: Path, b: Path) -> bool:
    """Exchange two existing files or folders, or return False where that takes more than one step.

    Nobody sees a moment in which one of the names is missing, and a killed process leaves both as they
    were, or both exchanged.
    """
    if sys.platform not in ("linux", "darwin"):
        return False
    one, other, flag = os.fsencode(a), os.fsencode(b), ctypes.c_uint(_EXCHANGE)
    try:
        system = ctypes.CDLL(None, use_errno=True)
        if sys.platform == "linux":
            failed = system.renameat2(_AT_FDCWD, one, _AT_FDCWD, other, flag)
        else:
            failed = system.renamex_np(one, other, flag)
    except AttributeError:  # a C library from before 2018
        return False
    if failed and ctypes.get_errno() not in _UNABLE:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(b))
    return not failed


class RegularFiles(LocalStore):
    """A store that zarr reads only regular files from; each is looked at when it is read, not before."""

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        """Read a file; ``None`` if there is none."""
        _check_entry(self.root / key)
        return await super().get(key, *args, **options)

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[Any]) -> Any:
        """Read parts of files."""
        wanted = list(key_ranges)
        for key, _ in wanted:
            _check_entry(self.root / key)
        return await super().get_partial_values(prototype, wanted)

    def get_sync(self, key: str, *args: Any, **options: Any) -> Any:
        """Read a file without asyncio, which newer versions of zarr do."""
        _check_entry(self.root / key)
        return super().get_sync(key, *args, **options)


def _check_entry(path: Path) -> None:
    found = kind_at(path)
    if found not in (None, "file", "folder"):
        raise BadValue(f"Expected files and folders in a store, found a {found} at {path}.")


def copy_store(source: Path, target: Path) -> None:
    """Copy the files of a store, but not their permissions: the copy must be writeable."""
    target.mkdir()
    # A link that leads to the copy itself would never end.
    for relative, path in _walk(source, (_identity(source), _identity(target.parent))):
        if path.is_dir():
            (target / relative).mkdir()
        elif path.is_symlink() and not path.exists():
            raise BadValue(f"Expected a complete store, found a link to nothing at {path}.")
        else:
            shutil.copyfile(path, target / relative)


def checksum(element: Path) -> str:
    """Return a checksum of all bytes of an element of a store; a copy has the same."""

    def content(path: Path) -> str:
        with open(path, "rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return _digest(element, content)


def state(element: Path) -> str:
    """Return what tells that the files of an element are the same and were not written to; reads none."""

    def status(path: Path) -> str:
        found = path.stat()
        return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"

    return _digest(element, status)


def _digest(element: Path, describe: Callable[[Path], str]) -> str:
    """Put what is known of each file of an element together; of one that is removed meanwhile, nothing."""

    def described(path: Path) -> str:
        try:
            return describe(path)
        except FileNotFoundError:
            return ""

    found = hashlib.sha256()
    if element.is_dir():
        files = sorted(
            (str(relative), path)
            for relative, path in _walk(element, (_identity(element),))
            if not path.is_dir()
        )
        # Reading and hashing do not hold Python's lock.
        with ThreadPoolExecutor(get_num_threads()) as pool:
            texts = pool.map(described, (path for _, path in files))
            for (name, _), text in zip(files, texts, strict=True):
                found.update(f"{name}\0{text}\0".encode(errors="surrogateescape"))
    return found.hexdigest()


def _walk(
    folder: Path, above: tuple[tuple[int, int], ...], at: Path = Path()
) -> Iterator[tuple[Path, Path]]:
    """Yield relative and full paths in a folder, folders before what is in them."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        # A link first: to ask a circle of links whether it is a file is an error of the system.
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
            _check_entry(path)
        yield at / entry.name, path
        if path.is_dir():
            here = _identity(path)
            if here in above:
                raise BadValue(f"Expected links within a store to end, found a circle at {path}.")
            yield from _walk(path, (*above, here), at / entry.name)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


#: Not empty: a rename replaces only an empty folder.
_TAKEN = {errno.ENOTEMPTY, errno.EEXIST}
_KINDS = re.compile(r"(\.[0-9a-f]{12}\.partial|\.ready|\.replacing)$")


def beside(store: Path, kind: str) -> Path:
    """Return a hidden folder beside a store itself, not beside a link to it."""
    store = store.resolve()
    return store.parent / f".{store.name}.{kind}"


def check_store_place(path: str | Path) -> None:
    """Raise an error if there is something that is not a store: it would be replaced, and lost."""
    path = Path(path)
    # Before links are resolved: /dev/stdout may lead to a pipe, without a name.
    found = kind_at(path)
    if found is None:
        parent = path.resolve().parent
        if not parent.is_dir():
            raise BadFile(f"Expected a folder to write to, found none at {parent}.")
    elif found != "folder":
        raise BadValue(f"Expected a .zarr store, or nothing, at {path}, found a {found}.")
    elif os.listdir(path) and not any(
        (path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray")
    ):
        raise BadValue(
            f"Expected a .zarr store, or nothing, at {path}, found a folder of another kind."
        )


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
            if not _exchanged(folder / "store", destination):
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


RECORD = "source.json"
#: How long in seconds to wait for another process that is moving its result in.
PATIENCE = 10.0


def ready_of(store: Path) -> Path:
    """Return the folder of a complete result that is being moved into a store."""
    return beside(store, "ready")


def settle(store: Path) -> None:
    """Finish what a killed process began, and remove what it left; wait for one that is running."""
    end = time.monotonic() + PATIENCE
    try:
        with deferred_signals():
            restore(store)
        while _waits(store):
            try:
                with locked(store), deferred_signals():
                    finish(store)
            except InUse:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
    except OSError as error:
        # Who may only read reads the store as it is: nothing in it is half written.
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
    sweep(store)


def _waits(store: Path) -> bool:
    """Whether a result waits for its store; an error if there is anything else in its place."""
    ready = ready_of(store)
    found = "link" if ready.is_symlink() else kind_at(ready)
    if found not in (None, "folder"):
        raise BadValue(f"Expected the folder of a result at {ready}, found a {found}; delete it.")
    return found is not None


def write_record(folder: Path, store: Path, names: Iterable[str]) -> None:
    """Write which cells a result is made from: checksums of elements of its store."""
    sources = {name: checksum(store / name) for name in names}
    (folder / RECORD).write_text(json.dumps({"sources": sources}))


def finish(store: Path, *, compared: bool = False) -> None:
    """Move a complete result into its store, which must be locked; it can be repeated.

    ``compared`` if the caller has made sure that the result is of the cells in the store.
    """
    store = store.resolve()
    if not _waits(store):
        return
    ready = ready_of(store)
    other = None if compared else _other(ready, store)
    if other is None:
        move_in(ready, store)
    elif any(_elements(ready)):
        raise BadValue(
            f"Expected {store} as it was when an interrupted run made a result for it, found that its "
            f"{other} may be of other cells; delete {ready} to drop that result."
        )
    discard(ready)
    sync_folder(store.parent)


def _other(ready: Path, store: Path) -> str | None:
    """Return an element of a store that is not as it was when a result was made, if there is one."""
    try:
        check_file(ready / RECORD, "the record of a result")
        sources = json.loads((ready / RECORD).read_text())["sources"]
        for name in sources:
            if checksum(store.joinpath(*parts_of(name))) != sources[name]:
                return str(name)
        return None
    except (FileNotFoundError, ValueError):  # of an earlier version
        return "cells, of which there is no record,"


def _elements(folder: Path) -> list[tuple[str, Path]]:
    """Return the parts of a result that are still to be moved, with the names of their groups."""
    return [
        (name, source)
        for name in ("uns", "obsm")
        if (folder / "new" / name).is_dir()
        for source in (folder / "new" / name).iterdir()
        if source.is_dir()
    ]


def move_in(folder: Path, store: Path) -> None:
    """Move ``new/obsm/KEY`` and ``new/uns/KEY`` into a store; if interrupted it can be repeated."""
    # Remove the index first: it describes the old arrays, so the new ones would be unreadable.
    if _has_index(store):
        (folder / "indexed").touch()
        _drop_index(store, folder)
    # An older result goes first, its cells before its record, and the new cells come last: whoever reads
    # the store meanwhile, or after a kill, finds cells only with the record of their own.
    for name, source in _elements(folder)[::-1]:
        _put_aside(store / name / source.name, folder / "old" / secrets.token_hex(6))
    for name, source in _elements(folder):
        _add_group(folder / "new" / name, store / name)
        os.rename(source, store / name / source.name)
    if (folder / "indexed").exists():
        _write_index(store, folder)


def _add_group(source: Path, target: Path) -> None:
    """Move the documents of a group to a store that does not have it."""
    if any((target / name).exists() for name in ("zarr.json", ".zgroup")):
        return
    target.mkdir(exist_ok=True)
    for name in (".zattrs", ".zgroup", "zarr.json"):  # the group exists from its last document on
        if (source / name).exists():
            os.replace(source / name, target / name)


def _put_aside(target: Path, aside: Path) -> None:
    """Move a folder away, if there is one."""
    if os.path.lexists(target):
        aside.parent.mkdir(exist_ok=True)
        os.rename(target, aside)


def opened(store: Path, **how: Any) -> Any:
    """Open the group of a store for reading."""
    return zarr.open_group(RegularFiles(store, read_only=True), mode="r", **how)


def _has_index(store: Path) -> bool:
    """Whether a store has an index: consolidated metadata of all its arrays."""
    return opened(store).metadata.consolidated_metadata is not None


def check_index(store: Path, source: Path | None = None) -> None:
    """Raise an error if the index could not be made again: a damaged store must stay as it is.

    ``source`` is what the store is a copy of.
    """
    if _has_index(store):
        with reading(source or store), warnings.catch_warnings():
            # Files that are no part of a store are the user's own.
            warnings.filterwarnings("ignore", "Object at .* is not recognized")
            by_index, there = (
                {name for name, _ in group.members(max_depth=None)}
                for group in (opened(store), opened(store, use_consolidated=False))
            )
        if by_index != there:
            raise BadValue(
                f"Expected the index of {source or store} to list what the store has, found a difference in "
                f"{some_of(sorted(by_index ^ there))}; write the index again (zarr.consolidate_metadata)."
            )


def _drop_index(store: Path, folder: Path) -> None:
    (store / ".zmetadata").unlink(missing_ok=True)  # version 2
    if (store / "zarr.json").exists():
        described = json.loads((store / "zarr.json").read_text())
        described.pop("consolidated_metadata", None)
        _write(store / "zarr.json", json.dumps(described).encode(), folder)


class _Caught(WrapperStore[LocalStore]):
    """A store that keeps what zarr writes to it: a kill would leave half of it, or files of zarr's own."""

    def __init__(self, store: LocalStore) -> None:
        super().__init__(store)
        self.written: dict[str, bytes] = {}

    async def set(self, key: str, value: Any) -> None:
        self.written[key] = value.to_bytes()


def _write_index(store: Path, folder: Path) -> None:
    caught = _Caught(RegularFiles(store))
    with warnings.catch_warnings():
        # The store had an index before, so its owner needs no warning that we write it again.
        warnings.filterwarnings("ignore", "Consolidated metadata")
        zarr.consolidate_metadata(caught)
    for name in (".zmetadata", "zarr.json"):
        if name in caught.written:
            _write(store / name, caught.written[name], folder)


def _write(path: Path, content: bytes, folder: Path) -> None:
    """Replace a document of a store; nothing but it is ever in the store."""
    temporary = folder / "document"
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        os.chmod(temporary, path.stat().st_mode & 0o777)
    os.replace(temporary, path)
