r"""The smooth part: a displacement field for each batch, a Gaussian process over its populations.

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

import numpy as np

from ...kernels.arrays import Floats
from .meeting import Met, Stack, pull_weight, squares
from .sums import NONE, Sums

__all__ = ["Strengths", "smooth_field", "without_contraction"]

#: Squared length of the field, in units of the squared spacing of centres.
LENGTH = 4.0


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
