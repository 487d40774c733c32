"""What a model has seen, and how it grows: batches that arrive, and batches that are forgotten.

Everything a row of the adapter depends on is kept as moments, so old cells are never read again:

- the *reference*: batches that were fitted together, each row with the weight
  :math:`w = n_b / N_{ref}` among :math:`B_{ref}` batches;
- batches *added* later to a frozen reference, each solved against it alone, as if it were the only
  newcomer: :math:`w = n_b / (N_{ref} + n_b)`, :math:`B = B_{ref} + 1`, target from the reference. No
  order of arrival can matter;
- all moments seen so far, which also hold later cells of known batches. Those do not move a frozen
  row; a refit takes them in.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from ._validate import check_number
from .adapter import Adapter
from .errors import BadValue
from .labels import Labels
from .moments import Moments
from .problem import Problem, Weights
from .solvers import Solution, Solver
from .target import TargetRule

__all__ = ["Method", "Seen"]


@dataclass(frozen=True)
class Method:
    """How adapter rows follow from moments."""

    rule: TargetRule
    solver: Solver
    rounds: int | None
    weights: Weights
    strength: float = 1.0

    def __post_init__(self) -> None:
        check_number("strength", self.strength)
        if self.strength > 1:
            raise BadValue(f"Expected strength between 0 and 1, found {self.strength!r}.")

    def together(
        self, moments: Moments, cells: tuple[Any, Labels] | None = None
    ) -> tuple[Adapter, Solution]:
        """Fit all batches together; ``cells`` are for a solver that visits them again."""
        problem = Problem.of(moments, self.rule(moments), self.weights)
        solution = self.solver.solve(problem, self.rounds, *(cells or (None, None)))
        return self._adapter(moments, solution), solution

    def apart(self, newcomers: Moments, reference: Moments) -> Adapter:
        """Fit each newcomer to a reference that stays as it is."""
        problem = Problem(
            newcomers.mean,
            newcomers.var,
            newcomers.n / (reference.n_cells + newcomers.n),
            reference.batches.size + 1,
            self.rule(newcomers, reference),
            self.weights,
        )
        solution = self.solver.solve(problem, self.rounds)
        return self._adapter(newcomers, solution)

    def _adapter(self, moments: Moments, solution: Solution) -> Adapter:
        return Adapter(moments.batches, solution.scale, solution.shift).eased(self.strength)


@dataclass(frozen=True, eq=False)
class Seen:
    """The moments that the rows of an adapter were fitted to, and all moments seen so far."""

    reference: Moments
    added: Moments
    moments: Moments

    @classmethod
    def first(cls, moments: Moments) -> Seen:
        """What is seen in a first fit: all of it is the reference."""
        return cls(moments, moments.select([]), moments)

    def newcomers(self, moments: Moments) -> Moments:
        """The part of ``moments`` that belongs to batches not seen before."""
        known = set(self.moments.batches.tolist())
        return moments.select([b for b in moments.batches.tolist() if b not in known])

    def add(self, moments: Moments) -> Seen:
        """Take in more cells; batches that are new are added to the frozen reference."""
        newcomers = self.newcomers(moments)
        return Seen(self.reference, self.added.merge(newcomers), self.moments.merge(moments))

    def forget(self, batch: Hashable) -> Seen:
        """Be as if a batch had never been seen."""
        moments = self.moments.drop(batch)
        keep = moments.batches.tolist()
        return Seen(
            self.reference.select([b for b in self.reference.batches.tolist() if b in keep]),
            self.added.select([b for b in self.added.batches.tolist() if b in keep]),
            moments,
        )

    def solve(self, method: Method) -> tuple[Adapter, Solution]:
        """Fit every row anew from what is kept: the reference together, the added ones apart."""
        adapter, solution = method.together(self.reference)
        if self.added.batches.size:
            adapter = adapter.joined(method.apart(self.added, self.reference))
        return adapter, solution
