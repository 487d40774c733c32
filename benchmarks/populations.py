"""The population target against Harmony, and its time with many batches."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pandas as pd

from scbatchprox import BatchProx

from .measure import Row, fastest

# In a new process, because the peak memory of a process never falls. Linux gives it in kilobytes.
SCRIPT = """
import time
from resource import RUSAGE_SELF, getrusage
from benchmarks.populations import simulated
from scbatchprox import BatchProx
Z, batch = simulated(1_000_000, 50, 1000)
started = time.perf_counter()
BatchProx(target="population").fit_transform(Z, batch=batch)
print(time.perf_counter() - started, getrusage(RUSAGE_SELF).ru_maxrss / 1e6)
"""


def run() -> Iterator[Row]:
    import harmonypy

    logging.getLogger("harmonypy").setLevel(logging.WARNING)
    for n, batches, least in ((200_000, 4, 40), (100_000, 100, 10)):
        Z, batch = simulated(n, 40, batches)
        obs = batch.astype(str).to_frame("batch")
        (ours,) = fastest(lambda Z=Z, batch=batch: _refined(Z, batch), repeat=7)
        started = time.perf_counter()
        harmonypy.run_harmony(Z, obs, "batch")
        harmony = time.perf_counter() - started
        yield Row(
            f"Harmony / population target, {n:,} x 40, {batches} batches, 12 types",
            harmony / ours,
            least=least,
            note=f"{harmony:.1f} s / {ours * 1e3:.0f} ms",
        )
    small, large = (simulated(400 * batches, 40, batches) for batches in (50, 400))
    few, many = fastest(lambda: _refined(*small), lambda: _refined(*large), repeat=3)
    yield Row(
        "population target: 160,000 cells in 400 batches / 20,000 in 50",
        many / few,
        most=12,
        note=f"{many * 1e3:.0f} ms / {few * 1e3:.0f} ms",
    )
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    )
    seconds, gigabytes = map(float, answer.stdout.split())
    what = "population target: 1,000,000 x 50 in 1,000 batches"
    yield Row(what, seconds, "s", most=60)
    yield Row(f"{what}, memory of the process, input and output included", gigabytes, "GB", most=2)


def simulated(n: int, d: int, batches: int, types: int = 12) -> tuple[np.ndarray, pd.Series]:
    """Cells of several types in shifted batches: on pure noise Harmony would have nothing to do."""
    rng = np.random.default_rng(0)
    kind, code = rng.integers(0, types, n), rng.integers(0, batches, n)
    Z = (rng.normal(size=(types, d)) * np.linspace(6, 1, d)).astype(np.float32)[kind]
    Z += (rng.normal(size=(batches, d)) * np.linspace(2, 0.3, d)).astype(np.float32)[code]
    Z += rng.standard_normal((n, d), dtype=np.float32) * np.linspace(2, 1, d, dtype=np.float32)
    return Z, pd.Series(pd.Categorical.from_codes(code, [f"b{b}" for b in range(batches)]))


def _refined(Z: np.ndarray, batch: pd.Series) -> np.ndarray:
    return BatchProx(target="population").fit_transform(Z, batch=batch)
