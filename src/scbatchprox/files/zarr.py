"""``.zarr`` folders, version 2 and 3: a result is made beside the store and moved into it."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import zarr
from anndata.io import write_elem

from .._atomic import sync_folder
from .._validate import some_of
from ..errors import BadValue
from .base import CellFile, Rows, Writer
from .h5ad import stored_obs, stored_rows

__all__ = ["ZarrFile"]

#: Bytes of one stored chunk of a result.
CHUNK_BYTES = 1 << 22


class ZarrFile(CellFile):
    """An AnnData store in a zarr folder."""

    def __init__(self, path: Path, *, worker: bool = False) -> None:
        super().__init__(path, worker=worker)
        try:
            self._group = zarr.open_group(path, mode="r")
        except Exception as error:
            # zarr answers a foreign folder with errors of many kinds.
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
        """Return a place for a result in this store, or in a copy of it."""
        home = (out or self.path).resolve()
        folder = Path(tempfile.mkdtemp(dir=home.parent, prefix=f".{home.name}.", suffix=".partial"))
        try:
            store = self.path
            if out is not None:
                store = folder / "store"
                shutil.copytree(self.path, store)
            writer = _ZarrWriter(folder, self._group.metadata.zarr_format, key, shape, dtype)
            yield writer
            writer.move_into(store)
            if out is not None:
                _put(store, home)
            sync_folder(home.parent)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class _ZarrWriter(Writer):
    def __init__(
        self, folder: Path, version: int, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> None:
        self._folder, self._key, self._version = folder, key, version
        group = zarr.open_group(folder / "obsm", mode="w", zarr_format=version)  # type: ignore[arg-type]
        self.rows_per_chunk = max(1, min(shape[0], CHUNK_BYTES // (shape[1] * dtype.itemsize)))
        self._data = group.create_array(
            key, shape=shape, dtype=dtype, chunks=(self.rows_per_chunk, shape[1])
        )
        self._data.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})

    def write(self, lo: int, block: np.ndarray) -> None:
        """Write the rows from ``lo`` on."""
        self._data[lo : lo + len(block)] = block

    def finish(self, record: dict[str, Any]) -> None:
        """Keep the record; everything moves into the store when the writer is left."""
        group = zarr.open_group(self._folder / "uns", mode="w", zarr_format=self._version)  # type: ignore[arg-type]
        with warnings.catch_warnings():
            # anndata announces how it will store arrays one day; no user can act on that here.
            warnings.filterwarnings("ignore", "zarr v3 autosharding", UserWarning)
            write_elem(group, self._key, record)

    def move_into(self, store: Path) -> None:
        """Move the result and its record into a store, each in one step, and tell its index."""
        root = zarr.open_group(store, mode="r+", use_consolidated=False)
        indexed = zarr.open_group(store, mode="r").metadata.consolidated_metadata is not None
        for name in ("uns", "obsm"):
            root.require_group(name)
            _put(self._folder / name / self._key, store / name / self._key)
        if indexed:
            zarr.consolidate_metadata(store)


def _put(source: Path, target: Path) -> None:
    """Move a folder to its place; if one is there already, the two change places in one step."""
    if not target.exists():
        os.rename(source, target)
        return
    libc = ctypes.CDLL(None, use_errno=True)
    exchange, here = 2, -100  # RENAME_EXCHANGE, AT_FDCWD
    if hasattr(libc, "renameat2") and not libc.renameat2(
        here, os.fsencode(source), here, os.fsencode(target), exchange
    ):
        return
    # Where the system cannot exchange, the old one steps aside first.
    aside = source.with_name(f"{source.name}.old")
    os.rename(target, aside)
    os.rename(source, target)
