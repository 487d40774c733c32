"""Compiled loops that match the populations of batches to centres: what is between matrix products.

numpy computes products and exponentials, whose loops are faster. The other steps take one pass over the
numbers of a batch, while they are in the cache.

Arrays are (b, ...) for b batches. Those of centres may be (a, ...), each for b / a batches in order.
"""

from __future__ import annotations

import numpy as np

from .arrays import Floats
from .compiled import compiled, read_only

__all__ = ["exponents", "goals", "pair_sums", "pull", "weights"]

#: Smaller weights are zero: they change no result, and products take longer if numbers underflow.
LEAST = 1e-30


def exponents(
    scores: Floats,
    y_squares: Floats,
    c_squares: Floats,
    cells: Floats,
    width: float,
    lowest: float,
    which: bool,
) -> np.ndarray:
    r"""Exponents of both softmaxes of :math:`-D_{pk}/\tau`: less the largest over k, and over p.

    ``scores[0]`` (b, P, K) are the products :math:`y_p \cdot c_k`. Exponents replace ``scores`` (2, b, P, K),
    and are at least ``lowest``. With ``which``, returns (b, P) the nearest centre of each population.
    """
    kind = scores.dtype.type
    nearest = np.empty((int(which), *y_squares.shape), np.int64)
    with np.errstate(divide="ignore"):  # padding has no cells
        given = (read_only(part) for part in (y_squares, c_squares, np.log(cells)))
    work = np.empty(scores.shape[3], kind)
    _exponents(scores[0], scores[1], *given, kind(-1.0 / width), kind(lowest), nearest, work)
    return nearest[0] if which else nearest


def weights(both: Floats, cells: Floats) -> tuple[Floats, Floats]:
    r"""Turn exponentials (2, b, P, K) into the weights :math:`W_{pk}` and the cells :math:`n_p W_{pk}`.

    Returns (b, K) sums of these cells, and (b, K) the cells that each centre is nearest to, softly.
    """
    _, b, P, K = both.shape
    kind = both.dtype.type
    mass, present = np.empty((2, b, K), kind)
    _weights(both[0], both[1], read_only(cells), kind(LEAST), mass, present, np.empty(P + K, kind))
    return mass, present


def goals(
    own: tuple[Floats, Floats],
    everyone: tuple[Floats, Floats],
    place: Floats,
    noise: Floats,
    limits: tuple[float, float, float, float],
) -> tuple[Floats, Floats]:
    """(b, K) weights and (b, K, d) goals of the centres of batches, by their own sums and those of all.

    ``place`` (b, K, d) and ``noise`` (b, K, K) are sums of positions and squared weights, and become means
    and covariances. ``limits`` are the variance, the squared length at which pulls count a quarter, and the
    cells, as a number and as a part, below which nobody is at a centre.
    """
    weight, goal = np.zeros(place.shape[:2]), np.zeros(place.shape)
    given = (read_only(part) for part in (*own, *everyone))
    work = np.empty((2, place.shape[1]))
    _goals(*given, *limits, weight, goal, place, noise, work)
    return weight, goal


def pair_sums(
    w: Floats, pairs: Floats, noise: Floats, n_dims: int, kernel: Floats | None
) -> tuple[Floats, Floats]:
    r"""(b,) sums of :math:`w_k w_l K_{kl} (g_k \cdot g_l / d - V_{kl})` over :math:`k \neq l`; of squares.

    ``pairs`` are the products :math:`g_k \cdot g_l`, and ``kernel`` is :math:`K_{kl}`, or ``None`` for 1.
    """
    sums = np.zeros((2, len(w)))
    near = np.empty((0, *pairs.shape[1:])) if kernel is None else kernel
    given = (read_only(part) for part in (w, pairs, noise, near))
    _pair_sums(*given, 1.0 / n_dims, sums, np.empty(w.shape[1]))
    return sums[0], sums[1]


def pull(mass: Floats, total: Floats, centres: Floats, unit: float, none: float, y: Floats) -> None:
    """Shift populations at ``y`` (b, P, d) as the centres (a, K, d) pull the means of their batch there.

    Batches have the sums ``mass`` (b, K) and ``total`` (b, K, d). Pulls of squared length ``unit`` count a
    quarter.
    """
    kind = y.dtype.type
    given = (read_only(part) for part in (mass, total, centres))
    _pull(*given, kind(1.0 / unit), kind(none), y, np.empty((2, y.shape[2]), kind))


@compiled
def _exponents(
    scores: np.ndarray,
    other: np.ndarray,
    y_squares: np.ndarray,
    c_squares: np.ndarray,
    log_cells: np.ndarray,
    factor: float,
    lowest: float,
    nearest: np.ndarray,
    most: np.ndarray,
) -> None:
    b, P, K = scores.shape
    each, every = b // c_squares.shape[0], b // log_cells.shape[0]
    zero = factor * np.float32(0.0)
    for i in range(b):
        c2, logs = c_squares[i // each], log_cells[i // every]
        most[:] = zero - np.float32(np.inf)
        for p in range(P):
            row, two, s, log = scores[i, p], other[i, p], y_squares[i, p], logs[p]
            for k in range(K):
                D = s + c2[k] - (row[k] + row[k])
                L = factor * max(D, zero)
                row[k] = L
                largest = most[k]
                most[k] = L + log if L + log > largest else largest
            top = _largest(row)
            if nearest.shape[0]:
                at = 0
                while row[at] < top:
                    at += 1
                nearest[0, i, p] = at
            top = zero if top == -np.inf else top  # there is no centre
            for k in range(K):
                two[k] = row[k] + log
                e = row[k] - top
                row[k] = e if e > lowest else lowest
        for k in range(K):
            most[k] = zero if most[k] == -np.inf else most[k]
        for p in range(P):
            two = other[i, p]
            for k in range(K):
                e = two[k] - most[k]
                two[k] = e if e > lowest else lowest


@compiled
def _weights(
    W: np.ndarray,
    held: np.ndarray,
    cells: np.ndarray,
    least: float,
    mass: np.ndarray,
    present: np.ndarray,
    work: np.ndarray,
) -> None:
    b, P, K = W.shape
    every = b // cells.shape[0]
    one, column = work[:P], work[P:]
    zero = least * np.float32(0.0)
    unit = zero + np.float32(1.0)
    for i in range(b):
        n, here, there = cells[i // every], present[i], mass[i]
        here[:] = zero
        there[:] = zero
        column[:] = zero
        for p in range(P):
            e, f = W[i, p], held[i, p]
            s = _sum(e, zero)
            one[p] = unit / (s if s > unit else unit)  # below 1 only without any centre
            q = n[p] * one[p]
            for k in range(K):
                column[k] += f[k]
                here[k] += q * e[k]
        for k in range(K):
            column[k] = unit / column[k]
        for p in range(P):
            e, f, q, a = W[i, p], held[i, p], n[p], one[p]
            a = a if q > zero else zero
            for k in range(K):
                w = e[k] * a * (f[k] * column[k])
                w = w if w > least else zero
                e[k] = w
                f[k] = q * w
                there[k] += q * w


@compiled
def _goals(
    own_mass: np.ndarray,
    own_total: np.ndarray,
    mass: np.ndarray,
    total: np.ndarray,
    variance: float,
    unit: float,
    none: float,
    negligible: float,
    weight: np.ndarray,
    goal: np.ndarray,
    place: np.ndarray,
    noise: np.ndarray,
    work: np.ndarray,
) -> None:
    b, K, d = place.shape
    share, ratio = work[0], work[1]
    for i in range(b):
        for k in range(K):
            mine = own_mass[i, k]
            others = mass[k] - mine
            share[k] = ratio[k] = 0.0
            at, g, own, every = place[i, k], goal[i, k], own_total[i, k], total[k]
            if mine > none and others > max(negligible * mass[k], none):
                part, per_own, per_other = others / (mine + others), 1.0 / mine, 1.0 / others
                for j in range(d):
                    g[j] = (every[j] - own[j]) * per_other - own[j] * per_own
                f = 1.0 + _square(g, 0.0) / unit
                weight[i, k] = mine * part / (f * f)
                for j in range(d):
                    at[j] *= per_own
                    g[j] = (own[j] * per_own - at[j]) + part * g[j]
                share[k], ratio[k] = part * per_own, np.sqrt(mine / others)
            else:
                at[:] = 0.0
        for k in range(K):
            N, r, f = noise[i, k], ratio[k], variance * share[k]
            for m in range(K):
                N[m] *= f * share[m] * (1.0 + r * ratio[m])


@compiled
def _pull(
    mass: np.ndarray,
    total: np.ndarray,
    centres: np.ndarray,
    factor: float,
    none: float,
    y: np.ndarray,
    work: np.ndarray,
) -> None:
    b, K, d = total.shape
    each = b // centres.shape[0]
    gap, shift = work[0], work[1]
    zero = factor * np.float32(0.0)
    one = np.float32(1.0) + zero
    for i in range(b):
        shift[:] = zero
        weight = zero
        for k in range(K):
            m, t, c = mass[i, k], total[i, k], centres[i // each, k]
            per = one / (m if m > none else none)
            for j in range(d):
                gap[j] = c[j] - t[j] * per
            f = one + _square(gap, zero) * factor
            w = m / (f * f)
            weight += w
            for j in range(d):
                shift[j] += w * gap[j]
        per = one / (weight if weight > none else none)
        for p in range(y.shape[1]):
            x = y[i, p]
            for j in range(d):
                x[j] += shift[j] * per


@compiled
def _pair_sums(
    w: np.ndarray,
    pairs: np.ndarray,
    noise: np.ndarray,
    kernel: np.ndarray,
    factor: float,
    sums: np.ndarray,
    row: np.ndarray,
) -> None:
    b, K = w.shape
    near = kernel.shape[0] > 0
    for i in range(b):
        v = w[i]
        for k in range(K):
            G, N, f = pairs[i, k], noise[i, k], v[k]
            if near:
                Q = kernel[i, k]
                for m in range(K):
                    row[m] = (G[m] * factor - N[m]) * (f * v[m]) * Q[m]
            else:
                for m in range(K):
                    row[m] = (G[m] * factor - N[m]) * (f * v[m])
            row[k] = 0.0
            sums[0, i] += _sum(row, 0.0)
            sums[1, i] += _square(row, 0.0)


@compiled
def _largest(x: np.ndarray) -> float:
    """The largest number, of four parts: each waits for the one before."""
    m0 = m1 = m2 = m3 = x[0]
    whole = x.size - x.size % 4
    for k in range(0, whole, 4):
        m0 = x[k] if x[k] > m0 else m0
        m1 = x[k + 1] if x[k + 1] > m1 else m1
        m2 = x[k + 2] if x[k + 2] > m2 else m2
        m3 = x[k + 3] if x[k + 3] > m3 else m3
    for k in range(whole, x.size):
        m0 = x[k] if x[k] > m0 else m0
    m0 = m1 if m1 > m0 else m0
    m2 = m3 if m3 > m2 else m2
    return m2 if m2 > m0 else m0


@compiled
def _sum(x: np.ndarray, zero: float) -> float:
    """The sum, in four parts: an addition waits for the one before. ``zero`` has its type."""
    s0 = s1 = s2 = s3 = zero
    whole = x.size - x.size % 4
    for k in range(0, whole, 4):
        s0 += x[k]
        s1 += x[k + 1]
        s2 += x[k + 2]
        s3 += x[k + 3]
    for k in range(whole, x.size):
        s0 += x[k]
    return (s0 + s1) + (s2 + s3)


@compiled
def _square(x: np.ndarray, zero: float) -> float:
    """The sum of squares, in four parts."""
    s0 = s1 = s2 = s3 = zero
    whole = x.size - x.size % 4
    for k in range(0, whole, 4):
        s0 += x[k] * x[k]
        s1 += x[k + 1] * x[k + 1]
        s2 += x[k + 2] * x[k + 2]
        s3 += x[k + 3] * x[k + 3]
    for k in range(whole, x.size):
        s0 += x[k] * x[k]
    return (s0 + s1) + (s2 + s3)
