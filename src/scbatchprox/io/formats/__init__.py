"""Files with embeddings, opened by suffix. Most are read in parts, not loaded completely."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...core.checks import BATCH_KEY, some_of
from ...errors import BadFile, BadValue, Part
from ..atomic import check_file, kind_at
from ..damaged import naming, reading
from .base import BLOCK_LABELS, CellFile, Encoder, Rows, Writer, check_key

__all__ = [
    "SUFFIXES", "CellFile", "Rows", "WithLabels", "Writer", "check_key", "kind_of", "open_cells",
]  # fmt: skip

#: The module and class that open each kind of file; imported when needed.
SUFFIXES = {
    ".h5ad": ("h5ad", "H5adFile"),
    ".zarr": ("zarr", "ZarrFile"),
    ".npy": ("arrays", "NpyFile"),
    ".npz": ("arrays", "NpzFile"),
    ".parquet": ("tables", "ParquetFile"),
    ".csv": ("tables", "TextFile"),
    ".tsv": ("tables", "TextFile"),
    ".csv.gz": ("tables", "TextFile"),
    ".tsv.gz": ("tables", "TextFile"),
}


def kind_of(path: str | Path) -> str:
    """Return the suffix that tells the kind of a file."""
    name = Path(path).name.lower()
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.endswith(suffix):
            return suffix
    if name.endswith(".h5mu"):
        raise BadValue(
            f"Expected a file with one table of cells, found the MuData {Path(path).name!r}; write a "
            f'modality to its own file, such as mdata["rna"].write_h5ad("rna.h5ad"), or call '
            f"scbatchprox.refine on the MuData."
        )
    raise BadValue(
        f"Expected a file with a suffix of {', '.join(SUFFIXES)}, found {Path(path).name!r}."
    )


def open_cells(
    path: str | Path, labels: str | Path | None = None, *, worker: bool = False
) -> CellFile:
    """Open a file for reading; ``labels`` is a second file with the labels.

    Only ``.npy`` needs a second file; all other kinds can hold labels. A ``worker`` reads on behalf of a
    process that has the file open and may hold its lock.
    """
    path = Path(path)
    module, name = SUFFIXES[kind_of(path)]
    found, wanted = kind_at(path), "folder" if kind_of(path) == ".zarr" else "file"
    if found is None and wanted == "folder":
        from .zarr_folder import restore

        restore(path)  # a process may have been killed while it replaced the store
        found = kind_at(path)
    if found is None:
        raise BadFile(f"Expected a file to read, found none at {path}.")
    if found != wanted:
        raise BadValue(f"Expected {path} to be a {wanted}, found a {found}.")
    kind: type[CellFile] = getattr(import_module(f".{module}", __name__), name)
    with reading(path):
        file = kind(path, worker=worker)
    return file if labels is None else WithLabels(file, Path(labels))


class WithLabels(CellFile):
    """A file whose labels come from a second file; everything else comes from the first.

    The second file is a table, or any file that has the batch keys. Or it has one label per cell: a
    ``.txt`` file with one label per line, or a one-dimensional ``.npy``. Such labels have no name, so any
    single batch key refers to them.
    """

    def __init__(self, file: CellFile, labels: Path) -> None:
        super().__init__(file.path)
        self.file, self.labels = file, labels
        self.keyed, self.default_rep = file.keyed, file.default_rep
        self.named = file.named
        self._second: CellFile | pd.Series[Any]
        try:
            self._second = self._open_second()
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        """Close both files."""
        self.file.close()
        if isinstance(self._second, CellFile):
            self._second.close()

    def embedding(self, use_rep: str | None) -> Rows:
        """Return the rows of the first file."""
        rows = self.file.embedding(use_rep)
        self.row_step, self.default_rep = self.file.row_step, self.file.default_rep
        return rows

    def obs(self, keys: Sequence[str], what: Part = BATCH_KEY) -> pd.DataFrame:
        """Read labels from the second file."""
        self.file.exclude(keys)
        if isinstance(self._second, CellFile):
            with naming(self.labels):
                return self._second.obs(keys, what)
        if len(keys) != 1:
            raise BadValue(
                f"Expected one batch key for the labels in {self.labels.name}, which have no name, "
                f"found {some_of(keys)}."
            )
        return self._second.to_frame(keys[0])

    def writer(
        self, out: Path | None, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> AbstractContextManager[Writer]:
        """Open a writer of the first file."""
        return self.file.writer(out, key, shape, dtype)

    @property
    def state(self) -> os.stat_result:
        """The state of the first file before anything was read."""
        return self.file.state

    def check_unchanged(self) -> None:
        """Look at the first file: labels are read at once."""
        self.file.check_unchanged()

    def default_key(self, use_rep: str | None) -> str:
        """Return the default name of a result in the first file."""
        return self.file.default_key(use_rep)

    def _open_second(self) -> CellFile | pd.Series[Any]:
        kind = self.labels.suffix.lower()
        if kind not in (".npy", ".txt"):
            second = open_cells(self.labels)
            second.only_labels = True
            return second
        check_file(self.labels, "a file with labels")
        if kind == ".npy":
            from .arrays import npy_labels

            with reading(self.labels):
                return npy_labels(self.labels)
        labels = Encoder()
        try:
            with open(self.labels, encoding="utf-8-sig") as file:
                while block := [line.strip() for line in islice(file, BLOCK_LABELS)]:
                    labels.add(block)
        except UnicodeDecodeError as error:
            raise BadValue(
                f"Expected one label per line in UTF-8, found {self.labels}, which is damaged or of "
                f"another kind ({error})."
            ) from None
        return labels.series()
