"""k-means of weighted rows: products by numpy, everything else by compiled loops."""

from __future__ import annotations

import numpy as np

from .compiled import compiled, read_only

__all__ = ["kmeans", "plus_plus"]

#: Rows whose two best scores differ by less than this part of their squared norm are scored again.
ROUNDING = 1e-6


def kmeans(
    X: np.ndarray, weight: np.ndarray, k: int, rounds: int, rng: np.random.Generator
) -> np.ndarray:
    """Centres (at most k, d) of weighted rows, without those that no row is nearest to.

    ``X`` is float32 and centred at the origin, so that squares do not cancel. Lloyd's rounds start from
    the rows that :func:`plus_plus` draws.
    """
    doubles = X.astype(np.float64)
    centers = doubles[plus_plus(X, weight, rng.random(k))]
    n, k = len(X), len(centers)
    mass, total = np.zeros(k), np.zeros_like(centers)
    rounding = (ROUNDING * np.einsum("ij,ij->i", X, X)).astype(np.float32)
    # One buffer for all rounds: allocating it takes longer than the product.
    scores = np.empty((n, k), np.float32)
    near, before = np.empty(n, np.int64), np.full(n, -1)
    unsure = np.empty(n, np.int64)
    for _ in range(rounds):
        half = 0.5 * np.einsum("ij,ij->i", centers, centers)
        np.matmul(X, centers.T.astype(np.float32), out=scores)
        found = _nearest(scores, half.astype(np.float32), rounding, near, unsure)
        if found:  # the rounding of scores would decide, and that differs after a turn
            again = unsure[:found]
            near[again] = (doubles[again] @ centers.T - half).argmax(1)
        if np.array_equal(near, before):
            break  # further rounds would change nothing
        before[:] = near
        _add_rows(doubles, weight, near, mass, total)
        held = mass > 0  # a centre without weight keeps its position
        centers[held] = total[held] / mass[held, None]
    return np.asarray(centers[mass > 0])


def plus_plus(X: np.ndarray, weight: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Rows of ``X`` to start from: k-means++ (Arthur & Vassilvitskii 2007), one row per uniform draw.

    There are fewer if ``X`` has fewer distinct rows.
    """
    near, far = np.ones((2, len(X)), np.float32)
    chosen = np.empty(draws.size, np.int64)
    columns = np.ascontiguousarray(X.T)  # inner loops over rows use vector instructions
    found = _plus_plus(read_only(columns), read_only(weight), read_only(draws), near, far, chosen)
    return chosen[:found]


@compiled
def _plus_plus(
    columns: np.ndarray,
    weight: np.ndarray,
    draws: np.ndarray,
    near: np.ndarray,
    far: np.ndarray,
    chosen: np.ndarray,
) -> int:
    d, n = columns.shape
    for count in range(draws.shape[0]):
        total, last = 0.0, -1
        for i in range(n):
            part = weight[i] * near[i]
            total += part
            if part > 0.0:
                last = i
        if not total > 0.0:
            return count
        # The first row whose cumulative weight exceeds the draw, but never a row without weight.
        at, reached = last, 0.0
        for i in range(last):
            reached += weight[i] * near[i]
            if reached > draws[count] * total:
                at = i
                break
        chosen[count] = at
        far[:] = 0.0
        for j in range(d):
            x, c = columns[j], columns[j, at]
            for i in range(n):
                gap = x[i] - c
                far[i] += gap * gap
        for i in range(n):
            if count == 0 or far[i] < near[i]:
                near[i] = far[i]
    return int(draws.shape[0])


@compiled
def _nearest(
    scores: np.ndarray,
    half: np.ndarray,
    rounding: np.ndarray,
    near: np.ndarray,
    unsure: np.ndarray,
) -> int:
    """Write the nearest centre of each row, and the rows for which that is not sure; return their number."""
    n, k = scores.shape
    found = 0
    for i in range(n):
        row = scores[i]
        best, second, at = row[0] - half[0], np.float32(-np.inf), 0
        for j in range(1, k):
            score = row[j] - half[j]
            if score > best:
                best, second, at = score, best, j
            elif score > second:
                second = score
        near[i] = at
        if second > best - rounding[i]:
            unsure[found] = i
            found += 1
    return found


@compiled
def _add_rows(
    X: np.ndarray, weight: np.ndarray, near: np.ndarray, mass: np.ndarray, total: np.ndarray
) -> None:
    """Write the weight and the sum of the rows of each centre."""
    mass[:] = 0.0
    total[:] = 0.0
    for i in range(X.shape[0]):
        w, x, t = weight[i], X[i], total[near[i]]
        mass[near[i]] += w
        for j in range(x.shape[0]):
            t[j] += w * x[j]
