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
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from ..errors import BadValue
from ..kernels.arrays import Ints
from ..targets.base import Summary, TargetRule
from .adapter import Adapter
from .checks import check_number
from .conditioned import PopulationAdapter
from .labels import Labels
from .populations import Populations
from .problem import Problem, Weights
from .solvers import Solution, Solver

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
        if not self.rule.registers:
            return
        if self.solver.needs_cells:
            raise BadValue(
                f"Expected solver='exact' for target='population', which is solved when populations are "
                f"registered, found {self.solver!r}."
            )
        if self.rounds is None:
            raise BadValue(
                "Expected a whole number of rounds for target='population', found None: only the rounds "
                "of the moment target have a fixed point."
            )

    def together(
        self, summary: Summary, cells: tuple[Any, Labels] | None = None
    ) -> tuple[AnyAdapter, Solution, Any]:
        """Fit all batches together; ``cells`` are for a solver that visits them again.

        Returns the adapter, the solution, and the consensus of a target that has one.
        """
        target, consensus = self.rule.aim(summary, self.weights, self.rounds)
        problem = Problem.of(self.rule.rows(summary), target, self.weights)
        return *self._solved(summary, problem, cells or (None, None)), consensus

    def apart(self, newcomers: Summary, reference: Summary, consensus: Any = None) -> AnyAdapter:
        """Fit each newcomer to a reference that stays as it is."""
        if not self.rule.conditioned:
            return self._apart(newcomers, reference, consensus, newcomers.by_batch.n, 1)
        alone = [newcomers.select([batch]) for batch in newcomers.batches.tolist()]
        first, *others = (
            self._apart(one, reference, consensus, one.n_cells, one.rows.n.size) for one in alone
        )
        return reduce(_joined, others, first)

    def _apart(
        self,
        newcomers: Summary,
        reference: Summary,
        consensus: Any,
        arriving: Ints | int,
        n_rows: int,
    ) -> AnyAdapter:
        known = self.rule.rows(reference)
        problem = Problem.newcomers(
            self.rule.rows(newcomers),
            arriving,
            known,
            known.n.size + n_rows,
            self.rule.join(newcomers, reference, consensus, self.weights, self.rounds),
            self.weights,
        )
        return self._solved(newcomers, problem, (None, None))[0]

    def _solved(
        self, summary: Summary, problem: Problem, cells: tuple[Any, Any]
    ) -> tuple[AnyAdapter, Solution]:
        # Where registration has held rows back already, they go all the way.
        rounds = self.rounds if problem.target.settled is None else None
        if not self.rule.conditioned:
            solution = self.solver.solve(problem, rounds, *cells)
            whole = Adapter(summary.batches, solution.scale, solution.shift)
            return whole.eased(self.strength), solution
        assert isinstance(summary, Populations)  # what such a rule asks for
        # Batches of one population each have nothing to be conditioned on: their rows are the paper's.
        alike = summary.rows.n.size == summary.batches.size
        solution = self.solver.solve(problem if alike else problem.about_means(), rounds)
        origin = 0.0 if alike else summary.rows.mean * (solution.scale - 1.0)
        rule: Any = self.rule
        rows = solution.scale, solution.shift - origin
        adapter = PopulationAdapter.of(summary, *rows, rule.settings.bandwidth)
        return adapter.eased(self.strength), solution


def _joined(a: Any, b: Any) -> AnyAdapter:
    """Rows of two adapters of one kind."""
    both: AnyAdapter = a.joined(b)
    return both


@dataclass(frozen=True, eq=False)
class Seen:
    """The moments that the rows of an adapter were fitted to, and all moments seen so far.

    And the consensus that the reference was registered to, for a target that has one: a batch that arrives
    later needs no more of the reference.
    """

    reference: Any  # Summary, all three of one kind
    added: Any
    moments: Any
    consensus: Any = None

    @classmethod
    def first(cls, moments: Summary, consensus: Any = None) -> Seen:
        """What is seen in a first fit: all of it is the reference."""
        return cls(moments, moments.select([]), moments, consensus)

    def newcomers(self, moments: Any) -> Any:
        """The part of ``moments`` that belongs to batches not seen before."""
        known = set(self.moments.batches.tolist())
        return moments.select([b for b in moments.batches.tolist() if b not in known])

    def add(self, moments: Summary) -> Seen:
        """Take in more cells; batches that are new are added to the frozen reference."""
        newcomers = self.newcomers(moments)
        return replace(self, added=self.added.merge(newcomers), moments=self.moments.merge(moments))

    def forget(self, batch: Hashable) -> Seen:
        """Be as if a batch had never been seen."""
        moments = self.moments.drop(batch)
        keep = moments.batches.tolist()
        return Seen(
            self.reference.select([b for b in self.reference.batches.tolist() if b in keep]),
            self.added.select([b for b in self.added.batches.tolist() if b in keep]),
            moments,
            self.consensus,
        )

    def solve(self, method: Method) -> tuple[Seen, AnyAdapter, Solution]:
        """Fit every row anew from what is kept: the reference together, the added ones apart."""
        adapter, solution, consensus = method.together(self.reference)
        if self.added.batches.size:
            adapter = _joined(adapter, method.apart(self.added, self.reference, consensus))
        return replace(self, consensus=consensus), adapter, solution
