"""The compiled loops over cells and centres: k-means, the nearest centre, and soft mixtures of maps.

Every batch has centres of its own, ``start[b]`` to ``start[b + 1]`` in lists that hold those of all.
Distances are taken in single precision about a point amid the batch (:class:`scbatchprox.anchors.Anchors`
chooses it), so embeddings far from the origin lose nothing. The order of additions is fixed: results
are the same to the bit for any number of threads.
"""

from __future__ import annotations

import numpy as np

from ._kernels import compiled, rows_by_batch

__all__ = ["half_distances", "kmeans", "mixture", "nearest"]

#: Weights of a mixture below ``exp(FAINT)`` of the largest are left out; what remains is weighed anew.
FAINT = np.float32(-8.0)


@compiled
def half_distances(X: np.ndarray, C: np.ndarray, half: np.ndarray, D: np.ndarray) -> None:
    """``D_ik = |c_k|^2 / 2 - x_i c_k``: half the squared distance, but for a term of the row alone.

    ``C`` (d, K) has a centre per column, so that the inner loop runs along centres and four rows share
    each load of them: measured, 15 ms where a row at a time takes 140 (200,000 x 40, 32 centres).
    """
    n, d = X.shape
    K = half.shape[0]
    four = n // 4 * 4
    for i in range(0, four, 4):
        D0, D1, D2, D3 = D[i], D[i + 1], D[i + 2], D[i + 3]
        for k in range(K):
            D0[k] = D1[k] = D2[k] = D3[k] = half[k]
        for j in range(d):
            x0, x1, x2, x3 = X[i, j], X[i + 1, j], X[i + 2, j], X[i + 3, j]
            row = C[j]
            for k in range(K):
                c = row[k]
                D0[k] -= x0 * c
                D1[k] -= x1 * c
                D2[k] -= x2 * c
                D3[k] -= x3 * c
    for i in range(four, n):
        Di = D[i]
        for k in range(K):
            Di[k] = half[k]
        for j in range(d):
            x, row = X[i, j], C[j]
            for k in range(K):
                Di[k] -= x * row[k]


@compiled
def plus_plus(X: np.ndarray, weight: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Rows of ``X`` to start k-means from (Arthur & Vassilvitskii 2007), one per uniform draw.

    Fewer, if there are fewer distinct rows.
    """
    n, d = X.shape
    # Along rows, which do not wait for each other.
    columns = np.ascontiguousarray(X.T)
    near, far = np.ones(n), np.empty(n)
    chosen = np.empty(draws.shape[0], np.int64)
    for m in range(draws.shape[0]):
        total = 0.0
        for i in range(n):
            total += weight[i] * near[i]
        if total <= 0.0:
            return chosen[:m]
        mark, at = draws[m] * total, 0
        reached = weight[0] * near[0]
        while reached < mark and at < n - 1:
            at += 1
            reached += weight[at] * near[at]
        while weight[at] * near[at] == 0.0:  # rounding may land on a row that is a centre already
            at -= 1
        chosen[m] = at
        far[:] = 0.0
        for j in range(d):
            column, middle = columns[j], np.float64(X[at, j])
            for i in range(n):
                x = column[i] - middle
                far[i] += x * x
        for i in range(n):
            near[i] = far[i] if m == 0 else min(near[i], far[i])
    return chosen


@compiled
def lloyd(X: np.ndarray, weight: np.ndarray, centers: np.ndarray, rounds: int) -> np.ndarray:
    """Move ``centers`` (K, d) to the means of the rows nearest to them, some rounds; in place.

    Returns the weight of each in the last round; a centre without any stays where it is.
    """
    n, d = X.shape
    K = centers.shape[0]
    D = np.empty((n, K), np.float32)
    mass = np.zeros(K)
    sums = np.zeros((K, d))
    for _ in range(rounds):
        half = np.zeros(K, np.float32)
        for k in range(K):
            for j in range(d):
                half[k] += np.float32(0.5) * centers[k, j] * centers[k, j]
        half_distances(X, np.ascontiguousarray(centers.T), half, D)
        mass[:] = 0.0
        sums[:] = 0.0
        for i in range(n):
            at = np.argmin(D[i])
            mass[at] += weight[i]
            for j in range(d):
                sums[at, j] += weight[i] * X[i, j]
        for k in range(K):
            if mass[k] > 0.0:
                for j in range(d):
                    centers[k, j] = sums[k, j] / mass[k]
    return mass


@compiled
def nearest(
    Z: np.ndarray,
    codes: np.ndarray,
    start: np.ndarray,
    origin: np.ndarray,
    packed: np.ndarray,
    half: np.ndarray,
    block_rows: int,
    out: np.ndarray,
) -> None:
    """Write to ``out`` the nearest centre among those of the row's own batch."""
    n_rows, d = Z.shape
    order, end = np.empty(block_rows, np.int64), np.empty(start.shape[0], np.int64)
    X = np.empty((block_rows, d), np.float32)
    D = np.empty(block_rows * np.diff(start).max(), np.float32)
    for lo in range(0, n_rows, block_rows):
        rows_by_batch(codes, lo, min(n_rows, lo + block_rows), order, end)
        p = 0
        for b in range(start.shape[0] - 1):
            m = end[b] - p
            if m > 0:
                K = start[b + 1] - start[b]
                Db = D[: m * K].reshape(m, K)
                _distances(Z, order[p : end[b]], start, origin, packed, half, b, X, Db)
                for i in range(m):
                    out[order[p + i]] = start[b] + np.argmin(Db[i])
            p = end[b]


@compiled
def mixture(
    Z: np.ndarray,
    codes: np.ndarray,
    start: np.ndarray,
    origin: np.ndarray,
    packed: np.ndarray,
    half: np.ndarray,
    sharpness: np.ndarray,
    u: np.ndarray,
    v: np.ndarray,
    block_rows: int,
    out: np.ndarray,
) -> bool:
    """``out_i = z_i + sum_k r_ik (u_k (z_i - o_b) + v_k)`` over the centres k of the row's batch b.

    ``r_ik`` is a softmax of minus the squared distance, ``sharpness[b]`` times half of it. Returns
    whether every result is finite.
    """
    n_rows, d = Z.shape
    order, end = np.empty(block_rows, np.int64), np.empty(start.shape[0], np.int64)
    X = np.empty((block_rows, d), np.float32)
    most = np.diff(start).max()
    D = np.empty(block_rows * most, np.float32)
    weight, at = np.zeros(most + 3), np.zeros(most + 3, np.int64)
    U, V = np.zeros(d), np.zeros(d)
    stretch = np.any(u != 0.0)
    finite = True
    for lo in range(0, n_rows, block_rows):
        rows_by_batch(codes, lo, min(n_rows, lo + block_rows), order, end)
        p = 0
        for b in range(start.shape[0] - 1):
            m, first = end[b] - p, start[b]
            if m > 0:
                K = start[b + 1] - first
                Db = D[: m * K].reshape(m, K)
                _distances(Z, order[p : end[b]], start, origin, packed, half, b, X, Db)
                for i in range(m):
                    r, z, o, mid = Db[i], Z[order[p + i]], out[order[p + i]], origin[b]
                    count, total = _soft(r, sharpness[b], weight, at)
                    _add_up(weight, at, count, v[first : first + K], V)
                    if stretch:
                        _add_up(weight, at, count, u[first : first + K], U)
                    # No distance is a number: nor is the cell, or it is far too large.
                    if total == 0.0:
                        finite = False
                        continue
                    for j in range(d):
                        o[j] = z[j] + (U[j] * (z[j] - mid[j]) + V[j]) / total
                        finite &= abs(o[j]) < np.inf
            p = end[b]
    return finite


@compiled
def _soft(r: np.ndarray, sharp: float, weight: np.ndarray, at: np.ndarray) -> tuple[int, float]:
    """Weights of the centres at half distances ``r`` that are not faint, and which: how many, their sum.

    Three of no weight follow, so that centres can be taken four at a time.
    """
    closest, count, total = r[0], 0, 0.0
    for k in range(1, r.shape[0]):
        closest = min(closest, r[k])
    for k in range(r.shape[0]):
        power = (closest - r[k]) * sharp
        weight[count], at[count] = power, k
        count += power >= FAINT  # no branch: whether a centre is near cannot be foreseen
    for k in range(count):
        weight[k] = np.exp(np.float32(weight[k]))
        total += weight[k]
    weight[count : count + 3] = 0.0
    at[count : count + 3] = 0
    return count, total


@compiled
def _add_up(
    weight: np.ndarray, at: np.ndarray, count: int, rows: np.ndarray, out: np.ndarray
) -> None:
    """``out = sum_k weight_k rows[at_k]``, four rows for each pass over ``out``."""
    out[:] = 0.0
    for k in range(0, count, 4):
        w0, w1, w2, w3 = weight[k], weight[k + 1], weight[k + 2], weight[k + 3]
        r0, r1, r2, r3 = rows[at[k]], rows[at[k + 1]], rows[at[k + 2]], rows[at[k + 3]]
        for j in range(out.shape[0]):
            out[j] += (w0 * r0[j] + w1 * r1[j]) + (w2 * r2[j] + w3 * r3[j])


@compiled
def _distances(
    Z: np.ndarray,
    rows: np.ndarray,
    start: np.ndarray,
    origin: np.ndarray,
    packed: np.ndarray,
    half: np.ndarray,
    b: int,
    X: np.ndarray,
    D: np.ndarray,
) -> None:
    """Half distances of some rows of one batch to its centres."""
    d = Z.shape[1]
    lo, hi = start[b], start[b + 1]
    for i in range(rows.shape[0]):
        z, x, mid = Z[rows[i]], X[i], origin[b]
        for j in range(d):
            x[j] = z[j] - mid[j]
    C = packed[lo * d : hi * d].reshape(d, hi - lo)
    half_distances(X[: rows.shape[0]], C, half[lo:hi], D)


def kmeans(
    X: np.ndarray, weight: np.ndarray, k: int, rounds: int, rng: np.random.Generator
) -> np.ndarray:
    """Centres (at most k, d) of weighted rows; those that end up without any row are left out."""
    centers = X[plus_plus(X, weight, rng.random(k))]
    mass = lloyd(X, weight, centers, rounds)
    return np.asarray(centers[mass > 0])
