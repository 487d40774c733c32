r"""Agreement: how far the centres of a batch ask for the same displacement.

A batch effect is a displacement that several different groups of cells of a batch share. The goals
:math:`g_k` of a batch at the centres k have noise with covariance :math:`V_{kl}`. So

.. math:: S = \sum_{k \neq l} w_k w_l K_{kl} \left(g_k \cdot g_l / d - V_{kl}\right)

is unbiased for the squared displacement that centres share. With :math:`K = 1` it is that of the shift. With
:math:`K_{kl}` that decreases with the distance of the centres, and goals about their mean, it is that of a
smooth part: neighbouring centres ask for the same beyond the shift.

The smooth part is a displacement field for each batch, a Gaussian process over its populations.
The field :math:`v` of a batch is the shift of its populations beyond the shift of the batch. It minimises

.. math:: \sum_p w_p \lVert v_p - g_p \rVert^2 + \rho \lVert v \rVert^2
    + \delta \lVert v - v^{before} \rVert^2

in the norm of the process. :math:`g_p` is where the centres of population p pull it, :math:`w_p` how much of
it is matched. So unmatched populations follow their batch and their neighbours.

Neighbouring populations of a batch are pulled to the same few means, so the field also brings them nearer to
each other. That part of it is no batch effect, and is taken back: see :func:`without_contraction`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...kernels.arrays import Floats
from .meeting import NONE, Goals, Met, Stack, Sums, pull_weight, squares

__all__ = [
    "Agreement",
    "Strengths",
    "most_agreement",
    "shift_agreement",
    "smooth_agreement",
    "smooth_field",
    "without_contraction",
]

#: Noise of the goals of neighbouring centres, as a multiple of what the cells of populations tell: k-means
#: chose these cells to lie close. With 1, twenty shifted batches of a thousand cells have a smooth part.
CHOSEN = 2.0
#: Squared length of the field, in units of the squared spacing of centres.
LENGTH = 4.0


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


@dataclass(frozen=True)
class Strengths:
    """Weights of two terms of a round, relative to the weight of one fully matched population.

    Attributes
    ----------
    prior
        Of the identity term, which pulls displacements to zero.
    damping
        Of the proximal term, which pulls them to those of the previous round.
    """

    prior: float
    damping: float

    def shrunk(self, weight: Floats, goal: Floats, before: Floats) -> Floats:
        """The displacement nearest to ``goal``, with its weight, and to zero and to that before."""
        total = weight + self.prior + self.damping
        found: Floats = (weight * goal + self.damping * before) / np.maximum(total, NONE)
        return found


def smooth_field(
    stack: Stack, v: Floats, met: Met, all_sums: Sums, unit: float, width: float, by: Strengths
) -> Floats:
    """(b, P, d) fields after one round, before which they were ``v``.

    ``unit`` is the squared spacing of centres, and pulls of the squared length ``width`` count a quarter.
    """
    rest, own = all_sums.without(met.own), met.own
    pull = np.where(rest.mass[..., None] > 0, rest.mean - own.mean, 0.0)
    strength = rest.mass / np.maximum(all_sums.mass, NONE) * pull_weight(pull, width)
    weight = met.weight * strength[:, None]
    matched = weight.sum(2)
    goal = v + np.matmul(weight, pull) / np.maximum(matched, NONE)[..., None]
    kernel = 1.0 + _nearness(stack, unit)
    # Populations count by their cells; the weight of a batch is its number of populations.
    matched = matched * stack.share * (stack.cells > 0).sum(1, keepdims=True)
    noise = by.prior + by.damping
    before = v * (by.damping / noise if noise > 0 else 0.0)
    A = matched[..., None] * kernel
    index = np.arange(A.shape[2])
    A[:, index, index] += max(noise, NONE)
    found = before + np.matmul(kernel, np.linalg.solve(A, matched[..., None] * (goal - before)))
    return np.where(stack.cells[..., None] > 0, found, 0.0)


def without_contraction(stack: Stack, v: Floats, unit: float) -> Floats:
    r"""(b, P, d) fields that do not bring neighbouring populations nearer to each other.

    With :math:`x'` and :math:`v'` the positions and displacements about the mean of the neighbours, the field
    contracts by :math:`a = \sum n\, v' \cdot x' / \sum n\, \lVert x' \rVert^2`, if that is below zero. It
    becomes :math:`v - a x'`.
    """
    near = _nearness(stack, unit) * stack.cells[:, None]
    near /= np.maximum(near.sum(2, keepdims=True), NONE)
    about, moved = stack.x - np.matmul(near, stack.x), v - np.matmul(near, v)
    along = np.einsum("bp,bpd,bpd->b", stack.cells, moved, about)
    size = np.einsum("bp,bpd,bpd->b", stack.cells, about, about)
    contraction = np.minimum(along / np.maximum(size, NONE), 0.0)
    found = v - contraction[:, None, None] * about
    return np.where(stack.cells[..., None] > 0, found, 0.0)


def _nearness(stack: Stack, unit: float) -> Floats:
    """(b, P, P) how near populations of a batch are to each other, 1 at the same place."""
    x = stack.x - stack.means()[:, None]
    found: Floats = np.exp(squares(x, x) / (-2.0 * LENGTH * unit))
    return found
