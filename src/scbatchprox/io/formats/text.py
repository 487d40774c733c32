"""Tables of text: ``.csv`` and ``.tsv``, gzipped too.

Columns of numbers and labels are held in memory, the other columns are not.

By the csv module: pandas, even with all columns as text, fills up short lines and takes misplaced quotes in
silence, where we name the line; and it drops blank lines, which we keep.
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

#: Rows of text that are turned into numbers at a time.
BLOCK_ROWS = 8192

#: Texts that mean no number; a column with some of them is still one of numbers.
MISSING = frozenset(["", "NA", "N/A", "#N/A", "NULL", "null", "None", "."])


class TextFile(Table):
    """Comma- or tab-separated text with a line of names; all labels are strings.

    The text is read once for numbers and labels and once more when the result is written: all other
    fields pass through as the very same strings. A header that is one name short, as R writes it,
    means that the first column has no name.
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
            raise BadValue(f"Expected a line with names of columns, found none in {path}.")
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
        same: dict[str, str] = {}  # one string per label, not one per cell
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
                text.extend(same.setdefault(label, label) if label else None for label in column)
            del block, columns  # before the next block is read
        joined = {self.columns[j]: np.concatenate(parts) for j, parts in numbers.items() if parts}
        if numbers and not joined:
            raise BadValue(f"Expected at least one cell, found only names in {self.path.name}.")
        # A column without any number is an empty note, not a coordinate.
        self._found = {name: v for name, v in joined.items() if not np.isnan(v).all()}
        self._texts |= texts
        return self._found

    def _save(self, path: Path, home: Path, names: Sequence[str], result: np.ndarray) -> None:
        at = [self.columns.index(name) for name in names]
        with _text_to(path, home) as file:
            file.write("\ufeff" * self._bom)
            write = csv.writer(
                file, delimiter=_delimiter(home), lineterminator=self._line_end
            ).writerow
            records = self._records()
            write(next(records)[self._unnamed :])
            i = 0
            for record in records:
                if record and i < len(result):
                    values = result[i].tolist()  # a float's shortest text that reads the same
                    for j, value in zip(at, values, strict=True):
                        record[j] = value
                i += bool(record)
                write(record)
        if i != len(result):
            raise BadValue(
                f"Expected {self.path.name} to stay as it is while it is read, found {i} cells "
                f"instead of {len(result)}."
            )

    def _open(self, mode: str, **how: Any) -> Any:
        packed = self.path.suffix.lower() == ".gz"
        return gzip.open(self.path, mode, **how) if packed else open(self.path, mode, **how)

    def _records(self, check: bool = True) -> Generator[list[str], None, None]:
        """All records: names, cells, and blank lines as empty ones."""
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
                    f"Expected a table of text in {self.path.name}, found a mistake after line "
                    f"{line} ({error})."
                ) from None

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise BadValue(
                f"Expected a table of text in UTF-8 (gzipped if the name ends with .gz), found "
                f"{self.path}, which is damaged or of another kind ({error})."
            ) from None


def _floats(texts: Iterable[str]) -> np.ndarray | None:
    """Numbers, NaN where there is none; ``None`` if one of the texts is something else."""
    texts = list(texts)
    if "_" in "".join(texts):  # Python takes the barcode 10_2 for the number 102
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
def _text_to(path: Path, home: Path) -> Iterator[IO[str]]:
    """Open ``path`` for text, packed if ``home``, where it will be moved to, is called so."""
    if home.suffix.lower() != ".gz":
        with open(path, "w", encoding="utf-8", newline="") as file:
            yield file
        return
    with (
        open(path, "wb") as raw,
        # No name and no time in it: the same table is the same bytes.
        gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as file,
    ):
        yield file
