"""k-means of weighted rows by matrix products."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import scipy.sparse as sp

__all__ = ["LEAST", "kmeans", "padding"]

#: Squared distances below this part of the squared norm have lost digits: they are computed again.
CLOSE = 1e-4
#: Rows whose two best scores differ by less than this part of their squared norm are scored again.
ROUNDING = 1e-6
#: From this many columns on, numpy's argmax uses vector instructions: 4 ms instead of 11 for 200,000 rows.
VECTOR_COLUMNS = 64
#: Up to this many columns, padding to ``VECTOR_COLUMNS`` takes longer than it saves.
FEW_COLUMNS = 24
#: The score of a padding column, which is never the largest.
LEAST = np.finfo(np.float32).min


def padding(columns: int) -> int:
    """Return how many columns to add so that argmax is fast."""
    return VECTOR_COLUMNS - columns if FEW_COLUMNS < columns < VECTOR_COLUMNS else 0


def kmeans(
    X: np.ndarray,
    weight: np.ndarray,
    k: int,
    rounds: int,
    rng: np.random.Generator,
    turn: AbstractContextManager[Any] | None = None,
) -> np.ndarray:
    """Centres (at most k, d) of weighted rows, without those that no row is nearest to.

    ``X`` is float32 and centred at the origin, so that squares do not cancel. Lloyd's rounds start from
    the rows that :func:`plus_plus` draws. This takes many short steps, for which threads compete for
    Python's global lock: threads that cluster at the same time should share the lock ``turn``.
    """
    with nullcontext() if turn is None else turn:
        centers = X[plus_plus(X, weight, rng.random(k))]
    mass: np.ndarray = np.zeros(len(centers))
    doubles = X.astype(np.float64)
    edges = np.arange(len(X) + 1, dtype=np.int32)
    before: np.ndarray | None = None
    more = padding(len(centers))
    table = np.concatenate([centers, np.zeros((more, X.shape[1]), np.float32)])
    centers, half = centers.astype(np.float64), np.full(len(table), -LEAST, np.float64)
    rounding = ROUNDING * np.einsum("ij,ij->i", X, X)
    # One buffer for all rounds: allocating it takes longer than the product.
    scores = np.empty((len(X), len(table)), np.float32)
    for _ in range(rounds):
        table[: len(centers)] = centers
        half[: len(centers)] = 0.5 * np.einsum("ij,ij->i", centers, centers)
        np.matmul(X, table.T, out=scores)
        scores -= half.astype(np.float32)
        near = scores.argmax(1).astype(np.int32)
        close = _close(scores, near, rounding)
        near[close] = (doubles[close] @ centers.T - half[: len(centers)]).argmax(1)
        if before is not None and np.array_equal(near, before):
            break  # further rounds would change nothing
        before = near
        belongs = sp.csc_array((weight, near, edges), shape=(len(centers), len(X)))
        mass = np.bincount(near, weights=weight, minlength=len(centers))
        held = mass > 0  # a centre without weight keeps its position
        centers[held] = (belongs @ doubles)[held] / mass[held, None]
    return np.asarray(centers[mass > 0])


def _close(scores: np.ndarray, near: np.ndarray, rounding: np.ndarray) -> np.ndarray:
    """Rows for which the rounding of scores decides which centre is the nearest; it differs after a turn."""
    rows = np.arange(len(near))
    best = scores[rows, near]
    scores[rows, near] = LEAST
    return np.flatnonzero(scores.max(1) > best - rounding)


def plus_plus(X: np.ndarray, weight: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Rows of ``X`` to start from: k-means++ (Arthur & Vassilvitskii 2007), one row per uniform draw.

    There are fewer if ``X`` has fewer distinct rows.
    """
    n, d = X.shape
    half = 0.5 * np.einsum("ij,ij->i", X, X)
    # One product gives half the squared distances from a row: |x|^2 / 2 + |c|^2 / 2 - x c.
    table, other = np.ones((2, n, d + 2), np.float32)
    table[:, :d], table[:, d] = X, half
    other[:, :d], other[:, d + 1] = -X, half
    near = np.ones(n, np.float32)
    chosen: list[int] = []
    for draw in draws.tolist():
        reached = np.cumsum(weight * near)
        total = reached[-1]
        if not total > 0.0:
            break
        # The first row whose cumulative weight exceeds the draw, but never a row without weight at the end.
        at = int(reached.searchsorted(draw * total, side="right"))
        at = at if at < n else int(reached.searchsorted(total))
        chosen.append(at)
        far = table @ other[at]
        # Rows equal to this one need distance exactly 0, so that they are not drawn again.
        far[at] = 0.0
        close = far <= CLOSE * half[at]
        if np.count_nonzero(close) > 1:
            gap = X[close] - X[at]
            far[close] = 0.5 * np.einsum("ij,ij->i", gap, gap)
        near = far if len(chosen) == 1 else np.minimum(near, far, out=near)
    return np.array(chosen, np.int64)
