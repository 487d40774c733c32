r"""The federated procedure in closed form.

Client :math:`b` ties its copy to :math:`\kappa\,\theta_t`, :math:`\kappa = \mu/(\mu+\nu)` (the point
between the current adapter and the identity that its two penalties agree on), and follows the target
from there; everyone else's copy of row :math:`b` is just :math:`\kappa\,\theta_t`. Averaged:

.. math:: y_{t+1} = \kappa y_t + w K (y^* - \kappa y_t)

with :math:`y = (u, v)` of :mod:`scbatchprox.core.problem` and :math:`K` its response matrix for
:math:`a = \lambda_{target}/d`, :math:`p = \mu + \nu`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..labels import Labels
from ..problem import Problem, Response, Rows
from .solution import Solution, check_rounds

__all__ = ["Exact"]


@dataclass(frozen=True)
class Exact:
    """Rounds of exact client solves and sample-size-weighted averaging; no loop over cells."""

    needs_cells: ClassVar[bool] = False

    def solve(
        self, problem: Problem, rounds: int | None, Z: Any = None, labels: Labels | None = None
    ) -> Solution:
        """Run ``rounds`` rounds from the identity; ``None`` gives their fixed point."""
        rounds = check_rounds(rounds)
        p = problem.weights.mu + problem.nu
        # Without any tie the other clients keep the row as it is: kappa = 1, the limit nu -> 0.
        kappa = problem.weights.mu / p if p > 0 else 1.0
        K = problem.response(problem.a, p)
        w, goal = problem.share[:, None], problem.goal
        path = [problem.identity()]
        if rounds is None:
            path.append(_fixed_point(problem, K, kappa, p))
            return Solution.of(problem, path, [0, math.inf], converged=True)
        for _ in range(rounds):
            held = Rows(kappa * path[-1].u, kappa * path[-1].v)
            pull = K.of(Rows(goal.u - held.u, goal.v - held.v))
            path.append(Rows(held.u + w * pull.u, held.v + w * pull.v))
        return Solution.of(problem, path, range(rounds + 1))


def _fixed_point(problem: Problem, K: Response, kappa: float, p: float) -> Rows:
    r"""Solve :math:`((1-\kappa) I + \kappa w K)\, y = w K y^*` by the adjugate: no cancellation.

    :math:`y = [(1-\kappa) w K + \kappa w^2 \det K]\, y^* / [(1-\kappa)^2 + (1-\kappa) \kappa w\,
    \mathrm{tr} K + \kappa^2 w^2 \det K]`.
    """
    w, goal = problem.share[:, None], problem.goal
    rest = problem.nu / p if p > 0 else 0.0  # 1 - kappa, without the rounding of the difference
    a, s2, m2 = problem.a, problem.var, problem.mean**2
    D = a**2 * s2 + a * p * (1.0 + s2 + m2) + p**2
    det = np.where(s2 > 0, a**2 * s2 / np.where(D > 0, D, 1.0), 0.0)
    follow = K.of(goal)
    bottom = rest**2 + rest * kappa * w * K.trace + (kappa * w) ** 2 * det
    # Where a coordinate is constant and nothing ties the adapter, the rounds end at the projection.
    loose = bottom == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = [
            np.where(
                loose,
                np.where(K.trace > 0, f / K.trace, 0.0),
                (rest * w * f + kappa * w**2 * det * g) / bottom,
            )
            for f, g in zip(follow, goal, strict=True)
        ]
    return Rows(*ends)
