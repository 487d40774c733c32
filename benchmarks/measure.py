"""How to measure: the fastest of several runs. Jobs take turns, so that noise affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Row:
    """One line of the table; ``most`` or ``least`` is its limit, if it has one."""

    what: str
    value: float
    unit: str = "x"
    most: float | None = None
    least: float | None = None
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the value is within its limit."""
        too_much = self.most is not None and self.value > self.most
        too_little = self.least is not None and self.value < self.least
        return not (too_much or too_little)

    def __str__(self) -> str:
        limit = f"at most {self.most:g}" if self.most is not None else ""
        limit = f"at least {self.least:g}" if self.least is not None else limit
        verdict = "" if not limit else f"[{limit}: {'holds' if self.holds else 'MISSED'}]"
        return f"{self.what:<80} {self.value:>9.2f} {self.unit:<4} {verdict:<26} {self.note}"


def fastest(*jobs: Callable[[], object], repeat: int = 15) -> list[float]:
    """Return the seconds of the fastest run of each job; the jobs take turns."""
    best = [np.inf] * len(jobs)
    for job in jobs:
        job()
    for _ in range(repeat):
        for k, job in enumerate(jobs):
            started = time.perf_counter()
            job()
            best[k] = min(best[k], time.perf_counter() - started)
    return best


def cells(n: int, d: int, n_batches: int, *, shuffled: bool = True) -> tuple[np.ndarray, pd.Series]:
    """Return float32 cells and their batches as a categorical, as in an AnnData."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, n_batches, n)
    codes = codes if shuffled else np.sort(codes)
    Z = rng.standard_normal((n, d), dtype=np.float32)
    Z += rng.standard_normal((n_batches, d), dtype=np.float32)[codes]
    names = [f"batch{b:02d}" for b in range(n_batches)]
    return Z, pd.Series(pd.Categorical.from_codes(codes, names))
