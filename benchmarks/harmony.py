"""fit_transform against Harmony (harmonypy 2.x, C++) on the same cells."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd

from scbatchprox import BatchProx

from .measure import Row, cells, fastest


def run() -> Iterator[Row]:
    import harmonypy

    logging.getLogger("harmonypy").setLevel(logging.WARNING)
    Z, batch = cells(200_000, 40, 4)
    obs = batch.astype(str).to_frame("batch")
    (ours,) = fastest(lambda: BatchProx().fit_transform(Z, batch=batch))
    started = time.perf_counter()
    harmonypy.run_harmony(Z, obs, "batch")
    harmony = time.perf_counter() - started
    note = f"{harmony:.1f} s / {ours * 1e3:.2f} ms, harmonypy {version('harmonypy')}"
    yield Row(
        "Harmony / fit_transform, 200,000 x 40, 4 batches", harmony / ours, least=200, note=note
    )
    yield from _populations(harmonypy)


def _populations(harmonypy: Any) -> Iterator[Row]:
    """The population target, on cells of twelve types: noise without any would be no work for Harmony."""
    rng = np.random.default_rng(0)
    n, d, types, batches = 200_000, 40, 12, 4
    kind, code = rng.integers(0, types, n), rng.integers(0, batches, n)
    Z = rng.normal(size=(types, d))[kind] * np.linspace(6, 1, d)
    Z += rng.normal(size=(batches, d))[code] * np.linspace(2, 0.3, d)
    Z = (Z + rng.normal(size=(n, d)) * np.linspace(2, 1, d)).astype(np.float32)
    batch = pd.Series(pd.Categorical.from_codes(code, [f"b{b}" for b in range(batches)]))
    (ours,) = fastest(lambda: BatchProx(target="population").fit_transform(Z, batch=batch))
    started = time.perf_counter()
    harmonypy.run_harmony(Z, batch.astype(str).to_frame("batch"), "batch")
    harmony = time.perf_counter() - started
    name = "Harmony / fit_transform of the population target, 200,000 x 40, 4 batches, 12 types"
    yield Row(name, harmony / ours, least=20, note=f"{harmony:.1f} s / {ours * 1e3:.0f} ms")
