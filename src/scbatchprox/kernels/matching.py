"""Compiled loops that match the populations of batches to centres: what is between matrix products.

numpy computes products and exponentials, whose loops are faster. The other steps take one pass over the
numbers of a batch, while they are in the cache.

Arrays are (b, ...) for b batches. Those of centres may be (a, ...), each for b / a batches in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arrays import Floats
from .loops import compiled

__all__ = ["exponents", "goals", "weights"]

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
        log_cells = np.log(cells)
    _exponents(
        scores[0], scores[1], y_squares, c_squares, log_cells, kind(-1.0 / width), kind(lowest), nearest,
        np.empty(scores.shape[3], kind),
    )  # fmt: skip
    return nearest[0] if which else nearest


def weights(both: Floats, cells: Floats) -> tuple[Floats, Floats]:
    r"""Turn exponentials (2, b, P, K) into the weights :math:`W_{pk}` and the cells :math:`n_p W_{pk}`.

    Returns (b, K) sums of these cells, and (b, K) the cells that each centre is nearest to, softly.
    """
    _, b, P, K = both.shape
    kind = both.dtype.type
    mass, present = np.empty((2, b, K), kind)
    _weights(both[0], both[1], cells, kind(LEAST), mass, present, np.empty((2, max(P, K)), kind))
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
    work = np.empty((2, place.shape[1]))
    _goals(*own, *everyone, *limits, weight, goal, place, noise, work)
    return weight, goal


@compiled("scores", "other", "nearest", "most")
def _exponents(
    scores: np.ndarray,
    other: np.ndarray,
    y_squares: np.ndarray,
    c_squares: np.ndarray,
    log_cells: np.ndarray,
    factor: Any,
    lowest: Any,
    nearest: np.ndarray,
    most: np.ndarray,
) -> None:
    b, P, K = scores.shape
    each, every = b // c_squares.shape[0], b // log_cells.shape[0]
    zero = factor * np.float32(0.0)
    for i in range(b):
        c2, logs = c_squares[i // each], log_cells[i // every]
        for k in range(K):
            most[k] = zero - np.float32(np.inf)
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
            if top == -np.inf:  # there is no centre
                top = zero
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


@compiled("W", "held", "mass", "present", "work")
def _weights(
    W: np.ndarray,
    held: np.ndarray,
    cells: np.ndarray,
    least: Any,
    mass: np.ndarray,
    present: np.ndarray,
    work: np.ndarray,
) -> None:
    b, P, K = W.shape
    every = b // cells.shape[0]
    one, column = work[0], work[1]
    zero = least * np.float32(0.0)
    unit = zero + np.float32(1.0)
    for i in range(b):
        n, here, there = cells[i // every], present[i], mass[i]
        for k in range(K):
            here[k] = there[k] = column[k] = zero
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


@compiled("weight", "goal", "place", "noise", "work")
def _goals(
    own_mass: np.ndarray,
    own_total: np.ndarray,
    mass: np.ndarray,
    total: np.ndarray,
    variance: float,
    unit: float,
    none: Any,
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
                for j in range(d):
                    at[j] = 0.0
        for k in range(K):
            N, r, f = noise[i, k], ratio[k], variance * share[k]
            for m in range(K):
                N[m] *= f * share[m] * (1.0 + r * ratio[m])


@compiled()
def _largest(x: np.ndarray) -> Any:
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


@compiled()
def _sum(x: np.ndarray, zero: Any) -> Any:
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


@compiled()
def _square(x: np.ndarray, zero: Any) -> Any:
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
