"""Text tables: ``.csv`` and ``.tsv``, also gzipped.

Numbers are parsed once and kept in a temporary file, from which they are read some rows at a time.

We use the csv module, not pandas. Even with all columns as text, pandas silently fills short lines and
accepts misplaced quotes, where we raise an error with the line number. It also drops blank lines.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from ...errors import BadValue
from .base import Rows, Writer
from .encoding import Encoder
from .numbers import ParsedNumbers
from .tables import Table

__all__ = ["TextFile"]

#: Rows of text that are converted to numbers at a time.
BLOCK_ROWS = 8192

#: Characters of a line, at most: enough for a million coordinates.
LINE_CHARS = 1 << 25


class TextFile(Table):
    """Comma- or tab-separated text with a header line; all labels are strings.

    The text is read once for numbers and labels, and again when the result is written, so that all other
    fields stay the same strings. If the header is one name short, as R writes it, the first column has no
    name.
    """

    def __init__(self, path: Path, *, worker: bool = False) -> None:
        super().__init__(path, worker=worker)
        self._delimiter = _delimiter(path)
        with self._open("rb") as file, self._reading():
            line = file.readline(LINE_CHARS)
        self._bom = line.startswith(b"\xef\xbb\xbf")
        self._line_end = "\r\n" if line.endswith(b"\r\n") else "\n"
        with closing(self._records(check=False)) as records:
            header = next(records, None)
            first = next((record for record in records if record), [])
        if not header:
            raise BadValue(f"Expected a header line with column names, found none in {path}.")
        self._unnamed = len(first) == len(header) + 1 and first[-1] != ""
        self.columns = [""] * self._unnamed + header
        self._check_columns()
        self._numbers: ParsedNumbers | None = None
        self._encoded: dict[str, pd.Series[Any]] = {}

    def close(self) -> None:
        """Close the file of numbers."""
        if self._numbers is not None:
            self._numbers.close()

    def rows_of(self, names: Sequence[str]) -> Rows:
        """Return the rows of some columns of numbers."""
        return self._parsed().columns([self.columns.index(name) for name in names])

    def _numeric(self) -> set[str]:
        return {self.columns[j] for j in self._parsed().numeric()}

    def _counts_rows(self, name: str) -> bool:
        return self._parsed().counts_rows(self.columns.index(name))

    def _labels(self, keys: Sequence[str]) -> pd.DataFrame:
        if any(key not in self._encoded for key in keys):
            if self._numbers is not None or self.only_labels:
                self._scan(keys)
            else:
                self._parsed(keys)  # in one pass
        return pd.DataFrame({key: self._encoded[key] for key in keys})

    def _parsed(self, keys: Sequence[str] = ()) -> ParsedNumbers:
        """Return the numbers; labels are read in the same pass."""
        if self._numbers is None:
            numbers = ParsedNumbers(self.path)
            try:
                self._scan(keys, numbers)
            except BaseException:
                numbers.close()
                raise
            self._numbers = numbers
        return self._numbers

    def _scan(self, keys: Sequence[str], numbers: ParsedNumbers | None = None) -> None:
        """Read the labels in some columns, and all numbers if requested."""
        labels = {key: Encoder() for key in keys}
        records = self._records()
        next(records)
        cells = (record for record in records if record)
        n = 0
        while block := list(islice(cells, BLOCK_ROWS)):
            columns = list(zip(*block, strict=True))
            if numbers is not None:
                numbers.add(columns)
            for key, encoder in labels.items():
                encoder.add(columns[self.columns.index(key)])
            n += len(block)
            del block, columns  # before the next block is read
        if not n:
            raise BadValue(
                f"Expected at least one cell, found only a header line in {self.path.name}."
            )
        self._encoded |= {key: encoder.series() for key, encoder in labels.items()}

    @contextmanager
    def _writer(
        self, path: Path, destination: Path, names: Sequence[str], dtype: np.dtype[Any]
    ) -> Iterator[Writer]:
        at = [self.columns.index(name) for name in names]
        with _open_text(path, destination) as file, closing(self._records()) as records:
            file.write("\ufeff" * self._bom)
            write = csv.writer(
                file, delimiter=_delimiter(destination), lineterminator=self._line_end
            ).writerow
            write(next(records)[self._unnamed :])
            writer = _TextWriter(records, write, at)
            yield writer
            writer.close(self.path.name)

    def _open(self, mode: str, **how: Any) -> Any:
        packed = self.path.suffix.lower() == ".gz"
        return gzip.open(self.path, mode, **how) if packed else open(self.path, mode, **how)

    def _records(self, check: bool = True) -> Generator[list[str], None, None]:
        """Yield all records: the header, cells, and blank lines as empty records."""
        line = 0
        with self._open("rt", encoding="utf-8-sig", newline="") as file, self._reading():
            reader = csv.reader(self._lines(file), delimiter=self._delimiter, strict=True)
            try:
                for record in reader:
                    first, line = line == 0, reader.line_num
                    if check and first and self._unnamed:
                        record.insert(0, "")
                    if check and record and len(record) != len(self.columns):
                        raise BadValue(
                            f"Expected {len(self.columns)} fields in every line of "
                            f"{self.path.name}, found {len(record)} in line {line}."
                        )
                    yield record
            except csv.Error as error:
                raise BadValue(
                    f"Expected a text table in {self.path.name}, found an error after line "
                    f"{line} ({error})."
                ) from None

    def _lines(self, file: IO[str]) -> Iterator[str]:
        """Yield lines that fit in memory: a small gzipped file may have one of many gigabytes."""
        n = 0
        while line := file.readline(LINE_CHARS):
            n += 1
            if len(line) == LINE_CHARS:
                raise BadValue(
                    f"Expected lines of fewer than {LINE_CHARS:,} characters in {self.path.name}, found "
                    f"a longer one in line {n}."
                )
            yield line

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise BadValue(
                f"Expected a text table in UTF-8 (gzipped if the name ends with .gz), found "
                f"{self.path}, which is damaged or of another kind ({error})."
            ) from None


class _TextWriter(Writer):
    """Writes the records of a table with new numbers in some fields."""

    def __init__(
        self, records: Iterator[list[str]], write: Callable[[list[Any]], Any], at: list[int]
    ) -> None:
        self._records, self._write, self._at = records, write, at
        self._n, self._found = 0, 0

    def write(self, lo: int, block: np.ndarray) -> None:
        """Write rows, starting at row ``lo``."""
        self._n += len(block)
        while self._found < self._n and (record := next(self._records, None)) is not None:
            if record:
                # str() of a float is the shortest text that reads back the same
                values = block[self._found - lo].tolist()
                for j, value in zip(self._at, values, strict=True):
                    record[j] = value
            self._found += bool(record)
            self._write(record)

    def close(self, name: str) -> None:
        """Write the blank lines at the end."""
        for record in self._records:
            self._found += bool(record)
            self._write(record)
        if self._found != self._n:
            raise BadValue(
                f"Expected {name} not to change while it is read, found {self._found} cells "
                f"instead of {self._n}."
            )

    def finish(self, record: dict[str, Any]) -> None:
        """Ignore the record: a table cannot hold it."""


def _delimiter(path: Path) -> str:
    name = path.name.lower().removesuffix(".gz")
    return "\t" if name.endswith(".tsv") else ","


@contextmanager
def _open_text(path: Path, destination: Path) -> Iterator[IO[str]]:
    """Open ``path`` to write text, gzipped if ``destination``, its later name, ends with .gz."""
    if destination.suffix.lower() != ".gz":
        with open(path, "w", encoding="utf-8", newline="") as file:
            yield file
        return
    with (
        open(path, "wb") as raw,
        # Without name and time, so that the same table gives the same bytes.
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as file,
    ):
        yield file
