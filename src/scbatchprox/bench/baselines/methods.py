"""Methods that change an embedding: ``method(Z, batch, seed) -> Z``, by name in :data:`METHODS`.

A further method, or a variant of this one, is one more entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from ...api.estimator import BatchProx
from ...core.solvers import Adam
from ...errors import BadValue, MissingExtra

__all__ = ["METHODS", "ROUNDS", "Method", "batchprox", "harmony", "unrefined"]

#: Rounds of scBatchProx where nothing else is said; the paper does not state its own.
ROUNDS = 3
#: From an embedding (N, d), a batch per cell and a seed to another embedding of the same shape.
Method = Callable[[np.ndarray, Any, int], np.ndarray]


def unrefined(Z: np.ndarray, batch: Any, seed: int = 0) -> np.ndarray:
    """Return the embedding as it is: what every refinement has to be better than."""
    return Z


def harmony(Z: np.ndarray, batch: Any, seed: int = 0, **options: Any) -> np.ndarray:
    """Harmony (Korsunsky et al. 2019) as harmonypy 2 has it, with its default settings.

    Parameters
    ----------
    Z, batch, seed
        Embedding (N, d), batch of each cell, and harmonypy's ``random_state``.
    options
        Further arguments of ``harmonypy.run_harmony``. Its second version estimates the ridge
        penalty; ``lamb=1.0`` is the first version's.
    """
    try:
        from harmonypy import run_harmony
    except ImportError:
        raise MissingExtra("harmonypy for the Harmony baseline", "bench") from None
    obs = pd.DataFrame({"batch": pd.Categorical(np.asarray(batch))})
    # Coordinates x cells, which harmonypy takes for what it is even if there are as many of both.
    done = run_harmony(Z.T, obs, "batch", random_state=seed, verbose=False, **options)
    corrected = np.asarray(done.Z_corr, Z.dtype)
    if corrected.shape != Z.shape:
        raise BadValue(
            f"Expected harmonypy 2, which gives cells x coordinates {Z.shape}, found "
            f"{corrected.shape}."
        )
    return corrected


def batchprox(solver: str = "exact", **params: Any) -> Method:
    """Return scBatchProx with these parameters of `BatchProx`; the seed is of Adam's shuffling."""

    def method(Z: np.ndarray, batch: Any, seed: int = 0) -> np.ndarray:
        how = Adam(seed=seed) if solver == "adam" else solver
        return BatchProx(solver=how, **params).fit_transform(Z, batch=batch)

    return method


METHODS: dict[str, Method] = {
    "unrefined": unrefined,
    "harmony": harmony,
    "batchprox": batchprox(rounds=ROUNDS),
    "batchprox_adam": batchprox("adam", rounds=ROUNDS),
    "batchprox_population": batchprox(target="population"),
}
