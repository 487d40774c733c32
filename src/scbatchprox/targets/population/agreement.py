r"""Agreement: how far the centres of a batch ask for the same displacement.

A batch effect is a displacement that several different groups of cells of a batch share. The goals
:math:`g_k` of a batch at the centres k have noise with covariance :math:`V_{kl}`. So

.. math:: S = \sum_{k \neq l} w_k w_l K_{kl} \left(g_k \cdot g_l / d - V_{kl}\right)

is unbiased for the squared displacement that centres share. With :math:`K = 1` it is that of the shift. With
:math:`K_{kl}` that decreases with the distance of the centres, and goals about their mean, it is that of a
smooth part: neighbouring centres ask for the same beyond the shift.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...kernels.arrays import Floats
from .meeting import Goals, squares
from .sums import NONE

__all__ = ["Agreement", "most_agreement", "shift_agreement", "smooth_agreement"]

#: Noise of the goals of neighbouring centres, as a multiple of what the cells of populations tell: k-means
#: chose these cells to lie close. With 1, twenty shifted batches of a thousand cells have a smooth part.
CHOSEN = 2.0


class Agreement(NamedTuple):
    """Agreement of the centres of batches."""

    total: Floats  # (b,) S
    spread: Floats  # (b,) of S by chance

    @property
    def z(self) -> Floats:
        """(b,) S over its chance spread; it is not a standard normal number.

        Zero where both are rounding, as for the smooth part of a batch with one population.
        """
        return np.where(self.spread > NONE, self.total / np.maximum(self.spread, NONE), 0.0)


def shift_agreement(goals: Goals) -> tuple[Floats, Agreement]:
    """(b, d) the mean goal of each batch, shrunk as far as its centres disagree; and their agreement.

    The factor is the positive-part James-Stein factor: the part of the squared mean goal that is not noise.
    """
    w = _shares(goals.weight)
    mean = np.einsum("bk,bkd->bd", w, goals.goal)
    found = _agreement(w, goals.goal, goals.noise)
    size = (mean**2).mean(1)
    distinct = np.maximum(1.0 - (w**2).sum(1), 1e-300)  # weight of pairs of different centres
    factor = np.clip(found.total / distinct / np.maximum(size, 1e-300), 0.0, 1.0)
    return factor[:, None] * mean, found


def most_agreement(goals: Goals) -> Floats:
    """(b,) the agreement over its chance spread if all centres asked for exactly the same.

    It is about 0.7 times the number of centres: a batch with four populations reaches 2.4.
    """
    w = _shares(goals.weight)
    squares, fourth = (w**2).sum(1), (w**4).sum(1)
    spread = np.sqrt(2.0 * np.maximum(squares**2 - fourth, 0.0))
    return np.where(spread > NONE, (1.0 - squares) / np.maximum(spread, NONE), np.inf)


def smooth_agreement(goals: Goals, unit: float) -> Agreement:
    """Agreement of neighbouring centres beyond the shift; neighbours are about ``unit`` squared apart."""
    w = _shares(goals.weight)
    rest = goals.goal - np.einsum("bk,bkd->bd", w, goals.goal)[:, None]
    # The noise of goals about their weighted mean: (I - 1 w') V (I - w 1').
    Vw = np.einsum("bkl,bl->bk", goals.noise, w)
    wVw = np.einsum("bk,bk->b", w, Vw)
    noise = CHOSEN * (goals.noise - Vw[:, :, None] - Vw[:, None] + wVw[:, None, None])
    kernel = np.exp(squares(goals.place, goals.place) / (-2.0 * unit))
    return _agreement(w, rest, noise, kernel)


def _shares(weight: Floats) -> Floats:
    shares: Floats = weight / np.maximum(weight.sum(1, keepdims=True), NONE)
    return shares


def _agreement(w: Floats, goal: Floats, noise: Floats, kernel: Floats | None = None) -> Agreement:
    pairs = np.matmul(goal, np.swapaxes(goal, 1, 2))
    pairs /= goal.shape[2]
    pairs -= noise
    pairs *= w[:, :, None] * w[:, None]
    if kernel is not None:
        pairs *= kernel
    index = np.arange(pairs.shape[1])
    pairs[:, index, index] = 0.0
    total = pairs.sum((1, 2))
    return Agreement(total, np.sqrt(2.0 * np.einsum("bkl,bkl->b", pairs, pairs)))
