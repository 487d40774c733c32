"""The numbers of a text table: parsed once, kept in a temporary file, read some rows at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from .disk_rows import DiskRows, scratch_file

__all__ = ["ParsedNumbers"]

#: Texts for a missing number; a column with some of them still counts as numbers.
MISSING = frozenset(["", "NA", "N/A", "#N/A", "NULL", "null", "None", "."])


class ParsedNumbers:
    """Columns of numbers, added in blocks of rows.

    Those that are numbers in the first block are written. The others cannot become columns of numbers.
    """

    def __init__(self, beside: Path) -> None:
        self._file = scratch_file(beside)
        self._written: list[int] | None = None  # columns in the file
        self._numeric: set[int] = set()  # columns without text so far
        self._present: set[int] = set()  # columns in which not every number is missing
        self._counting: dict[int, float] = {}  # first number of the columns that count rows so far
        self._n = 0

    def add(self, columns: Sequence[Sequence[str]]) -> None:
        """Add the texts of the next rows, column by column."""
        if self._written is None:
            parsed = {j: _floats(texts) for j, texts in enumerate(columns)}
            self._written = [j for j, values in parsed.items() if values is not None]
            self._numeric = set(self._written)
            firsts = {j: values[0] for j, values in parsed.items() if values is not None}
            self._counting = {j: float(first) for j, first in firsts.items() if first in (0, 1)}
        else:
            parsed = {j: _floats(columns[j]) for j in self._numeric}
        block = np.full((len(columns[0]), len(self._written)), np.nan)
        for k, j in enumerate(self._written):
            values = parsed.get(j)
            if values is None:
                self._numeric.discard(j)
                continue
            block[:, k] = values
            if j not in self._present and not np.isnan(values).all():
                self._present.add(j)
            if j in self._counting:
                counts = self._counting[j] + np.arange(self._n, self._n + values.size)
                if not np.array_equal(values, counts):
                    del self._counting[j]
        self._file.write(block.data)
        self._n += len(block)

    def numeric(self) -> set[int]:
        """Return the columns that hold numbers; one in which all are missing does not."""
        return self._numeric & self._present

    def counts_rows(self, column: int) -> bool:
        """Whether a column is 0, 1, 2, ... or 1, 2, 3, ..., with more than one row."""
        return self._n > 1 and column in self._counting

    def columns(self, columns: Sequence[int]) -> ParsedRows:
        """Return the rows of some columns."""
        assert self._written is not None
        shape = (self._n, len(self._written))
        rows = DiskRows(self._file, 0, shape, np.dtype(np.float64))
        return ParsedRows(rows, [self._written.index(j) for j in columns])

    def close(self) -> None:
        """Remove the temporary file."""
        self._file.close()


class ParsedRows:
    """Rows of some of the columns in the file."""

    def __init__(self, rows: DiskRows, at: list[int]) -> None:
        self.shape, self.dtype = (rows.shape[0], len(at)), rows.dtype
        self._rows, self._at = rows, at

    def __getitem__(self, rows: slice) -> np.ndarray:
        block = self._rows[rows]
        return block if len(self._at) == block.shape[1] else block[:, self._at]


def _floats(texts: Iterable[str]) -> np.ndarray | None:
    """Return texts as numbers, NaN if missing; ``None`` if a text is not a number."""
    texts = list(texts)
    if "_" in "".join(texts):  # Python would read the barcode 10_2 as the number 102
        return None
    try:
        return np.fromiter(map(float, texts), np.float64, len(texts))
    except ValueError:
        texts = ["nan" if text.strip() in MISSING else text for text in texts]
    try:
        return np.fromiter(map(float, texts), np.float64, len(texts))
    except ValueError:
        return None
