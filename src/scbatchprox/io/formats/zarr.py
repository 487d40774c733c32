"""``.zarr`` stores, version 2 and 3. A result is written beside the store and then moved into it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import zarr
from anndata.io import write_elem

from ...core.checks import some_of
from ...errors import BadValue, InUse
from ..atomic import replacing, sync_folder
from ..locks import locked
from .base import CellFile, Rows, Writer
from .elements import stored_obs, stored_rows

__all__ = ["ZarrFile"]

#: Size in bytes of a stored chunk of a result.
CHUNK_BYTES = 1 << 22


class ZarrFile(CellFile):
    """An AnnData store in a zarr folder."""

    def __init__(self, path: Path, *, worker: bool = False) -> None:
        super().__init__(path, worker=worker)
        if not worker and ready_of(path).exists():
            with suppress(InUse), locked(path):  # if in use, the process that wrote it is finishing
                _finish(path)
        try:
            self._group = zarr.open_group(path, mode="r")
        except Exception as error:
            # zarr raises many types of errors for a folder that is not a store.
            raise BadValue(
                f"Expected a .zarr store, found {path}, which is damaged or of another kind ({error})."
            ) from None
        if "obs" not in self._group:
            raise BadValue(
                f"Expected an AnnData store, found {path} without obs; available: {some_of(self._group)}."
            )

    def embedding(self, use_rep: str | None) -> Rows:
        """Return the rows of ``obsm[use_rep]``, or of ``X``."""
        rows = stored_rows(self._group, use_rep or self.default_rep)
        chunks = getattr(rows, "shards", None) or getattr(rows, "chunks", None)
        self.row_step = chunks[0] if chunks else 1
        return rows

    def obs(self, keys: Sequence[str]) -> pd.DataFrame:
        """Read some columns of ``obs``."""
        return stored_obs(self._group, keys)

    @contextmanager
    def writer(
        self, out: Path | None, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> Iterator[Writer]:
        """Open a writer for a result in this store, or in a copy of it."""
        destination = (out or self.path).resolve()
        folder = destination.parent / f".{destination.name}.{secrets.token_hex(6)}.partial"
        folder.mkdir()
        try:
            version = self._group.metadata.zarr_format
            if out is None:
                with locked(destination):
                    yield _ZarrWriter(folder, version, key, shape, dtype)
                    # From here on the result is complete: if we are killed, the next opening finishes it.
                    os.rename(folder, ready_of(destination))
                    _finish(destination)
            else:
                store = folder / "store"
                _copy(self.path, store)
                yield _ZarrWriter(folder, version, key, shape, dtype)
                _move_in(folder, store)
                _replace(store, destination, folder / "old")
            sync_folder(destination.parent)
        finally:
            _remove(folder)


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


def ready_of(store: Path) -> Path:
    """Return the folder of a complete result that is being moved into a store."""
    store = store.resolve()
    return store.parent / f".{store.name}.ready"


def _finish(store: Path) -> None:
    """Move a complete result into its store, which must be locked."""
    ready = ready_of(store)
    if ready.exists():
        _move_in(ready, store)
        _remove(ready)


def _move_in(folder: Path, store: Path) -> None:
    """Move ``new/obsm/KEY`` and ``new/uns/KEY`` into a store; if interrupted it can be repeated."""
    root = zarr.open_group(store, mode="r+", use_consolidated=False)
    # Remove the index first: it describes the old arrays, so the new ones would be unreadable.
    if _has_index(store):
        (folder / "indexed").touch()
        _drop_index(store)
    for name in ("uns", "obsm"):
        if name not in root:
            root.create_group(name).attrs.update(
                {"encoding-type": "dict", "encoding-version": "0.1.0"}
            )
        for source in (folder / "new" / name).iterdir():
            if source.is_dir():
                _replace(source, store / name / source.name, folder / "old" / name / source.name)
    if (folder / "indexed").exists():
        with warnings.catch_warnings():
            # The store had an index before, so its owner needs no warning that we write it again.
            warnings.filterwarnings("ignore", "Consolidated metadata")
            zarr.consolidate_metadata(store)


def _has_index(store: Path) -> bool:
    """Whether a store has an index: consolidated metadata of all its arrays."""
    group = zarr.open_group(store, mode="r")
    return group.metadata.consolidated_metadata is not None


def _drop_index(store: Path) -> None:
    (store / ".zmetadata").unlink(missing_ok=True)  # version 2
    root = store / "zarr.json"
    if root.exists():
        described = json.loads(root.read_text())
        described.pop("consolidated_metadata", None)
        with replacing(root) as temporary:
            temporary.write_text(json.dumps(described))


def _replace(source: Path, target: Path, aside: Path) -> None:
    """Move a folder to ``target``; an existing one is first moved to ``aside``."""
    if target.exists():
        aside.parent.mkdir(parents=True, exist_ok=True)
        _remove(aside)
        os.rename(target, aside)
        try:
            os.rename(source, target)
        except OSError:
            os.rename(aside, target)
            raise
    else:
        os.rename(source, target)


def _copy(source: Path, target: Path) -> None:
    """Copy the files of a store, but not their permissions: the copy must be writeable."""
    for folder, _, names in os.walk(source):
        here = target / Path(folder).relative_to(source)
        here.mkdir()
        for name in names:
            shutil.copyfile(Path(folder) / name, here / name)


def _remove(folder: Path) -> None:
    """Remove a folder, even if threads of an interrupted write still add chunks to it."""
    for _ in range(50):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)
