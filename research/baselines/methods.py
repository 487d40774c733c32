"""Methods that change an embedding: ``method(Z, batch, seed) -> Z``, by name in :data:`METHODS`.

To compare with another method, add an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from scbatchprox.api.estimator import BatchProx
from scbatchprox.core.solvers import Adam
from scbatchprox.core.target import TargetRule
from scbatchprox.errors import BadValue, MissingExtra

__all__ = [
    "METHODS", "POPULATION", "ROUNDS", "SOLVERS", "Method", "batchprox", "harmony", "shuffled",
    "unrefined",
]  # fmt: skip

#: Default number of rounds of scBatchProx; the paper does not state its number.
ROUNDS = 3
#: Method of each solver with the moment target, and method of the population target.
SOLVERS = {"exact": "batchprox", "adam": "batchprox_adam"}
POPULATION = "batchprox_population"
#: Takes an embedding (N, d), a batch per cell and a seed; returns an embedding of the same shape.
Method = Callable[[np.ndarray, Any, int], np.ndarray]


def unrefined(Z: np.ndarray, batch: Any, seed: int = 0) -> np.ndarray:
    """Return the embedding unchanged; refinements are compared with it."""
    return Z


def harmony(Z: np.ndarray, batch: Any, seed: int = 0, **options: Any) -> np.ndarray:
    """Harmony (Korsunsky et al. 2019) by harmonypy 2, with its default settings.

    Parameters
    ----------
    Z, batch, seed
        Embedding (N, d), batch of each cell, and harmonypy's ``random_state``.
    options
        Further arguments of ``harmonypy.run_harmony``. harmonypy 2 estimates the ridge penalty;
        ``lamb=1.0`` is the default of harmonypy 1.
    """
    try:
        from harmonypy import run_harmony
    except ImportError:
        raise MissingExtra("harmonypy for the Harmony baseline", "bench") from None
    obs = pd.DataFrame({"batch": pd.Categorical(np.asarray(batch))})
    # harmonypy guesses the orientation from the shape. Coordinates x cells is never ambiguous.
    done = run_harmony(Z.T, obs, "batch", random_state=seed, verbose=False, **options)
    corrected = np.asarray(done.Z_corr, Z.dtype)
    if corrected.shape != Z.shape:
        raise BadValue(
            f"Expected harmonypy 2, which gives cells x coordinates {Z.shape}, found "
            f"{corrected.shape}."
        )
    return corrected


def batchprox(solver: str = "exact", target: str | TargetRule = "moment", **params: Any) -> Method:
    """Return scBatchProx with these parameters of `BatchProx`; Adam shuffles by the seed."""

    def method(Z: np.ndarray, batch: Any, seed: int = 0) -> np.ndarray:
        how = Adam(seed=seed) if solver == "adam" else solver
        return BatchProx(target, how, **params).fit_transform(Z, batch=batch)

    return method


def shuffled(method: Method) -> Method:
    """Return a control: the method, with batch labels in random order, so that it can learn nothing."""

    def control(Z: np.ndarray, batch: Any, seed: int = 0) -> np.ndarray:
        return method(Z, np.random.default_rng(seed).permutation(np.asarray(batch)), seed)

    return control


METHODS: dict[str, Method] = {
    "unrefined": unrefined,
    "harmony": harmony,
    SOLVERS["exact"]: batchprox(rounds=ROUNDS),
    SOLVERS["adam"]: batchprox("adam", rounds=ROUNDS),
    POPULATION: batchprox(target="population"),
}
METHODS |= {f"shuffled_{name}": shuffled(METHODS[name]) for name in ("harmony", POPULATION)}
