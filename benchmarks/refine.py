"""``refine(adata, key)``, which also checks the composition of batches, against only the refinement."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd

from scbatchprox import BatchProx, refine

from .measure import Row, fastest
from .populations import simulated

#: The check may take as long as the refinement, and this many milliseconds more.
ALLOWED = 50.0


def run() -> Iterator[Row]:
    yield from _as_shown()
    for n, batches in ((40_000, 4), (1_000_000, 20), (100_000, 100)):
        Z, batch = simulated(n, 50, batches)
        adata = annotated(Z, batch)
        refinement, whole = fastest(
            lambda Z=Z, batch=batch: BatchProx(target="moment").fit_transform(Z, batch=batch),
            lambda adata=adata: _refined(adata),
            repeat=5,
        )
        size = f"{n:,} x 50 float32, {batches} batches"
        note = f"{whole * 1e3:.1f} ms / {refinement * 1e3:.1f} ms"
        yield Row(f"refine(adata, key) / fit_transform, {size}", whole / refinement, note=note)
        yield Row(
            "    time that refine() adds",
            1e3 * (whole - refinement),
            "ms",
            most=1e3 * refinement + ALLOWED,
            note=f"limit: the time of the refinement plus {ALLOWED:.0f} ms",
        )
    yield _very_many_batches()


def _as_shown() -> Iterator[Row]:
    """``refine(adata, key)`` with the default target and its verdicts, as the README shows it."""
    for n, batches in ((40_000, 4), (1_000_000, 20)):
        Z, batch = simulated(n, 50, batches)
        adata = annotated(Z, batch)
        copied, whole = fastest(
            lambda Z=Z: Z.copy(), lambda adata=adata: refine(adata, "batch"), repeat=3
        )
        size = f"{n:,} x 50 float32, {batches} batches"
        note = f"{whole * 1e3:.0f} ms / {copied * 1e3:.1f} ms"
        yield Row(f"refine(adata, key) with verdicts / Z.copy(), {size}", whole / copied, note=note)


def _very_many_batches() -> Row:
    """A label per cell of a well, or of a barcode: it must not take minutes to see that."""
    rng = np.random.default_rng(0)
    n, batches = 600_000, 50_000
    batch = pd.Series(rng.integers(0, batches, n))
    adata = annotated(rng.normal(size=(n, 20)).astype(np.float32), batch)
    (seconds,) = fastest(lambda: _refined(adata), repeat=1)
    return Row("refine(adata, key), 600,000 x 20 float32 in 50,000 batches", seconds, "s", most=5.0)


def annotated(Z: np.ndarray, batch: Any) -> ad.AnnData:
    """Return cells as an AnnData."""
    obs = pd.DataFrame(
        {"batch": getattr(batch, "array", batch)}, index=np.arange(len(Z)).astype(str)
    )
    return ad.AnnData(obs=obs, obsm={"X_pca": Z})


def _refined(adata: ad.AnnData) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refine(adata, "batch", target="moment")
