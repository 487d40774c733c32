"""``refine(adata, key)`` as users call it, look at composition included, against the refinement alone."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import anndata as ad
import numpy as np
import pandas as pd

from scbatchprox import BatchProx, refine

from .measure import Row, fastest
from .populations import made_of_types

#: Milliseconds that the look may take beyond as long as the refinement itself.
ALLOWED = 50.0


def run() -> Iterator[Row]:
    for n, batches in ((40_000, 4), (1_000_000, 20), (100_000, 100)):
        Z, batch = made_of_types(n, 50, batches)
        adata = _annotated(Z, batch)
        alone, whole = fastest(
            lambda Z=Z, batch=batch: BatchProx().fit_transform(Z, batch=batch),
            lambda adata=adata: _refined(adata),
            repeat=5,
        )
        size = f"{n:,} x 50 float32, {batches} batches"
        note = f"{whole * 1e3:.1f} ms / {alone * 1e3:.1f} ms"
        yield Row(f"refine(adata, key) / fit_transform, {size}", whole / alone, note=note)
        yield Row(
            "    what refine() adds",
            1e3 * (whole - alone),
            "ms",
            most=1e3 * alone + ALLOWED,
            note=f"bar: the refinement itself and {ALLOWED:.0f} ms",
        )


def _annotated(Z: np.ndarray, batch: pd.Series) -> ad.AnnData:
    obs = pd.DataFrame({"batch": batch.to_numpy()}, index=np.arange(len(Z)).astype(str))
    return ad.AnnData(obs=obs, obsm={"X_pca": Z})


def _refined(adata: ad.AnnData) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        refine(adata, "batch")
