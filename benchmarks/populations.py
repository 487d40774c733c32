"""The population target against Harmony, and its time with many batches."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import anndata as ad
import numpy as np
import pandas as pd

from scbatchprox import BatchProx, refine

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


#: Cells, batches, and how many times less CPU time than Harmony a fit and ``refine`` must take.
AGAINST_HARMONY = ((200_000, 4, 40, None), (100_000, 100, 5, 3), (200_000, 400, 5, None))


def run() -> Iterator[Row]:
    import harmonypy

    logging.getLogger("harmonypy").setLevel(logging.WARNING)
    for n, batches, least, least_of_refine in AGAINST_HARMONY:
        Z, batch = simulated(n, 40, batches)
        obs = batch.astype(str).to_frame("batch")
        obs.index = obs.index.astype(str)
        adata = ad.AnnData(obs=obs.astype("category"), obsm={"X_pca": Z})
        what = f"{n:,} x 40, {batches} batches, 12 types, CPU time"
        _refined(Z, batch)  # compiles its loops, if they are not in the cache
        harmony = _cpu_seconds(lambda Z=Z, obs=obs: harmonypy.run_harmony(Z, obs, "batch"))
        for call, job, bar in (
            ("population target", lambda Z=Z, batch=batch: _refined(Z, batch), least),
            ("refine(adata, key)", lambda adata=adata: refine(adata, "batch"), least_of_refine),
        ):
            ours = min(_cpu_seconds(job) for _ in range(3))
            note = f"{harmony:.1f} s / {ours * 1e3:.0f} ms"
            yield Row(f"Harmony / {call}, {what}", harmony / ours, least=bar, note=note)
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
    yield Row(what, seconds, "s", most=10)
    yield Row(
        f"{what}, memory of the process, input and output included", gigabytes, "GB", most=1.5
    )


def simulated(n: int, d: int, batches: int, types: int = 12) -> tuple[np.ndarray, pd.Series]:
    """Cells of several types in shifted batches: on pure noise Harmony would have nothing to do."""
    rng = np.random.default_rng(0)
    kind, code = rng.integers(0, types, n), rng.integers(0, batches, n)
    Z = (rng.normal(size=(types, d)) * np.linspace(6, 1, d)).astype(np.float32)[kind]
    Z += (rng.normal(size=(batches, d)) * np.linspace(2, 0.3, d)).astype(np.float32)[code]
    Z += rng.standard_normal((n, d), dtype=np.float32) * np.linspace(2, 1, d, dtype=np.float32)
    return Z, pd.Series(pd.Categorical.from_codes(code, [f"b{b}" for b in range(batches)]))


def _cpu_seconds(job: Callable[[], object]) -> float:
    """CPU time of all threads: on two cores, Harmony and this package use both."""
    started = time.process_time()
    job()
    return time.process_time() - started


def _refined(Z: np.ndarray, batch: pd.Series) -> np.ndarray:
    return BatchProx(target="population").fit_transform(Z, batch=batch)
