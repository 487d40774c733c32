"""k-means of weighted rows: products by numpy, everything else by compiled loops."""

from __future__ import annotations

import numpy as np

from .loops import add_rows, compiled

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
    doubles, columns = X.astype(np.float64), np.ascontiguousarray(X.T)
    centers = doubles[plus_plus(columns, weight, rng.random(k))]
    n, k = len(X), len(centers)
    mass = np.zeros(k)
    rounding = (ROUNDING * np.einsum("ij,ij->i", X, X)).astype(np.float32)
    # One buffer for all rounds: allocating it takes longer than the product.
    scores = np.empty((k, n), np.float32)
    near, before = np.empty(n, np.int32), np.full(n, -1, np.int32)
    first, second = np.empty((2, n), np.float32)
    unsure = np.empty(n, np.int64)
    for _ in range(rounds):
        half = 0.5 * np.einsum("ij,ij->i", centers, centers)
        np.matmul(centers.astype(np.float32), columns, out=scores)
        found = _nearest(scores, half.astype(np.float32), rounding, near, first, second, unsure)
        if found:  # the rounding of scores would decide, and that differs after a turn
            again = unsure[:found]
            near[again] = (doubles[again] @ centers.T - half).argmax(1)
        if np.array_equal(near, before):
            break  # further rounds would change nothing
        before[:] = near
        mass, total = add_rows(doubles, weight, near, k)
        held = mass > 0  # a centre without weight keeps its position
        centers[held] = total[held] / mass[held, None]
    return np.asarray(centers[mass > 0])


def plus_plus(columns: np.ndarray, weight: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Rows to start from: k-means++ (Arthur & Vassilvitskii 2007), one row per uniform draw.

    There are fewer if fewer rows are distinct. Rows are given by their columns (d, n): inner loops over rows
    use vector instructions.
    """
    near, far = np.ones((2, columns.shape[1]), np.float32)
    chosen = np.empty(draws.size, np.int64)
    return chosen[: _plus_plus(columns, weight, draws, near, far, chosen)]


@compiled("near", "far", "chosen")
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
        s0 = s1 = s2 = s3 = 0.0  # in four parts: an addition waits for the one before
        for i in range(0, n - 3, 4):
            s0 += weight[i] * near[i]
            s1 += weight[i + 1] * near[i + 1]
            s2 += weight[i + 2] * near[i + 2]
            s3 += weight[i + 3] * near[i + 3]
        for i in range(n - n % 4, n):
            s0 += weight[i] * near[i]
        total, last = (s0 + s1) + (s2 + s3), n - 1
        while last >= 0 and not weight[last] * near[last] > 0.0:
            last -= 1
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
        for j in range(0, d - 3, 4):
            x0, x1, x2, x3 = columns[j], columns[j + 1], columns[j + 2], columns[j + 3]
            c0, c1, c2, c3 = x0[at], x1[at], x2[at], x3[at]
            for i in range(n):
                g0, g1, g2, g3 = x0[i] - c0, x1[i] - c1, x2[i] - c2, x3[i] - c3
                square = far[i]
                square += g0 * g0
                square += g1 * g1
                square += g2 * g2
                square += g3 * g3
                far[i] = square
        for j in range(d - d % 4, d):
            x, c = columns[j], columns[j, at]
            for i in range(n):
                gap = x[i] - c
                far[i] += gap * gap
        for i in range(n):
            if count == 0 or far[i] < near[i]:
                near[i] = far[i]
    return int(draws.shape[0])


@compiled("near", "first", "second", "unsure")
def _nearest(
    scores: np.ndarray,
    half: np.ndarray,
    rounding: np.ndarray,
    near: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    unsure: np.ndarray,
) -> int:
    """Write the nearest centre of each row, and the rows for which that is not sure; return their number.

    ``scores`` are (k, n), so that the inner loop over rows uses vector instructions.
    """
    k, n = scores.shape
    for i in range(n):
        first[i] = scores[0, i] - half[0]
        second[i] = -np.inf
        near[i] = 0
    for j in range(1, k):
        row, h, at = scores[j], half[j], np.int32(j)
        for i in range(n):
            # All loads come first, else the compiler takes one row at a time.
            score, largest, second_largest, before = row[i] - h, first[i], second[i], near[i]
            lower = largest if score > largest else score
            second[i] = lower if lower > second_largest else second_largest
            near[i] = at if score > largest else before
            first[i] = score if score > largest else largest
    found = 0
    for i in range(n):
        if second[i] > first[i] - rounding[i]:
            unsure[found] = i
            found += 1
    return found
