"""Files with embeddings, opened by suffix: rows of an embedding, labels, and a writer for the result.

Most are read in parts, not loaded completely.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from ...core.checks import BATCH_KEY, some_of
from ...errors import BadFile, BadKey, BadValue, Part
from ..atomic import check_file, check_same, kind_at
from ..damaged import reading

__all__ = [
    "BLOCK_LABELS", "SUFFIXES", "CellFile", "Encoder", "RowsOnDisk", "Writer", "check_key",
    "kind_of", "open_cells",
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


class RowsOnDisk(Protocol):
    """An embedding on disk; a slice of it is read when requested."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(cells, coordinates)."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the stored numbers."""
        ...

    def __getitem__(self, rows: slice) -> Any:
        """Read some rows: an array, or a sparse matrix if it is stored as one."""
        ...


class Writer(ABC):
    """Takes the result some rows at a time, then the record of what was done.

    The file changes only when the context of the writer ends without an error.
    """

    @abstractmethod
    def write(self, lo: int, block: np.ndarray) -> None:
        """Write rows, starting at row ``lo``."""

    def finish(self, record: dict[str, Any]) -> None:  # noqa: B027 - some cannot
        """Add the record, if this kind of file can hold it."""


#: Names in a zarr store that are not those of elements.
_DOCUMENTS = (".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json")


def check_key(key: str, what: str) -> None:
    """Raise an error if the name of a result could lead out of its group, or to a document of a store."""
    if key in ("", ".", "..", *_DOCUMENTS) or not {"/", "\\", "\0"}.isdisjoint(key):
        raise BadValue(f"Expected a plain name for {what}, found {key!r}.")


class CellFile(ABC):
    """A file with an embedding, opened for reading.

    Use as a context manager. In a ``named`` file an embedding is chosen by name. In a ``keyed`` file the
    result gets a name; in others it replaces the input.
    """

    named: bool = True
    keyed: bool = True
    #: The default embedding.
    default_rep: str = "X_pca"
    #: Read a multiple of this many rows at a time, so that no stored chunk is read twice.
    row_step: int = 1
    #: Only labels are read from this file, so a table needs no coordinates.
    only_labels: bool = False
    #: A second file, from which all labels come.
    labels: CellFile | Unnamed | None = None

    def __init__(self, path: Path, *, worker: bool = False) -> None:
        self.path = path
        self.worker = worker
        #: The state of the file before anything is read.
        self.state = os.stat(path)
        #: What is to be closed with the file.
        self.opened = ExitStack()
        try:
            with reading(path):
                self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> CellFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, and that of its labels."""
        self.opened.close()

    def exclude(self, keys: Sequence[str]) -> None:  # noqa: B027 - only a table must know
        """Note columns that are labels: in a table they are not coordinates."""

    def note(self, *names: str) -> None:  # noqa: B027 - most kinds are one file
        """Note elements that are about to be read by other means, for :meth:`check_unchanged`."""

    def check_unchanged(self) -> None:
        """Raise an error if the file was replaced or changed since it was opened.

        A file is read several times, in parts by its name: names, labels and coordinates would be of
        different cells. To be called after the last reading, before a result gets its name.
        """
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            raise BadValue(
                f"Expected {self.path} to stay as it was when it was read, found that it was removed."
            ) from None
        check_same(self.path, self.state, now)

    def embedding(self, use_rep: str | None) -> RowsOnDisk:
        """Return the rows of the embedding with this name."""
        with reading(self.path):
            return self._embedding(use_rep)

    def obs(self, keys: Sequence[str], what: Part = BATCH_KEY) -> pd.DataFrame:
        """Read these columns of labels, and no others; ``what`` is the parameter that names them."""
        self.exclude(keys)
        if self.labels is not None:
            return self.labels.obs(keys, what)
        with reading(self.path):
            return self._obs(keys, what)

    @abstractmethod
    def _open(self) -> None:
        """Open the file, and check what can be checked without reading it."""

    @abstractmethod
    def _embedding(self, use_rep: str | None) -> RowsOnDisk: ...

    @abstractmethod
    def _obs(self, keys: Sequence[str], what: Part) -> pd.DataFrame: ...

    @abstractmethod
    def writer(
        self, out: Path | None, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> AbstractContextManager[Writer]:
        """Open a writer for a result: in a copy of this file at ``out``, or in this file if ``None``.

        It writes nothing if the file is not the one that was opened (:meth:`check_unchanged`).
        """

    def require(self, names: Sequence[str], found: Iterable[str], kind: str, what: Part) -> None:
        """Raise an error if names, the parameter ``what``, are not among the arrays or columns found."""
        absent = [name for name in names if name not in found]
        if absent:
            raise BadKey(
                "Expected ", what, f" among the {kind} of {self.path.name}, found no {some_of(absent)}; "
                f"available: {some_of(found, most=20)}.",
            )  # fmt: skip

    def record(self, key: str) -> dict[str, Any] | None:
        """Return the record that was written with a result, if there is one."""
        return None

    def default_key(self, use_rep: str | None) -> str:
        """Return the default name of a result."""
        return f"{use_rep or self.default_rep}_batchprox"


#: Labels that are read and encoded at a time.
BLOCK_LABELS = 1 << 16


class Encoder:
    """Encodes text labels block by block; ``None`` and the texts in ``missing`` are missing labels."""

    def __init__(self, missing: Iterable[str] = ("",)) -> None:
        # An unknown label gets the next number when it is looked up.
        self._codes: defaultdict[str | None, int] = defaultdict(count().__next__)
        self._codes |= dict.fromkeys([None, *missing], -1)
        self._parts: list[np.ndarray] = []

    def add(self, labels: Sequence[str | None]) -> None:
        """Encode the labels of the next cells."""
        codes = np.fromiter(map(self._codes.__getitem__, labels), np.int32, len(labels))
        # The smallest integers that fit all labels so far, and -1.
        self._parts.append(codes.astype(np.min_scalar_type(-len(self._codes))))

    def series(self) -> pd.Series[Any]:
        """Return all labels as a categorical."""
        codes = np.concatenate(self._parts) if self._parts else np.empty(0, np.int8)
        self._parts = [codes]
        names = [label for label, code in self._codes.items() if code >= 0]
        # Objects, because pandas cannot hold every text (half a surrogate pair) as its own strings.
        categories = pd.Index(np.array([*names, None], object)[:-1], dtype=object)
        return pd.Series(pd.Categorical.from_codes(codes, categories))


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
    file = kind(path, worker=worker)
    if labels is not None:
        try:
            file.labels = _open_labels(Path(labels))
        except BaseException:
            file.close()
            raise
        file.opened.callback(file.labels.close)
    return file


def _open_labels(path: Path) -> CellFile | Unnamed:
    """Open a second file, with the labels: a table, or any file that has the batch keys."""
    if path.suffix.lower() in (".npy", ".txt"):
        return Unnamed(path)
    file = open_cells(path)
    file.only_labels = True
    return file


class Unnamed:
    """One label per cell, which have no name, so that any single batch key refers to them.

    They are in a ``.txt`` file with one label per line, or in a one-dimensional ``.npy``.
    """

    def __init__(self, path: Path) -> None:
        check_file(path, "a file with labels")
        self.path, self._labels = path, _labels_of(path)

    def obs(self, keys: Sequence[str], what: Part) -> pd.DataFrame:
        """Return the labels as the only column."""
        if len(keys) != 1:
            raise BadValue(
                f"Expected one batch key for the labels in {self.path.name}, which have no name, "
                f"found {some_of(keys)}."
            )
        return self._labels.to_frame(keys[0])

    def close(self) -> None:
        """Do nothing: the labels are read at once."""


def _labels_of(path: Path) -> pd.Series[Any]:
    if path.suffix.lower() == ".npy":
        from .arrays import npy_labels

        with reading(path):
            return npy_labels(path)
    labels = Encoder()
    try:
        with open(path, encoding="utf-8-sig") as file:
            while block := [line.strip() for line in islice(file, BLOCK_LABELS)]:
                labels.add(block)
    except UnicodeDecodeError as error:
        raise BadValue(
            f"Expected one label per line in UTF-8, found {path}, which is damaged or of "
            f"another kind ({error})."
        ) from None
    return labels.series()
