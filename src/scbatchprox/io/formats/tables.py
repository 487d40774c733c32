"""Tables with one row per cell, as text or Parquet.

Coordinates are the columns of numbers, without the batch keys. They are read some rows at a time. The
result has the same columns in the same order, with refined coordinates.

A first column that names the cells is never a coordinate. It has no name, a common name such as
``cell_id``, or counts the rows.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...core.checks import BATCH_KEY, some_of
from ...errors import BadKey, BadValue, Parameter, Part
from ..atomic import replacing
from .base import CellFile, Rows, Writer

__all__ = ["Coordinates", "Table"]

#: Names (in lower case) of a first column with the names of cells.
ID_NAMES = frozenset(
    {"", "unnamed: 0", "index", "id", "cell", "cells", "cell_id", "cellid"}
    | {"barcode", "barcodes", "obs_names", "rownames"}
)


class Table(CellFile):
    """Common parts of text and Parquet tables: which columns are coordinates, and writing the result."""

    keyed = False
    named = True  # ``use_rep`` is the prefix of the coordinates' names
    default_rep = "X"
    columns: list[str]
    #: Only labels are read from this table, so it needs no coordinates.
    only_labels: bool = False

    def __init__(self, path: Path, *, worker: bool = False) -> None:
        super().__init__(path, worker=worker)
        self._keys: set[str] = set()
        self._rows: Coordinates | None = None

    def embedding(self, use_rep: str | None) -> Rows:
        """Return the columns of numbers, or those whose names begin with ``use_rep``.

        They are chosen when they are first used, because columns that are requested as batch keys
        before that are not coordinates.
        """
        self._rows = Coordinates(self, use_rep or "")
        return self._rows

    def obs(self, keys: Sequence[str], what: Part = BATCH_KEY) -> pd.DataFrame:
        """Read some columns as labels."""
        absent = [key for key in keys if key not in self.columns]
        if absent:
            raise BadKey(
                "Expected ", what, f" among the columns of {self.path.name}, found no "
                f"{some_of(absent)}; available: {some_of(self.columns, most=20)}.",
            )  # fmt: skip
        self.exclude(keys)
        return self._labels(keys)

    def exclude(self, keys: Sequence[str]) -> None:
        """Mark columns as batch keys, which are not coordinates."""
        late = [key for key in keys if self._rows is not None and self._rows.uses(key)]
        if late:
            raise BadValue(
                f"Expected the batch keys before the first row is read, found {some_of(late)}, "
                "which was already read as a coordinate."
            )
        self._keys.update(keys)

    @contextmanager
    def writer(
        self, out: Path | None, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> Iterator[Writer]:
        """Open a writer for refined coordinates, which replace the old ones."""
        rows = self._rows
        assert rows is not None
        destination = out or self.path
        # Resolved, so that a link keeps pointing to the file.
        with (
            replacing(destination.resolve(), self.check_unchanged) as temporary,
            self._writer(temporary, destination, rows.names, dtype) as writer,
        ):
            yield writer

    def coordinates(self, prefix: str) -> list[str]:
        """Return the names of the columns that are coordinates."""
        matching = [name for name in self.columns if name.startswith(prefix)]
        if not matching:
            raise BadKey(
                "Expected ", Parameter("use_rep"), f" to be a prefix of column names, found none that begins "
                f"with {prefix!r}; available: {some_of(self.columns, most=20)}.",
            )  # fmt: skip
        numeric = self._numeric()
        if prefix:
            # Do not silently omit one of a numbered series because it contains a typing error.
            numbered = re.compile(re.escape(prefix) + r"[ _.-]?\d+")
            text = [n for n in matching if n not in numeric and numbered.fullmatch(n)]
            text = [name for name in text if name not in self._keys]
            if text:
                raise BadValue(
                    f"Expected numbers in all columns {prefix!r}1, 2, ..., found text in {some_of(text)}."
                )
        names = [name for name in matching if name in numeric and name not in self._keys]
        if names and names[0] == self.columns[0] and self._is_id(names[0]):
            del names[0]
        if not names:
            what = (
                f"columns of numbers that begin with {prefix!r}" if prefix else "columns of numbers"
            )
            raise BadValue(
                f"Expected {what} as coordinates in {self.path.name}, found none besides batch keys "
                f"and names of cells; available: {some_of(self.columns, most=20)}."
            )
        return names

    @abstractmethod
    def rows_of(self, names: Sequence[str]) -> Rows:
        """Return the rows of some columns of numbers."""

    @abstractmethod
    def _numeric(self) -> set[str]:
        """Return the names of the columns that hold numbers."""

    @abstractmethod
    def _labels(self, keys: Sequence[str]) -> pd.DataFrame:
        """Return existing columns as labels."""

    @abstractmethod
    def _writer(
        self, path: Path, destination: Path, names: Sequence[str], dtype: np.dtype[Any]
    ) -> AbstractContextManager[Writer]:
        """Open a writer of a copy with new coordinates at ``path``, which is later moved."""

    @abstractmethod
    def _counts_rows(self, name: str) -> bool:
        """Whether a column of numbers is 0, 1, 2, ... or 1, 2, 3, ..., with more than one row."""

    def _is_id(self, name: str) -> bool:
        return name.lower() in ID_NAMES or self._counts_rows(name)

    def _check_columns(self) -> None:
        repeated = [name for name, n in Counter(self.columns).items() if n > 1]
        if repeated:
            raise BadValue(
                f"Expected columns with different names in {self.path.name}, found {some_of(repeated)} "
                f"more than once."
            )


class Coordinates:
    """Rows of the coordinates of a table; columns are chosen and read on first use."""

    def __init__(self, table: Table, prefix: str) -> None:
        self._table, self._prefix = table, prefix

    @cached_property
    def names(self) -> list[str]:
        """Names of the columns that are coordinates."""
        return self._table.coordinates(self._prefix)

    @cached_property
    def _values(self) -> Rows:
        return self._table.rows_of(self.names)

    def uses(self, name: str) -> bool:
        """Whether a column has been chosen as a coordinate; chooses none."""
        return name in self.__dict__.get("names", ())

    @property
    def shape(self) -> tuple[int, ...]:
        """(cells, coordinates)."""
        return self._values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers in memory."""
        return self._values.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._values[rows]  # type: ignore[no-any-return]
