"""A result that is moved into a ``.zarr`` store, and finished by the next command if this one is killed.

The result is complete in ``.NAME.ready`` before anything in the store changes. A record in that folder says
which cells it is made from, so that it is never moved into another store of the same name.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zarr
from zarr.storage import LocalStore, WrapperStore

from ...core.checks import some_of
from ...errors import BadValue, InUse
from ..atomic import sync_folder
from ..damaged import reading
from ..found import check_file, kind_at
from ..locks import locked
from .journal import deferred_signals
from .stored import parts_of
from .zarr_place import beside, discard, restore, sweep
from .zarr_tree import RegularFiles, checksum

__all__ = [
    "check_index",
    "finish",
    "move_in",
    "ready_of",
    "settle",
    "write_record",
]

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


def _has_index(store: Path) -> bool:
    """Whether a store has an index: consolidated metadata of all its arrays."""
    group = zarr.open_group(RegularFiles(store, read_only=True), mode="r")
    return group.metadata.consolidated_metadata is not None


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
                for group in (
                    zarr.open_group(RegularFiles(store, read_only=True), mode="r"),
                    zarr.open_group(
                        RegularFiles(store, read_only=True), mode="r", use_consolidated=False
                    ),
                )
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
