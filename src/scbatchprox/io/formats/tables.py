"""Tables with one row per cell, as text (``.csv`` and ``.tsv``, also gzipped) or Parquet.

Coordinates are the columns of numbers, without the batch keys. They are read some rows at a time. The
result has the same columns in the same order, with refined coordinates.

A first column that names the cells is never a coordinate. It has no name, a common name such as
``cell_id``, or counts the rows.

Text is read by the csv module, not by pandas or pyarrow: both accept misplaced quotes, and drop blank lines,
and pandas fills short lines, where we raise an error with the line number. Its numbers are parsed once and
kept in a temporary file, from which they are read some rows at a time.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cached_property
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from ...core.checks import some_of
from ...errors import BadKey, BadValue, MissingExtra, Parameter, Part
from ..atomic import replacing
from ..damaged import check_fits, damaged, reading
from . import BLOCK_LABELS, CellFile, Encoder, RowsOnDisk, Writer
from .arrays import DiskRows, scratch_file

__all__ = ["ParquetFile", "TextFile"]

#: Names (in lower case) of a first column with the names of cells.
ID_NAMES = frozenset(
    {"", "unnamed: 0", "index", "id", "cell", "cells", "cell_id", "cellid"}
    | {"barcode", "barcodes", "obs_names", "rownames"}
)


class Table(CellFile):
    """Common parts of text and Parquet tables: which columns are coordinates, and writing the result."""

    keyed = False  # ``use_rep`` is the prefix of the coordinates' names
    default_rep = "X"
    columns: list[str]
    _rows: Coordinates | None = None

    def __init__(self, path: Path, *, worker: bool = False) -> None:
        self._keys: set[str] = set()
        super().__init__(path, worker=worker)

    def _embedding(self, use_rep: str | None) -> RowsOnDisk:
        """Return the columns of numbers, or those whose names begin with ``use_rep``.

        They are chosen when they are first used, because columns that are requested as batch keys
        before that are not coordinates.
        """
        self._rows = Coordinates(self, use_rep or "")
        return self._rows

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
        with (
            replacing(destination, self.check_unchanged) as temporary,
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
    def rows_of(self, names: Sequence[str]) -> RowsOnDisk:
        """Return the rows of some columns of numbers."""

    @abstractmethod
    def _numeric(self) -> set[str]:
        """Return the names of the columns that hold numbers."""

    @abstractmethod
    def _writer(
        self, path: Path, destination: Path, names: Sequence[str], dtype: np.dtype[Any]
    ) -> AbstractContextManager[Writer]:
        """Open a writer of a copy with new coordinates at ``path``, which is later moved."""

    def _is_id(self, name: str) -> bool:
        """Whether a column of numbers has a name of cells, or is 0, 1, 2, ... or 1, 2, 3, ..."""
        if name.lower() in ID_NAMES:
            return True
        rows = self.rows_of([name])
        n, first = rows.shape[0], rows[0:1][0, 0]
        if n == 1 or first not in (0, 1):
            return False
        blocks = (slice(lo, min(n, lo + BLOCK_LABELS)) for lo in range(0, n, BLOCK_LABELS))
        return all(np.array_equal(rows[at][:, 0], first + np.r_[at]) for at in blocks)

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
    def _values(self) -> RowsOnDisk:
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


#: Texts for a missing number; a column with some of them still counts as numbers.
MISSING = frozenset(["", "NA", "N/A", "#N/A", "NULL", "null", "None", "."])


class ParsedNumbers:
    """Columns of numbers in a temporary file, added in blocks of rows.

    Those that are numbers in the first block are written. The others cannot become columns of numbers.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._written: list[int] | None = None  # columns in the file
        self._numeric: set[int] = set()  # columns without text so far
        self._present: set[int] = set()  # columns in which not every number is missing
        self._n = 0

    def add(self, columns: Sequence[Sequence[str]]) -> None:
        """Add the texts of the next rows, column by column."""
        tried = range(len(columns)) if self._written is None else self._numeric
        parsed = {j: found for j in tried if (found := _floats(columns[j])) is not None}
        self._numeric = set(parsed)
        if self._written is None:
            self._written = list(parsed)
        block = np.full((len(columns[0]), len(self._written)), np.nan)
        for k, j in enumerate(self._written):
            if j in parsed:
                block[:, k] = parsed[j]
                if j not in self._present and not np.isnan(parsed[j]).all():
                    self._present.add(j)
        self._file.write(block.data)
        self._n += len(block)

    def numeric(self) -> set[int]:
        """Return the columns that hold numbers; one in which all are missing does not."""
        return self._numeric & self._present

    def columns(self, columns: Sequence[int]) -> DiskRows:
        """Return the rows of some columns."""
        assert self._written is not None
        shape, at = (self._n, len(self._written)), [self._written.index(j) for j in columns]
        return DiskRows(self._file, 0, shape, np.dtype(np.float64), columns=at)


def _floats(texts: Sequence[str]) -> np.ndarray | None:
    """Return texts as numbers, NaN if missing; ``None`` if a text is not a number."""
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

    def _open(self) -> None:
        self._numbers: ParsedNumbers | None = None
        self._encoded: dict[str, pd.Series[Any]] = {}
        self._delimiter = _delimiter(self.path)
        with self._stream("rb") as file:
            line = file.readline(LINE_CHARS)
        self._bom = line.startswith(b"\xef\xbb\xbf")
        self._line_end = "\r\n" if line.endswith(b"\r\n") else "\n"
        self.columns, self._unnamed = [], False  # not yet known
        with closing(self._records()) as records:
            header = next(records, None)
            first = next((record for record in records if record), [])
        if not header:
            raise BadValue(f"Expected a header line with column names, found none in {self.path}.")
        self._unnamed = len(first) == len(header) + 1 and first[-1] != ""
        self.columns = [""] * self._unnamed + header
        self._check_columns()

    def rows_of(self, names: Sequence[str]) -> RowsOnDisk:
        """Return the rows of some columns of numbers."""
        return self._parsed().columns([self.columns.index(name) for name in names])

    def _numeric(self) -> set[str]:
        return {self.columns[j] for j in self._parsed().numeric()}

    def _obs(self, keys: Sequence[str], what: Part) -> pd.DataFrame:
        self.require(keys, self.columns, "columns", what)
        if any(key not in self._encoded for key in keys):
            if self._numbers is not None or self.only_labels:
                self._scan(keys)
            else:
                self._parsed(keys)  # in one pass
        return pd.DataFrame({key: self._encoded[key] for key in keys})

    def _parsed(self, keys: Sequence[str] = ()) -> ParsedNumbers:
        """Return the numbers; labels are read in the same pass."""
        if self._numbers is None:
            numbers = ParsedNumbers(self.opened.enter_context(scratch_file(self.path)))
            self._scan(keys, numbers)
            self._numbers = numbers
        return self._numbers

    def _scan(self, keys: Sequence[str], numbers: ParsedNumbers | None = None) -> None:
        """Read the labels in some columns, and all numbers if requested."""
        labels = {self.columns.index(key): Encoder() for key in keys}
        records = self._records()
        next(records)
        cells = (record for record in records if record)
        n = 0
        while block := list(islice(cells, BLOCK_ROWS)):
            columns = list(zip(*block, strict=True))
            if numbers is not None:
                numbers.add(columns)
            for j, encoder in labels.items():
                encoder.add(columns[j])
            n += len(block)
            del block, columns  # before the next block is read
        if not n:
            raise BadValue(
                f"Expected at least one cell, found only a header line in {self.path.name}."
            )
        self._encoded |= {self.columns[j]: encoder.series() for j, encoder in labels.items()}

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

    @contextmanager
    def _stream(self, mode: str, **how: Any) -> Iterator[Any]:
        """Open the text, unpacked."""
        opened: Callable[..., Any] = gzip.open if self.path.suffix.lower() == ".gz" else open
        try:
            with opened(self.path, mode, **how) as file:
                yield file
        except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise BadValue(
                f"Expected a text table in UTF-8 (gzipped if the name ends with .gz), found "
                f"{self.path}, which is damaged or of another kind ({error})."
            ) from None

    def _records(self) -> Generator[list[str], None, None]:
        """Yield all records: the header, cells, and blank lines as empty records."""
        line = 0
        with self._stream("rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(self._lines(file), delimiter=self._delimiter, strict=True)
            try:
                for record in reader:
                    first, line = line == 0, reader.line_num
                    if first and self._unnamed:
                        record.insert(0, "")
                    if self.columns and record and len(record) != len(self.columns):
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


#: Rows of a table that are unpacked at a time.
STEP_ROWS = 1 << 16
#: Bytes of a column that are read at a time.
BUFFER_BYTES = 1 << 18
#: Bytes of coordinates in a row group of the result, at most.
GROUP_BYTES = 1 << 26


class ParquetFile(Table):
    """A Parquet table; float32 columns stay float32, other columns and all metadata are kept."""

    def _open(self) -> None:
        try:
            self.pa: Any = import_module("pyarrow")
            self._pq: Any = import_module("pyarrow.parquet")
        except ImportError:
            raise MissingExtra("pyarrow for .parquet files", "files") from None
        # Not read_table, which reads folder names like "batch=1" as columns.
        # Without pre_buffer, which keeps the bytes of all row groups that were read.
        self._file = self._pq.ParquetFile(self.path, pre_buffer=False, buffer_size=BUFFER_BYTES)
        self.opened.callback(self._file.close, force=True)
        self.columns = list(self._file.schema_arrow.names)
        about = self._file.metadata
        #: Rows of each part.
        self._group_rows = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
        found = sum(self._group_rows)
        if min(self._group_rows, default=0) < 0 or found != self.n_cells:
            raise damaged(self.path, f"{self.n_cells:,} rows, and {found:,} in its parts")
        self._check_columns()
        if found == 0:
            raise BadValue(f"Expected at least one cell, found no row in {self.path.name}.")

    def rows_of(self, names: Sequence[str]) -> ParquetRows:
        """Return the rows of some columns, in single precision if all of them are."""
        types = [self._file.schema_arrow.field(name).type for name in names]
        small = all(self.pa.types.is_floating(kind) and kind.bit_width <= 32 for kind in types)
        return ParquetRows(self, names, np.float32 if small else np.float64)

    def batches(self, columns: Sequence[str], lo: int, step: int) -> Iterator[Any]:
        """Yield tables of up to ``step`` rows of some columns, from row ``lo`` on."""
        ends = np.cumsum(self._group_rows)
        first = int(np.searchsorted(ends, lo, side="right"))  # skip the groups before row ``lo``
        skip = lo - int(ends[first - 1]) if first else lo
        groups = range(first, len(ends))
        with reading(self.path):
            # Reading "PC" also returns "PC.1" as if it were nested in it.
            for batch in self._file.iter_batches(step, row_groups=groups, columns=list(columns)):
                past = min(skip, batch.num_rows)
                skip -= past
                if past < batch.num_rows:
                    yield batch.select(list(columns)).slice(past)

    @property
    def n_cells(self) -> int:
        """Number of rows."""
        return int(self._file.metadata.num_rows)

    def _numeric(self) -> set[str]:
        schema = self._file.schema_arrow
        with reading(self.path):
            index = list((schema.pandas_metadata or {}).get("index_columns", []))
        types = self.pa.types
        return {
            field.name
            for field in schema
            if (types.is_floating(field.type) or types.is_integer(field.type))
            and field.name not in index
        }

    def _obs(self, keys: Sequence[str], what: Part) -> pd.DataFrame:
        self.require(keys, self.columns, "columns", what)
        return pd.DataFrame({key: self._label(key) for key in keys})

    def _label(self, key: str) -> Any:
        kind, types = self._file.schema_arrow.field(key).type, self.pa.types
        if types.is_string(kind) or types.is_large_string(kind):
            labels = Encoder(missing=())  # an empty text is a label
            for batch in self.batches([key], 0, BLOCK_LABELS):
                labels.add(batch.column(0).to_pylist())
            found = labels.series()
        else:
            check_fits(8 * self.n_cells, repr(key), self.path)
            found = self._file.read(columns=[key]).column(key).to_pandas()
        if len(found) != self.n_cells:
            raise damaged(self.path, f"{len(found):,} of {self.n_cells:,} rows in {key!r}")
        return found

    @contextmanager
    def _writer(
        self, path: Path, destination: Path, names: Sequence[str], dtype: np.dtype[Any]
    ) -> Iterator[Writer]:
        schema = self._file.schema_arrow
        for name in names:
            at = schema.get_field_index(name)
            kind = schema.field(at).type
            if not (self.pa.types.is_floating(kind) and kind.bit_width >= 32):
                kind = self.pa.from_numpy_dtype(dtype)
                schema = schema.set(at, schema.field(at).with_type(kind))
        group = self._file.metadata.row_group(0)
        codec = group.column(0).compression
        most = max(1, GROUP_BYTES // (len(names) * 8))
        how = {"compression": "none" if codec == "UNCOMPRESSED" else codec}
        with (
            # Another reader, because a thread reads coordinates with this one.
            closing(ParquetFile(self.path)) as others,
            self._pq.ParquetWriter(path, schema, **how) as target,
        ):
            self.check_unchanged()  # or the other columns are of another file
            writer = _ParquetWriter(others, target, names, min(max(1, group.num_rows), most))
            yield writer
            writer.close()


class ParquetRows:
    """Rows of some columns; consecutive requests read on where the last one ended."""

    def __init__(self, file: ParquetFile, names: Sequence[str], dtype: Any = np.float64) -> None:
        self.shape, self.dtype = (file.n_cells, len(names)), np.dtype(dtype)
        self._file, self._names = file, list(names)
        self._batches: Iterator[Any] = iter(())
        self._next, self._rest = -1, None  # the row after the last one, and the batch that it is in

    def __getitem__(self, rows: slice) -> np.ndarray:
        lo, hi, _ = rows.indices(self.shape[0])
        block = np.empty((max(0, hi - lo), self.shape[1]), self.dtype)
        done = 0
        for part in self.parts(lo, lo + len(block)):
            for j, column in enumerate(part.columns):
                block[done : done + len(part), j] = column.to_numpy(zero_copy_only=False)
            done += len(part)
        return block

    def parts(self, lo: int, hi: int) -> Iterator[Any]:
        """Yield some rows as batches."""
        if lo != self._next:
            self._batches, self._rest = self._file.batches(self._names, lo, STEP_ROWS), None
        self._next = lo
        while self._next < hi:
            batch = self._rest or next(self._batches, None)
            if batch is None:
                raise damaged(self._file.path, f"it ends {hi - self._next:,} rows too early")
            part = batch.slice(0, hi - self._next)
            self._next += len(part)
            self._rest = batch.slice(len(part))
            yield part


class _ParquetWriter(Writer):
    """Writes row groups of new coordinates, and of the other columns as they are in a table."""

    def __init__(self, file: ParquetFile, target: Any, names: Sequence[str], size: int) -> None:
        self._pa, self._target = file.pa, target
        self._names, self._size = list(names), size
        self._others = [name for name in file.columns if name not in set(names)]
        self._source = ParquetRows(file, self._others)
        self._parts: list[np.ndarray] = []
        self._done = 0

    def write(self, lo: int, block: np.ndarray) -> None:
        """Write rows, starting at row ``lo``; those that do not fill a group are kept."""
        self._parts.append(block)
        while sum(map(len, self._parts)) >= self._size:
            self._write_group(self._size)

    def close(self) -> None:
        """Write the last rows."""
        if rest := sum(map(len, self._parts)):
            self._write_group(rest)

    def _write_group(self, n: int) -> None:
        rows = self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        self._parts = [rows[n:].copy()] if n < len(rows) else []
        schema = self._target.schema
        columns = {
            name: self._pa.array(
                np.ascontiguousarray(rows[:n, j], schema.field(name).type.to_pandas_dtype())
            )
            for j, name in enumerate(self._names)
        }
        if self._others:
            # Every batch may have its own dictionary of categories.
            parts = list(self._source.parts(self._done, self._done + n))
            others = self._pa.Table.from_batches(parts).unify_dictionaries()
            columns |= {name: others.column(name) for name in self._others}
        self._done += n
        group = [columns[name] for name in schema.names]
        self._target.write_table(self._pa.table(group, schema=schema), row_group_size=n)
