"""``.parquet`` tables, read and written some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...errors import BadValue, MissingExtra
from ..damaged import check_fits, damaged, reading
from .base import Writer
from .encoding import BLOCK_LABELS, Encoder
from .tables import Table

__all__ = ["ParquetFile", "ParquetRows"]

#: Rows of a table that are unpacked at a time.
STEP_ROWS = 1 << 16
#: Bytes of a column that are read at a time.
BUFFER_BYTES = 1 << 18
#: Bytes of coordinates in a row group of the result, at most.
GROUP_BYTES = 1 << 26


class ParquetFile(Table):
    """A Parquet table; float32 columns stay float32, other columns and all metadata are kept."""

    def __init__(self, path: Path, *, worker: bool = False) -> None:
        super().__init__(path, worker=worker)
        try:
            self.pa: Any = import_module("pyarrow")
            self._pq: Any = import_module("pyarrow.parquet")
        except ImportError:
            raise MissingExtra("pyarrow for .parquet files", "files") from None
        with reading(self.path):
            # Not read_table, which reads folder names like "batch=1" as columns.
            # Without pre_buffer, which keeps the bytes of all row groups that were read.
            self._file = self._pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES)
        try:
            with reading(path):
                self.columns = list(self._file.schema_arrow.names)
                self._check_rows()
            self._check_columns()
            if self._file.metadata.num_rows == 0:
                raise BadValue(f"Expected at least one cell, found no row in {path.name}.")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close(force=True)

    def rows_of(self, names: Sequence[str]) -> ParquetRows:
        """Return the rows of some columns, in single precision if all of them are."""
        types = [self._file.schema_arrow.field(name).type for name in names]
        small = all(self.pa.types.is_floating(kind) and kind.bit_width <= 32 for kind in types)
        return ParquetRows(self, names, np.dtype(np.float32 if small else np.float64))

    def batches(self, columns: Sequence[str], lo: int, step: int) -> Iterator[Any]:
        """Yield tables of up to ``step`` rows of some columns, from row ``lo`` on."""
        sizes = [self._file.metadata.row_group(g).num_rows for g in range(self.n_groups)]
        ends = np.cumsum(sizes)
        first = int(np.searchsorted(ends, lo, side="right"))  # skip the groups before row ``lo``
        skip = lo - int(ends[first - 1]) if first else lo
        with reading(self.path):
            # Reading "PC" also returns "PC.1" as if it were nested in it.
            for batch in self._file.iter_batches(
                step, row_groups=range(first, self.n_groups), columns=list(columns)
            ):
                past = min(skip, batch.num_rows)
                skip -= past
                if past < batch.num_rows:
                    yield batch.select(list(columns)).slice(past)

    @property
    def n_cells(self) -> int:
        """Number of rows."""
        return int(self._file.metadata.num_rows)

    @property
    def n_groups(self) -> int:
        """Number of row groups."""
        return int(self._file.metadata.num_row_groups)

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

    def _labels(self, keys: Sequence[str]) -> pd.DataFrame:
        with reading(self.path):
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

    def _counts_rows(self, name: str) -> bool:
        rows = self.rows_of([name])
        first = rows[0:1][0, 0]
        return (
            self.n_cells > 1
            and first in (0, 1)
            and all(
                np.array_equal(block[:, 0], first + np.arange(lo, lo + len(block)))
                for lo in range(0, self.n_cells, BLOCK_LABELS)
                for block in [rows[lo : lo + BLOCK_LABELS]]
            )
        )

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

    def _check_rows(self) -> None:
        """Compare the number of rows with those of all parts of the table."""
        about = self._file.metadata
        parts = [about.row_group(i).num_rows for i in range(about.num_row_groups)]
        if min(parts, default=0) < 0 or sum(parts) != about.num_rows:
            raise damaged(self.path, f"{about.num_rows:,} rows, and {sum(parts):,} in its parts")


class ParquetRows:
    """Rows of some columns of numbers; consecutive requests read on where the last one ended."""

    def __init__(self, table: ParquetFile, names: Sequence[str], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = (table.n_cells, len(names)), dtype
        self._table, self._names = table, list(names)
        self._source: _Source | None = None
        self._next = 0

    def __getitem__(self, rows: slice) -> np.ndarray:
        lo, hi, _ = rows.indices(self.shape[0])
        block = np.empty((max(0, hi - lo), self.shape[1]), self.dtype)
        if self._source is None or lo != self._next:
            self._source = _Source(self._table, self._names, lo)
        done = 0
        for part in self._source.take(len(block)):
            for j in range(self.shape[1]):
                values = part.column(j).to_numpy(zero_copy_only=False)
                block[done : done + part.num_rows, j] = values
            done += part.num_rows
        self._next = lo + done
        return block


class _ParquetWriter(Writer):
    """Writes row groups of new coordinates, and of the other columns as they are in a table."""

    def __init__(self, table: ParquetFile, target: Any, names: Sequence[str], size: int) -> None:
        self._pa, self._target = table.pa, target
        self._names, self._size = list(names), size
        self._others = [name for name in table.columns if name not in set(names)]
        self._source = _Source(table, self._others)
        self._parts: list[np.ndarray] = []

    def write(self, lo: int, block: np.ndarray) -> None:
        """Write rows, starting at row ``lo``; those that do not fill a group are kept."""
        self._parts.append(block)
        while sum(map(len, self._parts)) >= self._size:
            self._write_group(self._size)

    def close(self) -> None:
        """Write the last rows."""
        if rest := sum(map(len, self._parts)):
            self._write_group(rest)

    def finish(self, record: dict[str, Any]) -> None:
        """Ignore the record: a table cannot hold it."""

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
            parts = list(self._source.take(n))
            others = self._pa.Table.from_batches(parts).unify_dictionaries()
            columns |= {name: others.column(name) for name in self._others}
        group = [columns[name] for name in schema.names]
        self._target.write_table(self._pa.table(group, schema=schema), row_group_size=n)


class _Source:
    """Takes any number of rows of some columns, from row ``lo`` on, from batches of other sizes."""

    def __init__(self, table: ParquetFile, names: Sequence[str], lo: int = 0) -> None:
        self._batches, self._path = table.batches(names, lo, STEP_ROWS), table.path
        self._rest: Any = None

    def take(self, n: int) -> Iterator[Any]:
        """Yield the next ``n`` rows in parts."""
        while n:
            batch = next(self._batches, None) if self._rest is None else self._rest
            if batch is None:
                raise damaged(self._path, f"it ends {n:,} rows too early")
            part = batch.slice(0, n)
            n -= part.num_rows
            self._rest = batch.slice(part.num_rows) if part.num_rows < batch.num_rows else None
            yield part
