r"""Turned copies: whether the geometry of a batch fits the others better than it would by chance.

All centres of one blob agree on the way to any other blob. So agreement alone would merge batches that share
no cell type. Evidence for a displacement must come from *distinct* regions: the geometry between them must
fit that of the other batches. The control is the batch itself, turned at random about its mean. Turning is
orthogonal in the metric of the covariance within regions: a blob keeps its shape, and only the geometry
between regions breaks. Every copy gets the same search as the batch.

*Support* says how well both sides meet at *pairs* of centres, and pairs count by their distance: any blob can
be laid on another one, but two distinct regions meet two others only if the way between them is the same.
Each centre counts once, so that a large blob is not all the evidence. *Chance* is the mean support of the
copies. *Before* is the support of the batch without its displacement: who meets others as well where it is,
has no reason to move.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...kernels.arrays import Floats
from .axes import principal_axes
from .meeting import TINY, mutual_weights, pull_weight, squares
from .sums import NONE, Sums

__all__ = ["Support", "Turning", "supported"]

#: Part of the mean variance that is added to the covariance within regions, so that it has an inverse.
RIDGE = 1e-3
#: Fewest directions in which a copy is turned: in two dimensions, half of all turns are mirror images.
FEWEST = 3
#: Supports are at least this, so that their ratio has a logarithm.
LEAST = 1e-6


class Turning(NamedTuple):
    """The space in which copies are turned: the leading directions between regions, whitened."""

    into: Floats  # (d, q)
    back: Floats  # (q, d)

    @classmethod
    def of(cls, within: Floats, spread: Floats) -> Turning:
        """From the covariance within regions, and that of all populations about the mean of their batch."""
        d = len(within)
        e, V = np.linalg.eigh(within + RIDGE * max(np.trace(within) / d, NONE) * np.eye(d))
        root, inverse = V * np.sqrt(e) @ V.T, V / np.sqrt(e) @ V.T
        size, E = principal_axes(inverse @ spread @ inverse)
        size = np.maximum(size, 0.0)
        # As many directions as carry the variance between regions, if all carried the same.
        q = int(np.ceil(size.sum() ** 2 / max((size**2).sum(), NONE)))
        E = E[:, : int(np.clip(q, min(FEWEST, d), d))]
        return cls(inverse @ E, E.T @ root)

    def signed(self, skew: Floats) -> Turning:
        """The same space, with directions (q,) in which the populations are skewed to the positive side.

        The sign of an eigenvector is arbitrary, and would decide which copies are made. Without a skew beyond
        rounding, it is that of :func:`principal_axes`, which is the same at all sites.
        """
        sign = np.where(skew < -NONE, -1.0, 1.0)
        return Turning(self.into * sign, self.back * sign[:, None])

    def copies(self, x: Floats, n_copies: int) -> Floats:
        """(1 + n, P, d) positions of populations ``x`` (P, d) about their mean, and of turned copies."""
        q, rng = self.into.shape[1], np.random.default_rng(0)
        turns = np.linalg.qr(rng.normal(size=(n_copies, q, q)))[0] - np.eye(q)
        return np.concatenate([x[None], x + (x @ self.into) @ turns @ self.back])


class Support(NamedTuple):
    """How well a batch meets the others, how well turned copies of it do, and how well it did unmoved."""

    support: float
    chance: float
    before: float

    @property
    def evidence(self) -> float:
        r""":math:`s \sqrt{s} / c`: the support over that of copies; a poor support counts less."""
        support, chance = max(self.support, LEAST), max(self.chance, LEAST)
        return support * math.sqrt(support) / chance

    @property
    def gain(self) -> float:
        """The support over that without the displacement."""
        return max(self.support, LEAST) / max(self.before, LEAST)


def supported(
    x: Floats,
    unmoved: Floats,
    cells: Floats,
    rest: Sums,
    turning: Turning,
    n_copies: int,
    temperatures: Floats,
    unit: float,
) -> Support:
    """Support of one batch with populations at ``x`` (P, d), by the sums of all others (K).

    ``unmoved`` (P, d) is where they would be without the displacement of the batch.
    The batch and every copy search from the place where the batch is, and from the mean of the others.
    """
    here = rest.mass > NONE
    if not here.any() or len(x) < 2:
        return Support(0.0, 0.0, 0.0)
    mass, centres = rest.mass[here], rest.mean[here]
    share, mean = mass / mass.sum(), cells @ x / cells.sum()
    common, apart = share @ centres, np.sqrt(squares(centres, centres))
    np.fill_diagonal(apart, 0.0)  # not the root of rounding
    # Single precision is exact enough for a comparison with chance, and takes half the time.
    single: list[Any] = [
        part.astype(np.float32)
        for part in (
            turning.copies(x - mean, n_copies), unmoved[None], cells, centres, share, apart,
        )
    ]  # fmt: skip
    copies, stay, cells, centres, share, apart = single
    best: Floats = np.zeros(len(copies))
    for start in (mean.astype(np.float32), common.astype(np.float32)):
        y = _searched(copies + start, cells, centres, temperatures, unit)
        best = np.maximum(best, _meeting(y, cells, centres, share, apart, temperatures[-1], unit))
        if ((mean - common) ** 2).sum() < unit:
            break  # a search from there finds the same
    (before,) = _meeting(stay, cells, centres, share, apart, temperatures[-1], unit)
    return Support(float(best[0]), float(best[1:].mean()), float(before))


def _searched(
    y: Floats, cells: Floats, centres: Floats, temperatures: Floats, unit: float
) -> Floats:
    """Positions (T, P, d) of copies, each shifted as its matched populations are pulled."""
    for temperature in temperatures:
        _, W = mutual_weights(y, cells, centres, unit * temperature)
        own = _sums(W, cells, y)
        pull = centres - own.mean
        weight = own.mass * pull_weight(pull, unit * temperature / temperatures[-1])
        shift = np.einsum("tk,tkd->td", weight, pull)
        y = y + (shift / np.maximum(weight.sum(1), NONE)[:, None])[:, None]
    return y


def _meeting(
    y: Floats,
    cells: Floats,
    centres: Floats,
    share: Floats,
    apart: Floats,
    temperature: float,
    unit: float,
) -> Floats:
    """(T,) how well copies meet the others at pairs of centres: the root of a mean of products."""
    near, W = mutual_weights(y, cells, centres, unit * temperature)
    own = _sums(W, cells, y)
    n = cells.sum()
    matched, present = own.mass / n, np.einsum("tpk,p->tk", near, cells) / n
    both = matched + share
    of_those_there = np.minimum(both / np.maximum(present + share, NONE), 1.0)
    balance = 4.0 * matched * share / np.maximum(both, NONE) ** 2
    close = pull_weight(centres - own.mean, unit)
    met = of_those_there * balance * close
    found: Floats = np.sqrt(np.einsum("tk,tk->t", met @ apart, met) / max(apart.sum(), TINY))
    return found


def _sums(W: Floats, cells: Floats, y: Floats) -> Sums:
    H = W * cells[:, None]
    return Sums(H.sum(1), np.matmul(np.swapaxes(H, 1, 2), y))
