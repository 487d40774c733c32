"""Text tables: ``.csv`` and ``.tsv``, also gzipped.

Columns of numbers and labels are held in memory, other columns are not.

We use the csv module, not pandas. Even with all columns as text, pandas silently fills short lines and
accepts misplaced quotes, where we raise an error with the line number. It also drops blank lines.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from ...errors import BadValue
from .tables import Table

__all__ = ["TextFile"]

#: Rows of text that are converted to numbers at a time.
BLOCK_ROWS = 8192

#: Texts for a missing number; a column with some of them still counts as numbers.
MISSING = frozenset(["", "NA", "N/A", "#N/A", "NULL", "null", "None", "."])


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
            line = file.readline()
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
        self._found: dict[str, np.ndarray] | None = None
        self._texts: dict[str, list[str | None]] = {}

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return columns of numbers side by side."""
        found = self._scan()
        return np.column_stack([found[name] for name in names])

    def _numeric(self) -> set[str]:
        return set(self._scan())

    def _labels(self, keys: Sequence[str]) -> pd.DataFrame:
        self._scan(keys)
        return pd.DataFrame({key: pd.Series(self._texts[key], dtype=object) for key in keys})

    def _scan(self, keys: Sequence[str] = ()) -> dict[str, np.ndarray]:
        """Read the columns of numbers, and the text of some columns."""
        if self._found is not None and all(key in self._texts for key in keys):
            return self._found
        numbers: dict[int, list[np.ndarray]] = {j: [] for j in range(len(self.columns))}
        texts: dict[str, list[str | None]] = {key: [] for key in keys}
        shared: dict[str, str] = {}  # one string per label, not one per cell
        records = self._records()
        next(records)
        cells = (record for record in records if record)
        while block := list(islice(cells, BLOCK_ROWS)):
            columns = list(zip(*block, strict=True))
            for j in list(numbers):
                values = _floats(columns[j])
                if values is None:
                    del numbers[j]
                else:
                    numbers[j].append(values)
            for key, text in texts.items():
                column = columns[self.columns.index(key)]
                text.extend(shared.setdefault(label, label) if label else None for label in column)
            del block, columns  # before the next block is read
        joined = {self.columns[j]: np.concatenate(parts) for j, parts in numbers.items() if parts}
        if numbers and not joined:
            raise BadValue(
                f"Expected at least one cell, found only a header line in {self.path.name}."
            )
        # A column in which every number is missing is not a coordinate.
        self._found = {name: v for name, v in joined.items() if not np.isnan(v).all()}
        self._texts |= texts
        return self._found

    def _save(
        self, path: Path, destination: Path, names: Sequence[str], result: np.ndarray
    ) -> None:
        at = [self.columns.index(name) for name in names]
        with _open_text(path, destination) as file:
            file.write("\ufeff" * self._bom)
            write = csv.writer(
                file, delimiter=_delimiter(destination), lineterminator=self._line_end
            ).writerow
            records = self._records()
            write(next(records)[self._unnamed :])
            i = 0
            for record in records:
                if record and i < len(result):
                    values = result[
                        i
                    ].tolist()  # str() of a float is the shortest text that reads back the same
                    for j, value in zip(at, values, strict=True):
                        record[j] = value
                i += bool(record)
                write(record)
        if i != len(result):
            raise BadValue(
                f"Expected {self.path.name} not to change while it is read, found {i} cells "
                f"instead of {len(result)}."
            )

    def _open(self, mode: str, **how: Any) -> Any:
        packed = self.path.suffix.lower() == ".gz"
        return gzip.open(self.path, mode, **how) if packed else open(self.path, mode, **how)

    def _records(self, check: bool = True) -> Generator[list[str], None, None]:
        """Yield all records: the header, cells, and blank lines as empty records."""
        line = 0
        with self._open("rt", encoding="utf-8-sig", newline="") as file, self._reading():
            reader = csv.reader(file, delimiter=self._delimiter, strict=True)
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

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise BadValue(
                f"Expected a text table in UTF-8 (gzipped if the name ends with .gz), found "
                f"{self.path}, which is damaged or of another kind ({error})."
            ) from None


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
