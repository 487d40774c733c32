"""``.zarr`` stores, version 2 and 3. A result is written beside the store and then moved into it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from anndata.io import write_elem

from ...core.checks import some_of
from ...errors import BadValue, InUse
from ...kernels.threads import get_num_threads
from ..atomic import sync_folder
from ..locks import locked, unlock
from . import Writer, zarr_folder
from .elements import AnnDataFile, child, parts_of
from .journal import deferred_signals
from .zarr_folder import discard as _remove

__all__ = ["ZarrFile"]

#: Size in bytes of a stored chunk of a result.
CHUNK_BYTES = 1 << 22


class ZarrFile(AnnDataFile):
    """An AnnData store in a zarr folder."""

    def _open(self) -> None:
        if not self.worker:
            zarr_folder.settle(self.path)
        try:
            self.group = zarr_folder.opened(self.path)
        except Exception as error:
            # zarr raises many types of errors for a folder that is not a store.
            raise BadValue(
                f"Expected a .zarr store, found {self.path}, which is damaged or of another kind ({error})."
            ) from None
        if "obs" not in self.group:
            raise BadValue(
                f"Expected an AnnData store, found {self.path} without obs; available: "
                f"{some_of(self.group)}."
            )
        #: How the elements were that a result is made from, before they were read.
        self._states: dict[str, str] = {}
        self.note(f"obs/{child(self.group, 'obs').attrs.get('_index', '_index')}")

    def __enter__(self) -> ZarrFile:
        # zarr keeps ten chunks at a time in memory. More than there are threads to unpack them gain nothing.
        chunks = min(zarr.config.get("async.concurrency"), get_num_threads())
        self.opened.enter_context(zarr.config.set({"async.concurrency": chunks}))
        return self

    @contextmanager
    def writer(
        self, out: Path | None, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> Iterator[Writer]:
        """Open a writer for a result in this store, or in a copy of it."""
        if out is not None:
            zarr_folder.check_store_place(out)
        opened = self._in_place() if out is None else self._in_copy(out.resolve())
        with opened as folder:
            yield _ZarrWriter(folder, self.group.metadata.zarr_format, key, shape, dtype)

    @contextmanager
    def _in_place(self) -> Iterator[Path]:
        """Yield the folder of a result that is then moved into this store."""
        store = self.path.resolve()
        zarr_folder.check_index(store)
        _check_moves(store)
        identity = os.stat(store)
        with locked(store):
            with deferred_signals():
                zarr_folder.finish(store)  # of an interrupted run, if not seen at the opening
            with _partial(store) as folder:
                yield folder
                with deferred_signals():
                    if not os.path.samestat(identity, os.stat(store)):
                        raise InUse(
                            f"Expected to be the only writer of {store}, found that it was replaced; "
                            f"run again."
                        )
                    zarr_folder.write_record(folder, store, self._states)
                    self.check_unchanged()  # so the record is of what was read
                    # From here on the result is complete: if we are killed, the next opening finishes it.
                    os.rename(folder, zarr_folder.ready_of(store))
                    zarr_folder.finish(store, compared=True)

    @contextmanager
    def _in_copy(self, destination: Path) -> Iterator[Path]:
        """Yield the folder of a result that is then moved into a copy of this store."""
        with deferred_signals():
            zarr_folder.restore(destination)
        zarr_folder.sweep(destination)
        with ExitStack() as held:
            locks = _lock_if_there(destination, held)
            with _partial(destination) as folder:
                zarr_folder.copy_store(self.path, folder / "store")
                zarr_folder.check_index(folder / "store", self.path)
                yield folder
                self.check_unchanged()
                zarr_folder.move_in(folder, folder / "store")
                with deferred_signals():
                    if not locks:  # another process may have made it since
                        _lock_if_there(destination, held)
                    _drop_ready(destination)
                    zarr_folder.put(folder, destination)
                sync_folder(destination.parent)

    def note(self, *names: str) -> None:
        """Note how elements are before they are read. A worker writes nothing."""
        if not self.worker:
            # Checked names: some come from the store, and a path may lead to any other folder.
            names = tuple("/".join(parts_of(name)) for name in names)
            self._states = {
                name: zarr_folder.state(self.path / name) for name in names
            } | self._states

    def check_unchanged(self) -> None:
        """Raise an error if a result is of other cells than are in the store now."""
        for name, before in self._states.items():
            if zarr_folder.state(self.path / name) != before:
                raise BadValue(
                    f"Expected {self.path} as it was when it was opened, found that its {name} was "
                    f"changed since; run again."
                )


@contextmanager
def _partial(destination: Path) -> Iterator[Path]:
    """Yield a folder beside a store; it is removed at the end, unless it was given another name."""
    folder, handle = zarr_folder.begin(destination)
    try:
        yield folder
    finally:
        try:
            _remove(folder)
        finally:
            if handle is not None:
                unlock(handle)


def _lock_if_there(store: Path, held: ExitStack) -> bool:
    """Lock a store that is to be replaced; return whether there is one."""
    if not store.exists():
        return False
    try:
        held.enter_context(locked(store))
    except InUse:
        raise
    except BadValue:
        pass  # a copy needs no lock where there are none
    return True


def _drop_ready(store: Path) -> None:
    """Leave no result of an interrupted run that could be moved into the next store of this name."""
    try:
        if store.exists():
            zarr_folder.finish(store)
    except BadValue:
        pass  # it is not of these cells
    _remove(zarr_folder.ready_of(store))


def _check_moves(store: Path) -> None:
    """Raise an error if a result cannot be moved into a store by renames, or would go to another place."""
    device = os.stat(store.parent).st_dev
    for place in (store, store / "obsm", store / "uns"):
        if place.is_symlink():
            raise BadValue(
                f"Expected {place} as a folder of the store to write to, found a link to another place; "
                f"write to another store."
            )
        if place.exists() and os.stat(place).st_dev != device:
            raise BadValue(
                f"Expected {place} on the file system of {store.parent}, found it on another, so that a "
                f"result cannot be moved there; write to another store."
            )


class _ZarrWriter(Writer):
    """Writes ``new/obsm/KEY`` and ``new/uns/KEY`` in a folder."""

    def __init__(
        self, folder: Path, version: int, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> None:
        self._key = key
        self._obsm, self._uns = (
            zarr.open_group(folder / "new" / name, mode="w", zarr_format=version)  # type: ignore[arg-type]
            for name in ("obsm", "uns")
        )
        for group in (self._obsm, self._uns):  # as anndata would make it, for a store that has none
            group.attrs.update({"encoding-type": "dict", "encoding-version": "0.1.0"})
        rows = max(1, min(shape[0], CHUNK_BYTES // (shape[1] * dtype.itemsize)))
        self._data = self._obsm.create_array(key, shape=shape, dtype=dtype, chunks=(rows, shape[1]))
        self._data.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})

    def write(self, lo: int, block: np.ndarray) -> None:
        """Write rows, starting at row ``lo``."""
        self._data[lo : lo + len(block)] = block

    def finish(self, record: dict[str, Any]) -> None:
        """Add the record; everything is moved into the store when the writer closes."""
        with warnings.catch_warnings():
            # anndata announces a future change of storage; users cannot act on it here.
            warnings.filterwarnings("ignore", "zarr v3 autosharding", UserWarning)
            write_elem(self._uns, self._key, record)
