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

from typing import NamedTuple

import numpy as np

from ...kernels.arrays import Floats
from .meeting import NONE, TINY, Sums, meet, pull_weight, squares

__all__ = ["Support", "Turning", "principal_axes", "supported"]

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
        """(..., 1 + n, P, d) positions of populations ``x`` (..., P, d) about their mean, and copies."""
        q, rng = self.into.shape[1], np.random.default_rng(0)
        turns = np.linalg.qr(rng.normal(size=(n_copies, q, q)))[0] - np.eye(q)
        turned = (x @ self.into)[..., None, :, :] @ turns @ self.back
        return np.concatenate([np.zeros_like(x)[..., None, :, :], turned], -3) + x[..., None, :, :]


class Support(NamedTuple):
    """How well batches (b,) meet the others, how well turned copies do, and how well they did unmoved."""

    support: Floats
    chance: Floats
    before: Floats

    @property
    def evidence(self) -> Floats:
        r"""(b,) :math:`s \sqrt{s} / c`: the support over that of copies; a poor support counts less."""
        support = np.maximum(self.support, LEAST)
        return np.asarray(support * np.sqrt(support) / np.maximum(self.chance, LEAST))

    @property
    def gain(self) -> Floats:
        """(b,) the support over that without the displacement."""
        return np.asarray(np.maximum(self.support, LEAST) / np.maximum(self.before, LEAST))


class _Others(NamedTuple):
    """What copies of batches are compared with: the centres of the other batches."""

    centres: Floats  # (b, 1, K, d)
    share: Floats  # (b, 1, K) of the cells of the others; 0 where none is
    apart: Floats  # (b, K, K) distances of centres
    absent: np.ndarray  # (b, K) where none is
    cells: Floats  # (b, 1, P) of the populations of the batch itself
    unit: float

    def of(self, some: np.ndarray) -> _Others:
        """For some of the batches (b,)."""
        centres, share, apart, absent, cells = (part[some] for part in self[:5])
        return _Others(centres, share, apart, absent, cells, self.unit)


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
    """Support of batches with populations at ``x`` (b, P, d), by the sums of all others (b, K).

    ``unmoved`` (b, P, d) is where they would be without the displacement of their batch. Populations without
    ``cells`` (b, P) are padding.
    The batch and every copy search from the place where the batch is, and from the mean of the others.
    """
    here = rest.mass > NONE
    mass, centres = np.where(here, rest.mass, 0.0), np.where(here[..., None], rest.mean, 0.0)
    share = mass / np.maximum(mass.sum(1, keepdims=True), NONE)
    mean = np.einsum("bp,bpd->bd", cells / cells.sum(1, keepdims=True), x)
    common = np.einsum("bk,bkd->bd", share, centres)
    apart = np.sqrt(squares(centres, centres)) * (here[:, :, None] & here[:, None])
    diagonal = np.arange(apart.shape[1])
    apart[:, diagonal, diagonal] = 0.0  # not the root of rounding
    others = _Others(
        centres[:, None],
        share[:, None],
        apart,
        ~here,
        cells[:, None],
        unit,
    )
    copies = turning.copies(x - mean[:, None], n_copies)
    last = float(temperatures[-1])
    best: Floats = np.zeros(copies.shape[:2])
    # From nearer than the spacing of centres, a search from the mean of the others finds the same.
    far = ((mean - common) ** 2).sum(1) >= unit
    for start, some in ((mean, np.ones_like(far)), (common, far)):
        if some.any():
            part, begin = others.of(some), start[some][:, None, None]
            y = _searched(copies[some] + begin, part, temperatures)
            best[some] = np.maximum(best[some], _meeting(y, part, last))
    before = _meeting(unmoved[:, None], others, last)[:, 0]
    compared = here.any(1) & ((cells > 0).sum(1) > 1)
    numbers = (best[:, 0], best[:, 1:].mean(1), before)
    return Support(*(np.where(compared, part, 0.0).astype(np.float64) for part in numbers))


def _searched(y: Floats, others: _Others, temperatures: Floats) -> Floats:
    """Positions (b, T, P, d) of copies, each shifted as its matched populations are pulled."""
    for temperature in temperatures:
        _, own = _met(y, others, temperature)
        gap = others.centres - own.mean
        weight = own.mass * pull_weight(gap, others.unit * temperature / temperatures[-1])
        shift = np.einsum("...k,...kd->...d", weight, gap)
        y = y + (shift / np.maximum(weight.sum(-1), NONE)[..., None])[..., None, :]
    return y


def _meeting(y: Floats, others: _Others, temperature: float) -> Floats:
    """(b, T) how well copies meet the others at pairs of centres: the root of a mean of products."""
    present, own = _met(y, others, temperature)
    n, share = others.cells.sum(-1, keepdims=True), others.share
    matched, present = own.mass / n, present / n
    both = matched + share
    of_those_there = np.minimum(both / np.maximum(present + share, NONE), 1.0)
    balance = 4.0 * matched * share / np.maximum(both, NONE) ** 2
    close = pull_weight(others.centres - own.mean, others.unit)
    met = of_those_there * balance * close
    total = np.maximum(others.apart.sum((1, 2)), TINY)[:, None]
    found: Floats = np.sqrt(np.einsum("btk,btk->bt", np.matmul(met, others.apart), met) / total)
    return found


def _met(y: Floats, others: _Others, temperature: float) -> tuple[Floats, Sums]:
    """(b, T, K) the cells that are nearest to each centre, and the sums of copies at the centres."""
    flat, cells = y.reshape(-1, *y.shape[2:]), others.cells[:, 0]
    found = meet(flat, others.centres[:, 0], cells, others.unit * temperature, others.absent)
    present, mass, total = (
        part.reshape(*y.shape[:2], *part.shape[1:]) for part in (found.present, *found.own)
    )
    return present, Sums(mass, total)


#: Entries of an axis that are this near to its largest, as a part of it, count as equal to it.
TIE = 1e-6
#: The last coordinate counts by this part more than the first, so that equal eigenvalues have axes too.
TILT = 1e-8


def principal_axes(S: Floats) -> tuple[Floats, Floats]:
    """(d,) eigenvalues of a symmetric matrix, the largest first, and (d, d) axes in its columns.

    Rounding decides on the sign of an eigenvector, and on those of equal eigenvalues: few populations have
    many, and sites or machines would find different ones. So the first of the largest entries of an axis is
    positive, and coordinates differ a little in size. All sites then number the regions between planes in the
    same way, and turn copies alike.
    """
    d = len(S)
    tilt = 1.0 + TILT * np.arange(d) / d
    size, axes = np.linalg.eigh(S * np.outer(tilt, tilt))
    size, axes = size[::-1], axes[:, ::-1]
    large = np.abs(axes)
    first = (large > (1.0 - TIE) * large.max(0)).argmax(0)
    return size, axes * np.where(axes[first, np.arange(d)] < 0, -1.0, 1.0)
