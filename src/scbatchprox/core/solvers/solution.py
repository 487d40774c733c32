"""What a solver returns: adapter rows, how it got there, and whether it arrived."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import pandas as pd

from ...errors import BadValue
from ...kernels.arrays import Floats
from ..labels import Labels
from ..problem import Problem, Rows

__all__ = ["History", "Solution", "Solver", "check_rounds"]

#: A run has converged when its last round changed the adapter by less than this part of its change.
CONVERGED = 1e-6


@dataclass(frozen=True, eq=False)
class History:
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
        :math:`\lVert \Theta_t - \Theta_{t-1} \rVert_F`; zero for the start.
    """

    round: Floats
    objective: Floats
    distance: Floats
    step: Floats

    @classmethod
    def of(cls, problem: Problem, path: Iterable[Rows], rounds: Iterable[float]) -> History:
        """Score every adapter on the path of a run."""
        objective, distance, step = [], [], []
        before: tuple[Floats, Floats] | None = None
        for rows in path:
            scale, shift = problem.scale_shift(rows)
            last_scale, last_shift = before or (scale, shift)
            step.append(
                float(np.sqrt(((scale - last_scale) ** 2 + (shift - last_shift) ** 2).sum()))
            )
            objective.append(problem.objective(rows))
            distance.append(float(np.sqrt(problem.share @ problem.distance(rows).sum(1))))
            before = scale, shift
        return cls(*(np.array(x, float) for x in (list(rounds), objective, distance, step)))

    def frame(self) -> pd.DataFrame:
        """Return the history as a table."""
        return pd.DataFrame(vars(self))


@dataclass(frozen=True, eq=False)
class Solution:
    """Fitted rows of the adapter.

    Attributes
    ----------
    scale, shift
        (B, d) each.
    history
        Per round.
    converged
        Whether another round would change the adapter by less than one part in a million. Stopping
        early is how the refinement is kept conservative, so ``False`` is no failure.
    """

    scale: Floats
    shift: Floats
    history: History
    converged: bool

    @classmethod
    def of(
        cls,
        problem: Problem,
        path: list[Rows],
        rounds: Iterable[float],
        converged: bool | None = None,
    ) -> Solution:
        """Return the end of a path of adapters that starts at the identity."""
        history = History.of(problem, path, rounds)
        scale, shift = problem.scale_shift(path[-1])
        if converged is None:
            moved = float(np.sqrt(((scale - 1.0) ** 2 + shift**2).sum()))
            converged = bool(len(path) > 1 and history.step[-1] <= CONVERGED * moved)
        return cls(scale, shift, history, converged)


class Solver(Protocol):
    """Anything that fits adapter rows to a problem."""

    #: Whether it visits the cells again, so that they must be in memory.
    needs_cells: ClassVar[bool]

    def solve(
        self, problem: Problem, rounds: int | None, Z: Any = None, labels: Labels | None = None
    ) -> Solution:
        """Run ``rounds`` rounds (``None``: to the end). Cells are offered; few solvers need them."""
        ...


def check_rounds(rounds: Any) -> int | None:
    """Check a number of rounds."""
    if rounds is None:
        return None
    if isinstance(rounds, bool) or not isinstance(rounds, int | np.integer) or rounds < 0:
        raise BadValue(
            f"Expected rounds to be a whole number >= 0, or None for the fixed point, "
            f"found {rounds!r}."
        )
    return int(rounds)
