"""What a model has seen, and how it grows: batches that arrive, and batches that are forgotten.

Everything a row of the adapter depends on is kept as moments (of batches, or of their populations), so
old cells are never read again:

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
from functools import reduce
from typing import Any

from ._types import Ints
from ._validate import check_number
from .adapter import Adapter
from .conditioned import PopulationAdapter
from .errors import BadValue
from .labels import Labels
from .populations import Populations
from .problem import Problem, Weights
from .solvers import Solution, Solver
from .target import Summary, TargetRule

__all__ = ["AnyAdapter", "Method", "Seen"]

#: Either kind of adapter: they have the same verbs.
AnyAdapter = Adapter | PopulationAdapter


@dataclass(frozen=True)
class Method:
    """How adapter rows follow from what is known of cells."""

    rule: TargetRule
    solver: Solver
    rounds: int | None
    weights: Weights
    strength: float = 1.0

    def __post_init__(self) -> None:
        check_number("strength", self.strength)
        if self.strength > 1:
            raise BadValue(f"Expected strength between 0 and 1, found {self.strength!r}.")
        if self.rule.conditioned and self.solver.needs_cells:
            raise BadValue(
                f"Expected solver='exact' for adapters that are conditioned on populations, found "
                f"{self.solver!r}; PopulationTarget(conditioned=False) has one row per batch."
            )

    def together(
        self, summary: Summary, cells: tuple[Any, Labels] | None = None
    ) -> tuple[AnyAdapter, Solution]:
        """Fit all batches together; ``cells`` are for a solver that visits them again."""
        problem = Problem.of(self.rule.rows(summary), self.rule(summary), self.weights)
        return self._solved(summary, problem, cells or (None, None))

    def apart(self, newcomers: Summary, reference: Summary) -> AnyAdapter:
        """Fit each newcomer to a reference that stays as it is."""
        if not self.rule.conditioned:
            return self._apart(newcomers, reference, newcomers.by_batch.n, 1)
        alone = [newcomers.select([batch]) for batch in newcomers.batches.tolist()]
        first, *others = (
            self._apart(one, reference, one.n_cells, one.rows.n.size) for one in alone
        )
        return reduce(_joined, others, first)

    def _apart(
        self, newcomers: Summary, reference: Summary, arriving: Ints | int, n_rows: int
    ) -> AnyAdapter:
        known = self.rule.rows(reference)
        problem = Problem.newcomers(
            self.rule.rows(newcomers),
            arriving,
            known,
            known.n.size + n_rows,
            self.rule(newcomers, reference),
            self.weights,
        )
        return self._solved(newcomers, problem, (None, None))[0]

    def _solved(
        self, summary: Summary, problem: Problem, cells: tuple[Any, Any]
    ) -> tuple[AnyAdapter, Solution]:
        if not self.rule.conditioned:
            solution = self.solver.solve(problem, self.rounds, *cells)
            rows = Adapter(summary.batches, solution.scale, solution.shift)
            return rows.eased(self.strength), solution
        assert isinstance(summary, Populations)  # what such a rule asks for
        # Batches of one population each have nothing to be conditioned on: their rows are the paper's.
        whole = summary.rows.n.size == summary.batches.size
        solution = self.solver.solve(problem if whole else problem.about_means(), self.rounds)
        origin = 0.0 if whole else summary.rows.mean * (solution.scale - 1.0)
        adapter = PopulationAdapter.of(summary, solution.scale, solution.shift - origin)
        return adapter.eased(self.strength), solution


def _joined(a: Any, b: Any) -> AnyAdapter:
    """Rows of two adapters of one kind."""
    both: AnyAdapter = a.joined(b)
    return both


@dataclass(frozen=True, eq=False)
class Seen:
    """The moments that the rows of an adapter were fitted to, and all moments seen so far."""

    reference: Any  # Summary, all three of one kind
    added: Any
    moments: Any

    @classmethod
    def first(cls, moments: Summary) -> Seen:
        """What is seen in a first fit: all of it is the reference."""
        return cls(moments, moments.select([]), moments)

    def newcomers(self, moments: Any) -> Any:
        """The part of ``moments`` that belongs to batches not seen before."""
        known = set(self.moments.batches.tolist())
        return moments.select([b for b in moments.batches.tolist() if b not in known])

    def add(self, moments: Summary) -> Seen:
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

    def solve(self, method: Method) -> tuple[AnyAdapter, Solution]:
        """Fit every row anew from what is kept: the reference together, the added ones apart."""
        adapter, solution = method.together(self.reference)
        if self.added.batches.size:
            adapter = _joined(adapter, method.apart(self.added, self.reference))
        return adapter, solution
