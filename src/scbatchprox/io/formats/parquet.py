"""``.parquet`` tables. The whole table is in memory when it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ...errors import BadValue, MissingExtra
from .tables import Table

__all__ = ["ParquetFile"]


class ParquetFile(Table):
    """A Parquet table; float32 columns stay float32, other columns and all metadata are kept."""

    def __init__(self, path: Path, *, worker: bool = False) -> None:
        super().__init__(path, worker=worker)
        try:
            self._pa: Any = import_module("pyarrow")
            self._pq: Any = import_module("pyarrow.parquet")
        except ImportError:
            raise MissingExtra("pyarrow for .parquet files", "files") from None
        with self._reading():
            # Not read_table, which reads folder names like "batch=1" as columns.
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
        """Close the file."""
        self._file.close(force=True)

    def numbers(self, names: Sequence[str]) -> np.ndarray:
        """Return columns of numbers side by side, in single precision if all of them are."""
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
            # By name, because reading "PC" also returns "PC.1" as if it were nested in it.
            return self._file.read(columns=[name]).column(name)

    def _save(
        self, path: Path, destination: Path, names: Sequence[str], result: np.ndarray
    ) -> None:
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
                raise  # an error of the file system, not of the file's content
            reason = str(error).splitlines()[0]
            raise BadValue(
                f"Expected a .parquet file, found {self.path}, which is damaged or of another kind "
                f"({reason})."
            ) from None
