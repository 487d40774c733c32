"""fit_transform against Harmony (harmonypy 2.x, C++) on the same cells."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from importlib.metadata import version

from scbatchprox import BatchProx

from .measure import Row, cells, fastest


def run() -> Iterator[Row]:
    import harmonypy

    logging.getLogger("harmonypy").setLevel(logging.WARNING)
    Z, batch = cells(200_000, 40, 4)
    obs = batch.astype(str).to_frame("batch")
    (ours,) = fastest(lambda: BatchProx(target="moment").fit_transform(Z, batch=batch))
    started = time.perf_counter()
    harmonypy.run_harmony(Z, obs, "batch")
    harmony = time.perf_counter() - started
    note = f"{harmony:.1f} s / {ours * 1e3:.2f} ms, harmonypy {version('harmonypy')}"
    yield Row(
        "Harmony / fit_transform, 200,000 x 40, 4 batches", harmony / ours, least=200, note=note
    )
