"""What a solver returns: adapter rows, the history of the rounds, and whether they converged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from ...kernels.arrays import Floats
from ...progress import Progress, silent
from ..evidence import Rounds, Trace
from ..labels import Labels
from ..problem import Problem, Rows
from ..shown import Facts, count

__all__ = ["History", "Solution", "Solver", "Visited"]

#: For a solver that visits cells: the embedding, its labels, and what is called after every round.
Visited = tuple[Any, Labels] | tuple[Any, Labels, Progress]

#: A run has converged if its last round changed the adapter by less than this part of the total change.
CONVERGED = 1e-6


@dataclass(frozen=True, eq=False, repr=False)
class History(Rounds):
    r"""One entry per round, starting with the identity.

    Attributes
    ----------
    round
        0, 1, 2, ...; infinity for the fixed point.
    objective
        The centralised objective :math:`F(\Theta)`.
    distance
        Root mean squared distance of a cell to its target.
    step
        :math:`\lVert \Theta_t - \Theta_{t-1} \rVert_F`; zero for the identity.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [2.0], [5.0], [7.0]] * 10)
    >>> batch = ["a", "a", "b", "b"] * 10
    >>> from scbatchprox import BatchProx
    >>> history = BatchProx(target="moment", rounds=2).fit(Z, batch=batch).history_
    >>> history.frame()["round"].tolist()
    [0.0, 1.0, 2.0]
    >>> bool(history.distance[-1] < history.distance[0])
    True
    """

    objective: Floats
    distance: Floats
    step: Floats

    def _ended(self) -> str:
        distance = f"distance to the target {self.distance[0]:.3g} to {self.distance[-1]:.3g}"
        last = self.round[-1]
        return f"{'the fixed point' if np.isinf(last) else count(int(last), 'round')}, {distance}"

    @classmethod
    def of(cls, problem: Problem, path: Iterable[tuple[float, Rows]]) -> History:
        """Return the history of a path of adapters, each with the number of its round."""
        rounds, objective, distance, step = [], [], [], []
        before: tuple[Floats, Floats] | None = None
        for number, rows in path:
            rounds.append(number)
            scale, shift = problem.scale_shift(rows)
            last_scale, last_shift = before or (scale, shift)
            step.append(
                float(np.sqrt(((scale - last_scale) ** 2 + (shift - last_shift) ** 2).sum()))
            )
            objective.append(problem.objective(rows))
            distance.append(float(np.sqrt(problem.share @ problem.distance(rows).sum(1))))
            before = scale, shift
        return cls(*(np.array(x, float) for x in (rounds, objective, distance, step)))


@dataclass(frozen=True, eq=False, repr=False)
class Solution(Facts):
    """Fitted rows of the adapter.

    Attributes
    ----------
    scale, shift
        (B, d) each.
    history
        Per round: of a solver, or the trace of a registration.
    converged
        Whether another round would change the adapter by less than one part in a million. ``False`` is
        not a failure: few rounds keep the refinement conservative.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [2.0], [5.0], [7.0]])
    >>> batch = ["a", "a", "b", "b"]
    >>> from scbatchprox import Exact, Moments, MomentTarget, Problem, Weights
    >>> moments = Moments.of(Z, batch)
    >>> problem = Problem.of(moments, MomentTarget()(moments), Weights())
    >>> solution = Exact().solve(problem, rounds=3)
    >>> solution.scale.shape, solution.converged
    ((2, 1), False)
    """

    scale: Floats
    shift: Floats
    history: History | Trace
    converged: bool

    def _facts(self) -> str:
        ended = "converged" if self.converged else "not converged"
        rows, coordinates = self.scale.shape
        size = f"{count(rows, 'row')}, {count(coordinates, 'coordinate')}"
        return f"{size}; {self.history._facts()}, {ended}"

    @classmethod
    def of(
        cls,
        problem: Problem,
        path: Iterable[tuple[float, Rows]],
        converged: bool | None = None,
    ) -> Solution:
        """Return the last adapter of a path that starts at the identity; no other one is kept."""
        last = problem.identity()

        def passing() -> Iterator[tuple[float, Rows]]:
            nonlocal last
            for number, rows in path:
                last = rows
                yield number, rows

        history = History.of(problem, passing())
        scale, shift = problem.scale_shift(last)
        if converged is None:
            change = float(np.sqrt(((scale - 1.0) ** 2 + shift**2).sum()))
            converged = bool(history.step.size > 1 and history.step[-1] <= CONVERGED * change)
        return cls(scale, shift, history, converged)


class Solver(Protocol):
    """The interface of solvers, which fit adapter rows to a problem."""

    #: Whether the solver visits the cells again, so that they must be in memory.
    needs_cells: ClassVar[bool]

    def solve(
        self,
        problem: Problem,
        rounds: int | None,
        Z: Any = None,
        labels: Labels | None = None,
        progress: Progress = silent,
    ) -> Solution:
        """Run ``rounds`` rounds (``None``: the fixed point). The rest is for solvers that need cells."""
        ...
