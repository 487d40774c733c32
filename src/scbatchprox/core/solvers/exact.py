r"""The federated procedure in closed form.

The two penalties of client :math:`b` are together one penalty on the distance of its copy from
:math:`\kappa\,\theta_t`, a point between the current adapter and the identity, with
:math:`\kappa = \mu/(\mu+\nu)`. From there client b moves row :math:`b` towards the target; in the copies of
all other clients row :math:`b` is :math:`\kappa\,\theta_t`. The average is

.. math:: y_{t+1} = \kappa y_t + w K (y^* - \kappa y_t)

with :math:`y = (u, v)` of :mod:`scbatchprox.core.problem` and :math:`K` its response matrix for
:math:`a = \lambda_{target}/d`, :math:`p = \mu + \nu`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...progress import Progress, silent
from ..checks import check_rounds
from ..labels import Labels
from ..problem import Problem, RelativeRows, Response, Solution

__all__ = ["Exact"]

#: Rounds that are run one by one, each with an entry in the history; all later ones are one step.
LOOPED = 1000


@dataclass(frozen=True)
class Exact:
    """Rounds of exact client solves and sample-size-weighted averaging; no loop over cells.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [2.0], [5.0], [7.0]])
    >>> batch = ["a", "a", "b", "b"]
    >>> from scbatchprox import Exact, Moments, MomentTarget, Problem, Weights
    >>> moments = Moments.of(Z, batch)
    >>> problem = Problem.of(moments, MomentTarget(variance_matching=False)(moments), Weights())
    >>> Exact().solve(problem, rounds=None).converged
    True
    """

    needs_cells: ClassVar[bool] = False

    def solve(
        self,
        problem: Problem,
        rounds: int | None,
        Z: Any = None,
        labels: Labels | None = None,
        progress: Progress = silent,
    ) -> Solution:
        """Run ``rounds`` rounds from the identity; ``None`` gives their fixed point."""
        rounds = check_rounds(rounds)
        p = problem.weights.mu + problem.nu
        # Without penalties the other clients do not change the row: kappa = 1, the limit nu -> 0.
        kappa = problem.weights.mu / p if p > 0 else 1.0
        K = problem.response(problem.a, p)
        if rounds is None:
            path = [(0.0, problem.identity()), (math.inf, _fixed_point(problem, K, kappa, p))]
            return Solution.of(problem, path, converged=True)
        return Solution.of(problem, _rounds(problem, K, kappa, rounds))


def _rounds(
    problem: Problem, K: Response, kappa: float, rounds: int
) -> Iterator[tuple[float, RelativeRows]]:
    """Yield the rows after each of the first rounds, and after the last two."""
    w, goal = problem.share[:, None], problem.goal

    def next_round(rows: RelativeRows) -> RelativeRows:
        held = RelativeRows(kappa * rows.u, kappa * rows.v)
        pull = K.of(RelativeRows(goal.u - held.u, goal.v - held.v))
        return RelativeRows(held.u + w * pull.u, held.v + w * pull.v)

    rows = problem.identity()
    yield 0, rows
    for t in range(1, min(rounds, LOOPED) + 1):
        rows = next_round(rows)
        yield t, rows
    if rounds > LOOPED:
        if rounds > LOOPED + 1:
            rows = _jump(problem, K, kappa, rounds - LOOPED - 1).of(rows)
            yield rounds - 1, rows
        yield rounds, next_round(rows)  # one by one, since its size tells whether rounds converged


class _Step(NamedTuple):
    """Several rounds at once: rows y become A y + c."""

    A: Response
    c: RelativeRows

    def of(self, rows: RelativeRows) -> RelativeRows:
        moved = self.A.of(rows)
        return RelativeRows(moved.u + self.c.u, moved.v + self.c.v)

    def after(self, first: _Step) -> _Step:
        return _Step(self.A.times(first.A), self.of(first.c))


def _jump(problem: Problem, K: Response, kappa: float, rounds: int) -> _Step:
    """Many rounds in as many steps as their number has binary digits, by repeated squaring."""
    wK = Response(*(problem.share[:, None] * entry for entry in K))
    one = np.ones_like(wK.uu)
    A = Response(kappa * (one - wK.uu), -kappa * wK.uv, -kappa * wK.vu, kappa * (one - wK.vv))
    step = _Step(A, wK.of(problem.goal))
    total = _Step(Response(one, 0.0 * one, 0.0 * one, one), problem.identity())
    while rounds:
        if rounds % 2:
            total = step.after(total)
        step, rounds = step.after(step), rounds // 2
    return total


def _fixed_point(problem: Problem, K: Response, kappa: float, p: float) -> RelativeRows:
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
    # For a constant coordinate without penalties the rounds converge to the projection.
    singular = bottom == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = [
            np.where(
                singular,
                np.where(K.trace > 0, f / K.trace, 0.0),
                (rest * w * f + kappa * w**2 * det * g) / bottom,
            )
            for f, g in zip(follow, goal, strict=True)
        ]
    return RelativeRows(*ends)
