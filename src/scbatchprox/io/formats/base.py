"""What every kind of file offers: rows of an embedding, labels, and a place for the result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

__all__ = ["CellFile", "Rows", "Writer"]


class Rows(Protocol):
    """An embedding that lies elsewhere: a slice of it is read when asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(cells, coordinates)."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the stored numbers."""
        ...

    def __getitem__(self, rows: slice) -> Any:
        """Read some rows: an array, or a sparse matrix where it is stored as one."""
        ...


class Writer(ABC):
    """Takes the result a stretch of rows at a time, then the record of what was done.

    Nothing shows before the context that gave the writer is left without an error.
    """

    @abstractmethod
    def write(self, lo: int, block: np.ndarray) -> None:
        """Write the rows from ``lo`` on."""

    @abstractmethod
    def finish(self, record: dict[str, Any]) -> None:
        """Add the record, where the kind of file has a place for it."""


class CellFile(ABC):
    """A file with an embedding in it, opened for reading.

    Use as a context manager. An embedding in a ``named`` file is asked for by name; in a ``keyed`` one
    the result has a name of its own, and elsewhere it takes the place of the input.
    """

    named: bool = True
    keyed: bool = True
    #: Rows that one read should be a multiple of, so that no stored chunk is read twice.
    row_step: int = 1

    def __init__(self, path: Path, *, worker: bool = False) -> None:
        self.path = path
        self.worker = worker

    def __enter__(self) -> CellFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - most kinds hold nothing open
        """Let go of the file."""

    @abstractmethod
    def embedding(self, use_rep: str | None) -> Rows:
        """Return the rows of an embedding by name."""

    @abstractmethod
    def obs(self, keys: Sequence[str]) -> pd.DataFrame:
        """Read some columns of labels, and no others."""

    @abstractmethod
    def writer(
        self, out: Path | None, key: str, shape: tuple[int, int], dtype: np.dtype[Any]
    ) -> AbstractContextManager[Writer]:
        """Return a place for a result: a copy of this file at ``out``, or in this file if ``None``."""

    def default_key(self, use_rep: str | None) -> str:
        """Return the name under which a result is stored by default."""
        return f"{use_rep or self.default_rep}_batchprox"

    #: The embedding that is taken when none is named.
    default_rep: str = "X_pca"
