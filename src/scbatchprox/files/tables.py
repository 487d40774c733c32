"""Tables with one row per cell: ``.csv``, ``.tsv`` (gzipped too) and ``.parquet``; labels apart.

Coordinates are the columns of numbers, less the batch keys. They are held in memory, as a Parquet
table is as a whole when it is written; of text, the other columns are not. The
result has the same columns in the same order, with the coordinates refined.

A first column that names the cells is never a coordinate: one without a name, one with a usual name
such as ``cell_id``, or one that counts the rows.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cached_property
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from .._atomic import replacing
from .._validate import some_of
from ..errors import BadFile, BadKey, BadValue, MissingExtra
from . import open_cells
from .arrays import as_labels, read_npy
from .base import CellFile, Rows, Writer

__all__ = ["ParquetFile", "TextFile", "WithLabels"]

#: Names (in lower case) of a first column that holds the cells' own names.
ID_NAMES = frozenset(
    {"", "unnamed: 0", "index", "id", "cell", "cells", "cell_id", "cellid"}
    | {"barcode", "barcodes", "obs_names", "rownames"}
)
#: Texts that mean no number; a column with some of them is still one of numbers.
MISSING = frozenset(["", "NA", "N/A", "#N/A", "NULL", "null", "None", "."])
#: Rows of text that are turned into numbers at a time.
BLOCK_ROWS = 8192


class _Table(CellFile):
    """What text and Parquet share: which columns are coordinates, and where the result goes."""

    keyed = False
    named = True  # ``use_rep`` is the beginning of the coordinates' names
    default_rep = "X"
    columns: list[str]

    def __init__(self, path: Path, *, worker: bool = False) -> None:
        super().__init__(path, worker=worker)
        self._keys: set[str] = set()
        self._rows: _Coordinates | None = None

    def embedding(self, use_rep: str | None) -> Rows:
        """Return the columns of numbers, or those whose names begin with ``use_rep``.

        Which ones they are is decided when they are first looked at, since batch keys that are
        asked for until then are not among them.
        """
        self._rows = _Coordinates(self, use_rep or "")
        return self._rows

    def obs(self, keys: Sequence[str]) -> pd.DataFrame:
        """Read some columns as labels."""
        absent = [key for key in keys if key not in self.columns]
        if absent:
            raise BadKey(
                f"Expected batch_key among the columns of {self.path.name}, found no "
                f"{some_of(absent)}; available: {some_of(self.columns, most=20)}."
            )
        self.exclude(keys)
        return self._labels(keys)

    def exclude(self, keys: Sequence[str]) -> None:
        """Say which columns are batch keys, so that they are not taken for coordinates."""
        late = [key for key in keys if self._rows is not None and self._rows.took(key)]
        if late:
            raise BadValue(
                f"Expected the batch keys before the first row is read, found {some_of(late)}, "
                "which was taken for a coordinate."
            )
        self._keys.update(keys)

    @contextmanager
    def writer(
        self, out: Path | None, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> Iterator[Writer]:
        """Return a place for refined coordinates, which then take the place of the old ones."""
        rows = self._rows
        assert rows is not None
        home = out or self.path
        result = np.empty(shape, dtype)
        with replacing(home.resolve()) as beside:  # the file behind a link, called as the link is
            yield _ArrayWriter(result)
            self._save(beside, home, rows.names, result)

    def coordinates(self, prefix: str) -> list[str]:
        """Return the names of the columns that are coordinates."""
        began = [name for name in self.columns if name.startswith(prefix)]
        if not began:
            raise BadKey(
                f"Expected use_rep to be the beginning of names of columns, found none that begins "
                f"with {prefix!r}; available: {some_of(self.columns, most=20)}."
            )
        numeric = self._numeric()
        if prefix:
            # One of a numbered series must not be left out quietly because of a typing error in it.
            numbered = re.compile(re.escape(prefix) + r"[ _.-]?\d+")
            text = [n for n in began if n not in numeric and numbered.fullmatch(n)]
            text = [name for name in text if name not in self._keys]
            if text:
                raise BadValue(
                    f"Expected numbers in all columns {prefix!r}1, 2, ..., found text in {some_of(text)}."
                )
        names = [name for name in began if name in numeric and name not in self._keys]
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
    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return columns of numbers side by side."""

    @abstractmethod
    def _numeric(self) -> set[str]:
        """Names of the columns that hold numbers."""

    @abstractmethod
    def _labels(self, keys: Sequence[str]) -> pd.DataFrame:
        """Columns as labels; they are there."""

    @abstractmethod
    def _save(self, path: Path, home: Path, names: Sequence[str], result: np.ndarray) -> None:
        """Write a copy of the table to ``path``, to be moved to ``home``, with other coordinates."""

    def _is_id(self, name: str) -> bool:
        if name.lower() in ID_NAMES:
            return True
        values = self.numbers([name])[:, 0]
        counts = np.arange(values.size)
        return values.size > 1 and any(np.array_equal(values, counts + first) for first in (0, 1))

    def _check_columns(self) -> None:
        twice = [name for name, n in Counter(self.columns).items() if n > 1]
        if twice:
            raise BadValue(
                f"Expected columns of different names in {self.path.name}, found {some_of(twice)} "
                f"more than once."
            )


class _Coordinates:
    """Rows of a table's coordinates; nothing is decided or read before it is needed."""

    def __init__(self, table: _Table, prefix: str) -> None:
        self._table, self._prefix = table, prefix

    @cached_property
    def names(self) -> list[str]:
        return self._table.coordinates(self._prefix)

    @cached_property
    def _values(self) -> np.ndarray:
        return self._table.numbers(self.names)

    def took(self, name: str) -> bool:
        """Tell whether a column is a coordinate already, without deciding it."""
        return name in self.__dict__.get("names", ())

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._values.dtype

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self._values[rows]


class _ArrayWriter(Writer):
    def __init__(self, result: np.ndarray) -> None:
        self._result = result

    def write(self, lo: int, block: np.ndarray) -> None:
        """Keep the rows from ``lo`` on."""
        self._result[lo : lo + len(block)] = block

    def finish(self, record: dict[str, Any]) -> None:
        """Forget the record: a table has no place for it."""


class TextFile(_Table):
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


class ParquetFile(_Table):
    """A Parquet table; float32 columns stay so, other columns and all metadata are kept."""

    def __init__(self, path: Path, *, worker: bool = False) -> None:
        super().__init__(path, worker=worker)
        try:
            self._pa: Any = import_module("pyarrow")
            self._pq: Any = import_module("pyarrow.parquet")
        except ImportError:
            raise MissingExtra("pyarrow for .parquet files", "files") from None
        with self._reading():
            # Not read_table, which takes names of folders like "batch=1" for columns.
            self._file = self._pq.ParquetFile(path)
        self.columns = list(self._file.schema_arrow.names)
        try:
            self._check_columns()
            if self._file.metadata.num_rows == 0:
                raise BadValue(f"Expected at least one cell, found no row in {path.name}.")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._file.close(force=True)

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return columns of numbers side by side, in single precision if all are."""
        types = [self._file.schema_arrow.field(name).type for name in names]
        small = all(self._pa.types.is_floating(kind) and kind.bit_width <= 32 for kind in types)
        shape = (self._file.metadata.num_rows, len(names))
        values = np.empty(shape, np.float32 if small else np.float64)
        for j, name in enumerate(names):
            values[:, j] = self._column(name).to_numpy()
        return values

    def _numeric(self) -> set[str]:
        schema = self._file.schema_arrow
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        types = self._pa.types
        return {
            field.name
            for field in schema
            if (types.is_floating(field.type) or types.is_integer(field.type))
            and field.name not in index
        }

    def _labels(self, keys: Sequence[str]) -> pd.DataFrame:
        return pd.DataFrame({key: self._column(key).to_pandas() for key in keys})

    def _column(self, name: str) -> Any:
        with self._reading():
            # By name: asking for "PC" also gives "PC.1", as if it were a part of it.
            return self._file.read(columns=[name]).column(name)

    def _save(self, path: Path, home: Path, names: Sequence[str], result: np.ndarray) -> None:
        with self._reading():
            table = self._file.read()
        for j, name in enumerate(names):
            at = self.columns.index(name)
            field = table.schema.field(at)
            keep = self._pa.types.is_floating(field.type) and field.type.bit_width >= 32
            dtype = np.dtype(field.type.to_pandas_dtype()) if keep else result.dtype
            column = self._pa.array(np.ascontiguousarray(result[:, j], dtype))
            table = table.set_column(at, field.with_type(column.type), column)
        group = self._file.metadata.row_group(0)
        codec = group.column(0).compression
        self._pq.write_table(
            table,
            path,
            compression="none" if codec == "UNCOMPRESSED" else codec,
            row_group_size=max(1, group.num_rows),
        )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (self._pa.ArrowException, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's fault, or a folder's, not the file's
            reason = str(error).splitlines()[0]
            raise BadValue(
                f"Expected a .parquet file, found {self.path}, which is damaged or of another kind "
                f"({reason})."
            ) from None


class WithLabels(CellFile):
    """Another file with labels from a second one; everything else is the other file's.

    The second file is a table or another file that has the batch keys, or one label per cell: a
    ``.txt`` file with one a line, or a one-dimensional ``.npy``. Those have no names, so there any
    one batch key stands for them.
    """

    def __init__(self, file: CellFile, labels: Path) -> None:
        super().__init__(file.path)
        self.file, self.labels = file, labels
        self.keyed, self.default_rep = file.keyed, file.default_rep
        self.named = getattr(file, "named", file.keyed)
        self._second: CellFile | pd.Series[Any]
        try:
            self._second = self._open_second()
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        """Let go of both files."""
        self.file.close()
        if isinstance(self._second, CellFile):
            self._second.close()

    def embedding(self, use_rep: str | None) -> Rows:
        """Return the other file's rows."""
        rows = self.file.embedding(use_rep)
        self.row_step, self.default_rep = self.file.row_step, self.file.default_rep
        return rows

    def obs(self, keys: Sequence[str]) -> pd.DataFrame:
        """Read labels from the second file."""
        if isinstance(self.file, _Table):
            self.file.exclude(keys)  # a column that is called like the batches holds no coordinate
        if isinstance(self._second, CellFile):
            return self._second.obs(keys)
        if len(keys) != 1:
            raise BadValue(
                f"Expected one batch key for the labels in {self.labels.name}, which have no name, "
                f"found {some_of(keys)}."
            )
        return self._second.to_frame(keys[0])

    def writer(
        self, out: Path | None, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> AbstractContextManager[Writer]:
        """Return the other file's place for a result."""
        return self.file.writer(out, key, shape, dtype)

    def default_key(self, use_rep: str | None) -> str:
        """Return the other file's name for a result."""
        return self.file.default_key(use_rep)

    def _open_second(self) -> CellFile | pd.Series[Any]:
        kind = self.labels.suffix.lower()
        if kind not in (".npy", ".txt"):
            return open_cells(self.labels)
        if not self.labels.is_file():
            raise BadFile(f"Expected a file with labels, found none at {self.labels}.")
        if kind == ".npy":
            return as_labels(read_npy(self.labels), self.labels.name)
        try:
            with open(self.labels, encoding="utf-8-sig") as file:
                return pd.Series([line.strip() or None for line in file], dtype=object)
        except UnicodeDecodeError as error:
            raise BadValue(
                f"Expected one label a line in UTF-8, found {self.labels}, which is damaged or of "
                f"another kind ({error})."
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
