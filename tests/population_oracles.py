"""Populations in plain loops: every distance, weight and sum in double precision."""

import numpy as np


def typed_cells(rng, types_of, shifts, n=120, d=12, sep=14.0):
    """Cells of types at right angles, ``sep`` from the origin, in shifted batches.

    ``types_of[b]`` are the types of batch b and ``n`` the cells of each, or ``n[b][i]``. Returns Z,
    batch and type, shuffled. Any two types are ``1.4 sep`` apart, so they do not overlap.
    """
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0] * sep
    Z, batch, kind = [], [], []
    for b, types in enumerate(types_of):
        for i, t in enumerate(types):
            m = n if np.isscalar(n) else n[b][i]
            Z.append(axes[t] + shifts[b] + rng.normal(size=(m, d)))
            batch += [b] * m
            kind += [t] * m
    order = rng.permutation(len(batch))
    return np.concatenate(Z)[order], np.array(batch)[order], np.array(kind)[order]


def direction(rng, d, length):
    """A random vector of some length."""
    x = rng.normal(size=d)
    return x * length / np.linalg.norm(x)


def squared_distances(Z, C):
    """(N, K) by differences, never by expanding the square."""
    return np.stack([((np.asarray(Z, float) - c) ** 2).sum(1) for c in np.asarray(C, float)], 1)


def nearest_row(Z, codes, rows):
    """The row (of moments or anchors) of its batch that is nearest to each cell, by brute force."""
    points = rows.center if hasattr(rows, "center") else rows.anchors
    D = squared_distances(Z, points)
    D[np.asarray(codes)[:, None] != rows.batch] = np.inf
    return D.argmin(1)


def inertia(Z, C):
    """Sum of squared distances to the nearest of some centres."""
    return squared_distances(Z, C).min(1).sum()


def offset(Z, batch, kind, t, a, b):
    """From the mean of type t in one batch to that in another."""
    one, two = (Z[(batch == k) & (kind == t)].mean(0) for k in (a, b))
    return two - one


def gap(Z, batch, kind, t, a, b):
    """Distance between the means of type t in two batches."""
    return np.linalg.norm(offset(Z, batch, kind, t, a, b))


def moved(Z, refined, rows):
    """Mean displacement of some cells."""
    return np.linalg.norm((refined - Z)[rows], axis=1).mean()


def moments_of(Z, groups):
    """{group: (n, mean, M2)} of the rows of each group, in two passes."""
    found = {}
    for g in sorted(set(groups)):
        X = np.asarray(Z, float)[[h == g for h in groups]]
        mean = X.mean(0)
        found[g] = len(X), mean, ((X - mean) ** 2).sum(0)
    return found


def mixture(Z, batch, anchor_batch, anchors, bandwidth, scale, shift):
    """``z~ = sum_k r_k (gamma_k z + beta_k)``, ``r_k ~ exp(-|z - a_k|^2 / 2 h_b)`` over own anchors.

    Also returns a bound of the error, for every cell, of an implementation that ignores weights below
    ``exp(-8)`` of the largest and computes distances in single precision from the middle of the anchors.

    With K anchors the ignored weights are at most ``(K - 1) exp(-8)`` of the sum, and the error of the
    result is at most that part of the range of the K maps at z. An error e in every exponent changes
    each weight by a factor within exp(+-e), and the result by at most 2 e times the same range.
    """
    Z = np.asarray(Z, float)
    result, bound = np.empty_like(Z), np.empty(len(Z))
    tiny = np.finfo(np.float32).eps
    for i, (z, b) in enumerate(zip(Z, batch, strict=True)):
        own = np.flatnonzero(anchor_batch == b)
        D = ((z - anchors[own]) ** 2).sum(1)
        # Without bandwidth a cell follows the nearest anchor only.
        h = bandwidth[b] if bandwidth[b] > 0 else 1e-30
        r = np.exp(-(D - D.min()) / (2.0 * h))
        r /= r.sum()
        maps = scale[own] * z + shift[own]
        result[i] = r @ maps
        about = anchors[own] - anchors[own].mean(0)
        reach = np.linalg.norm(z - anchors[own].mean(0))
        size = np.linalg.norm(about, axis=1).max()
        e = (Z.shape[1] + 3) * tiny * (reach * size + size**2) / h
        span = np.ptp(maps, axis=0).max()
        bound[i] = ((len(own) - 1) * np.exp(-8.0) + 2.0 * e) * span
    return result, bound
