"""The interface of all kinds of files: rows of an embedding, labels, and a writer for the result."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from ...core.checks import BATCH_KEY
from ...errors import BadValue, Part
from ..atomic import check_same

__all__ = ["BLOCK_LABELS", "CellFile", "Encoder", "Rows", "Writer", "check_key"]


class Rows(Protocol):
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
    #: Read a multiple of this many rows at a time, so that no stored chunk is read twice.
    row_step: int = 1
    #: Only labels are read from this file, so a table needs no coordinates.
    only_labels: bool = False

    def __init__(self, path: Path, *, worker: bool = False) -> None:
        self.path = path
        self.worker = worker
        #: The state of the file before anything is read.
        self._read = os.stat(path)

    def __enter__(self) -> CellFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - most kinds keep nothing open
        """Close the file."""

    def exclude(self, keys: Sequence[str]) -> None:  # noqa: B027 - only a table must know
        """Note columns that are labels: in a table they are not coordinates."""

    def note(self, *names: str) -> None:  # noqa: B027 - most kinds are one file
        """Note elements that are about to be read by other means, for :meth:`check_unchanged`."""

    @property
    def state(self) -> os.stat_result:
        """The state of the file before anything was read."""
        return self._read

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
        check_same(self.path, self._read, now)

    @abstractmethod
    def embedding(self, use_rep: str | None) -> Rows:
        """Return the rows of the embedding with this name."""

    @abstractmethod
    def obs(self, keys: Sequence[str], what: Part = BATCH_KEY) -> pd.DataFrame:
        """Read these columns of labels, and no others; ``what`` is the parameter that names them."""

    @abstractmethod
    def writer(
        self, out: Path | None, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> AbstractContextManager[Writer]:
        """Open a writer for a result: in a copy of this file at ``out``, or in this file if ``None``.

        It writes nothing if the file is not the one that was opened (:meth:`check_unchanged`).
        """

    def record(self, key: str) -> dict[str, Any] | None:
        """Return the record that was written with a result, if there is one."""
        return None

    def default_key(self, use_rep: str | None) -> str:
        """Return the default name of a result."""
        return f"{use_rep or self.default_rep}_batchprox"

    #: The default embedding.
    default_rep: str = "X_pca"


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
