"""The size of a report of a million cells, and the time it takes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from scbatchprox import refine, report

from .measure import Row
from .refine import annotated

#: Megabytes that a report may have: it is sent by mail.
MOST = 5.0


def run() -> Iterator[Row]:
    rng = np.random.default_rng(0)
    n, batches, types = 1_000_000, 40, 30
    kind, code = rng.integers(0, types, n), rng.integers(0, batches, n)
    Z = (6.0 * rng.standard_normal((types, 20), dtype=np.float32))[kind]
    Z += rng.standard_normal((batches, 20), dtype=np.float32)[code]
    Z += rng.standard_normal((n, 20), dtype=np.float32)
    adata = annotated(Z, np.char.add("a sample with a long name ", code.astype(str)))
    adata.obs["type"] = np.char.add("a cell type with a long name ", kind.astype(str))
    adata.obs = adata.obs.astype("category")
    refine(adata, "batch")
    for view in ("umap", "pca"):
        started = time.perf_counter()
        page = report(adata, "batch", label_key="type", view=view)
        seconds = time.perf_counter() - started
        what = f"report, 1,000,000 x 20 cells in 40 batches, 30 types, view {view}"
        megabytes = len(str(page).encode()) / 1e6
        yield Row(what, megabytes, "MB", most=MOST, note=f"{seconds:.0f} s")
