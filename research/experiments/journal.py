"""Finished jobs on disk, one line each; a killed run loses at most the job in progress."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from scbatchprox.io.locks import locked

__all__ = ["COLUMNS", "Job", "Journal", "Key", "Mark", "digest"]


class Key(NamedTuple):
    """The identity of a row."""

    experiment: str
    dataset: str
    upstream: str
    method: str
    condition: str = ""
    step: str = ""
    run: int = 0


#: A key and a fingerprint, by which a row is found.
Mark = tuple[Key, str]
#: Columns of the long form, with a row for each number.
COLUMNS = [*Key._fields, "metric", "value", "status", "reason"]


@dataclass(frozen=True)
class Job:
    """Work that returns numbers.

    Attributes
    ----------
    key
        Identity of the row.
    fingerprint
        Checksum of everything that the numbers depend on; a row with another fingerprint is of
        another job.
    work
        Computes the numbers, by name of the metric.
    """

    key: Key
    fingerprint: str
    work: Callable[[], Mapping[str, float]] = field(compare=False, repr=False)

    @property
    def mark(self) -> Mark:
        """Key and fingerprint."""
        return self.key, self.fingerprint


def digest(*parts: Any) -> str:
    """Return a short fingerprint of arrays (by content) and of anything that JSON can write."""
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            sha.update(f"{part.dtype}{part.shape}".encode())
            sha.update(np.ascontiguousarray(part).tobytes())
        else:
            sha.update(json.dumps(part, sort_keys=True, default=str).encode())
        sha.update(b"\0")
    return sha.hexdigest()[:16]


class Journal:
    """Finished jobs of a folder; later lines replace earlier ones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[Mark, dict[str, Any]] = {}

    @classmethod
    @contextmanager
    def open(cls, path: str | Path) -> Iterator[Journal]:
        """Read the existing lines, and lock the file for appending."""
        path = Path(path)
        with locked(path, f"the rows in {path.parent}", create=True):
            journal = cls(path)
            journal._read()
            yield journal

    def _read(self) -> None:
        text = self._path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):  # the last line of a killed run may be incomplete
            os.truncate(self._path, whole)
        for line in text[:whole].splitlines():
            with suppress(
                ValueError, KeyError, TypeError
            ):  # the job of a damaged line is done again
                record = json.loads(line)
                self._records[Key(*record["key"]), record["fingerprint"]] = record

    def is_done(self, job: Job) -> bool:
        """Return whether a job is done; a failed job is not, and is tried again."""
        record = self._records.get(job.mark)
        return record is not None and record["status"] == "ok"

    def finish(self, job: Job, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a job."""
        values = {name: _number(value) for name, value in numbers.items()}
        self._append(job, {"status": "ok", "reason": "", "values": values})

    def fail(self, job: Job, reason: str) -> None:
        """Write the reason why a job failed."""
        self._append(job, {"status": "failed", "reason": reason, "values": {}})

    def _append(self, job: Job, outcome: dict[str, Any]) -> None:
        record = {"key": list(job.key), "fingerprint": job.fingerprint} | outcome
        line = json.dumps(record, allow_nan=False) + "\n"
        with open(self._path, "ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
        self._records[job.mark] = record

    def rows(self, marks: Iterable[Mark]) -> pd.DataFrame:
        """Return the long form of the jobs that were tried, in their order."""
        rows = []
        for mark in marks:
            record = self._records.get(mark)
            if record is None:
                continue
            end = (record["status"], record["reason"])
            values = record["values"] or {"": None}
            rows += [
                (*mark[0], metric, math.nan if value is None else value, *end)
                for metric, value in values.items()
            ]
        return pd.DataFrame(rows, columns=COLUMNS)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
