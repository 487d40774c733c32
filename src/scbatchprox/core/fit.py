"""A fitted model, and how it changes when batches are added or forgotten.

The model keeps moments, which determine all rows of the adapter, so old cells are never read again:

- the *reference*: batches that were fitted together, each row with the weight
  :math:`w = n_b / N_{ref}` among :math:`B_{ref}` batches;
- batches *added* later to a frozen reference. Each is fitted to the reference only, as if it were the
  only new batch: :math:`w = n_b / (N_{ref} + n_b)`, :math:`B = B_{ref} + 1`, target from the reference.
  The order of arrival does not matter;
- the *moments* of all cells so far. They include later cells of known batches, which do not change a
  frozen row but count in a refit.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..errors import BadValue, Parameter
from .adapter import Adapter
from .checks import check_number, overflow_error, some_of
from .moments import Moments, Pooled
from .problem import Problem
from .shown import PrintsFacts
from .solvers import History, Solution, Solver, Visited
from .target import Aim, Evidence, Exchange, TargetRule, Trace, Weights, itself

__all__ = ["Fit", "Method"]

#: More rounds of registration would take hours and change nothing: they have no fixed point to reach.
MOST_ROUNDS = 1_000


@dataclass(frozen=True)
class Method:
    """How adapter rows are computed from moments: target, solver, rounds, weights and strength.

    Examples
    --------
    >>> from scbatchprox import Exact, Method, MomentTarget, Weights
    >>> Method(MomentTarget(), Exact(), rounds=3, weights=Weights()).strength
    1.0
    """

    rule: TargetRule
    solver: Solver
    rounds: int | None
    weights: Weights
    strength: float = 1.0

    def __post_init__(self) -> None:
        check_number("strength", self.strength)
        if self.strength > 1:
            raise BadValue(
                "Expected ", Parameter("strength"), f" between 0 and 1, found {self.strength!r}."
            )  # fmt: skip
        if not self.rule.registers:
            return
        if self.solver.needs_cells:
            raise BadValue(
                "Expected ", Parameter("solver='exact'"), " for ", Parameter("target='population'"),
                f", which is found by registration, found {self.solver!r}.",
            )  # fmt: skip
        if self.rounds is None:
            raise BadValue(
                "Expected a whole number of rounds for ", Parameter("target='population'"),
                ", found None: only the rounds of the moment target have a fixed point.",
            )  # fmt: skip
        if self.rounds > MOST_ROUNDS:
            raise BadValue(
                f"Expected up to {MOST_ROUNDS:,} rounds for ", Parameter("target='population'"),
                f", which needs about 10, found {self.rounds:,}.",
            )  # fmt: skip

    def together(
        self,
        moments: Moments,
        cells: Visited | None = None,
        pooled: Pooled | None = None,
        exchange: Exchange = itself,
    ) -> tuple[Adapter, Solution, Aim]:
        """Fit batches together; return the adapter, the solution, and what the target found.

        ``cells`` are for solvers that visit the cells again. ``pooled`` describes all batches, if
        ``moments`` are those of some of them, and ``exchange`` adds up other sums over all.
        """
        self.rule.check(moments)
        aim = self.rule.aim(moments, self.weights, self.rounds, pooled, exchange)
        among = () if pooled is None else (pooled.n_cells, pooled.n_batches)
        rows = self.rule.rows(moments)
        solution = self._solution(rows, aim, among, cells)
        return self._adapter(rows, solution), solution, aim

    def apart(
        self, added: Moments, pooled: Pooled, consensus: Any = None
    ) -> tuple[Adapter, Evidence]:
        """Fit each new batch to a fixed reference; ``pooled`` describes all of the reference."""
        parts = [added]
        if self.rule.registers:
            # One at a time: the result for a batch must not depend on which others arrive with it.
            parts = [added.select([batch]) for batch in added.batches.tolist()]
        first, *others = (self._apart(part, pooled, consensus) for part in parts)
        adapter, evidence = first
        for rows, known in others:
            adapter, evidence = adapter.joined(rows), evidence.joined(known)
        return adapter, evidence

    def _apart(self, added: Moments, pooled: Pooled, consensus: Any) -> tuple[Adapter, Evidence]:
        rows = self.rule.rows(added)
        aim = self.rule.join(added, pooled, consensus, self.weights, self.rounds)
        among = pooled.n_cells + added.by_batch.n[rows.batch], pooled.n_batches + 1
        adapter = self._adapter(rows, self._solution(rows, aim, among))
        return adapter, aim.evidence or Evidence.none()

    def _solution(
        self, rows: Moments, aim: Aim, among: tuple[Any, ...], cells: Visited | None = None
    ) -> Solution:
        target, told = aim.target, ()
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # looked at below
            if aim.evidence is not None:
                # These rounds have no fixed point: centres are seeded again every few rounds.
                trace = aim.trace or Trace.none()
                found = Solution(target.scale, target.shift, trace, converged=False)
            else:
                problem = Problem.of(rows, target, self.weights, *among)
                found = self.solver.solve(problem, self.rounds, *(cells or ()))
                told = tuple(vars(found.history).values())[1:]  # the fixed point is round infinity
        if not all(np.isfinite(part).all() for part in (found.scale, found.shift, *told)):
            raise overflow_error()
        return found

    def _adapter(self, rows: Moments, solution: Solution) -> Adapter:
        bandwidth = None if rows.anchors is None else self.rule.bandwidth * rows.within
        found = solution.scale, solution.shift, rows.anchors, bandwidth
        return Adapter(rows.batches, rows.batch, *found).eased(self.strength)


@dataclass(frozen=True, eq=False, repr=False)
class Fit(PrintsFacts):
    """A fitted model, which all interfaces share and which is saved. Its methods return new models.

    Attributes
    ----------
    method
        How the rows were fitted.
    reference, added, moments
        Moments of the batches that were fitted together, of those added later, and of all cells so far.
    adapter
        The fitted map.
    history, converged
        Of the fit of the reference: a :class:`History` of a solver, or a :class:`Trace` of a registration.
    consensus
        The consensus that batches were registered to, if the target has one. It is all that a later batch
        needs of the reference.
    pooled
        Moments of the whole reference, if other sites hold some of its batches.
    evidence
        What the target found out about each batch, also about added ones; empty if it has no evidence.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [2.0], [5.0], [7.0]])
    >>> batch = ["a", "a", "b", "b"]
    >>> from scbatchprox import Exact, Fit, Method, Moments, MomentTarget, Weights
    >>> method = Method(MomentTarget(), Exact(), rounds=3, weights=Weights())
    >>> fit = Fit.of(method, Moments.of(Z, batch))
    >>> fit.reference.batches.tolist(), fit.added.batches.tolist()
    (['a', 'b'], [])
    """

    method: Method
    reference: Moments
    added: Moments
    moments: Moments
    adapter: Adapter
    history: History | Trace
    converged: bool
    consensus: Any = None
    pooled: Pooled | None = None
    evidence: Evidence = field(default_factory=Evidence.none)

    def _facts(self) -> str:
        rounds = "the fixed point" if self.method.rounds is None else f"{self.method.rounds} rounds"
        cells, others = self.elsewhere
        more = f" and {cells:,} cells in {others:,} batches elsewhere" * bool(others)
        return f"{self.moments._facts()}{more}; {self.method.rule!r}, {rounds}"

    @property
    def elsewhere(self) -> tuple[int, int]:
        """Numbers of cells and of batches of the reference that other sites hold, not this model."""
        if self.pooled is None:
            return 0, 0
        here = self.reference
        return self.pooled.n_cells - here.n_cells, self.pooled.n_batches - int(here.batches.size)

    @classmethod
    def of(
        cls,
        method: Method,
        moments: Moments,
        cells: Visited | None = None,
        pooled: Pooled | None = None,
        exchange: Exchange = itself,
    ) -> Fit:
        """Fit batches together: they are the reference.

        If they are some of its batches, ``pooled`` describes all, and ``exchange`` adds up sums over all.
        """
        check_cells_in_every_batch(moments)
        adapter, solution, aim = method.together(moments, cells, pooled, exchange)
        return cls(
            method,
            moments,
            moments.select([]),
            moments,
            adapter,
            solution.history,
            solution.converged,
            aim.consensus,
            pooled,
            aim.evidence or Evidence.none(),
        )

    @property
    def everyone(self) -> Pooled:
        """All batches of the reference together."""
        return self.reference.by_batch.pooled() if self.pooled is None else self.pooled

    def published(self) -> Fit:
        """The model without its batches: what a later batch needs to be added, elsewhere too.

        It has the moments of all cells of the reference together, and the consensus.
        """
        none = self.moments.select([])
        return replace(
            self,
            reference=none,
            added=none,
            moments=none,
            adapter=self.adapter.select([]),
            history=type(self.history).none(),
            pooled=self.everyone,
            evidence=self.evidence.select([]),
        )

    def new_batches(self, moments: Moments) -> Moments:
        """The part of ``moments`` that belongs to new batches."""
        known = set(self.moments.batches.tolist())
        return moments.select([b for b in moments.batches.tolist() if b not in known])

    def grown(self, more: Moments) -> Fit:
        """Add cells. No existing row changes; new batches get new rows."""
        self.method.rule.check(more)
        check_cells_in_every_batch(more)
        added = self.new_batches(more)
        after = replace(self, added=self.added.merge(added), moments=self.moments.merge(more))
        return after._with_rows(added)

    def _with_rows(self, added: Moments) -> Fit:
        """Give new batches their rows: each is fitted to the reference only."""
        if not added.batches.size:
            return self
        rows, known = self.method.apart(added, self.everyone, self.consensus)
        return replace(
            self, adapter=self.adapter.joined(rows), evidence=self.evidence.joined(known)
        )

    def refitted(self, more: Moments, method: Method) -> Fit:
        """Add cells and fit all batches together."""
        method.rule.check(more)
        check_cells_in_every_batch(more)
        self._check_own("refit")
        return Fit.of(method, self.moments.merge(more))

    def forgotten(self, batch: Hashable) -> Fit:
        """Return the model as if a batch had never been seen.

        For an added batch only its rows are removed. For a batch of the reference all rows are fitted
        again: the reference together, the added batches one by one.
        """
        moments = self.moments.drop(batch)
        if batch in self.added.batches.tolist():
            return replace(
                self,
                added=self.added.drop(batch),
                moments=moments,
                adapter=self.adapter.without(batch),
                evidence=self.evidence.without(batch),
            )
        if self.reference.batches.size == 1:
            raise BadValue(
                f"Expected at least one more batch in the reference, found that {batch!r} is its last; "
                f"fit a new model instead."
            )
        self._check_own("forget a batch of the reference")
        base = Fit.of(self.method, self.reference.drop(batch))._with_rows(self.added)
        return replace(base, added=self.added, moments=moments)

    def _check_own(self, what: str) -> None:
        _, others = self.elsewhere
        if others:
            raise BadValue(
                f"Expected all batches of the reference in this model to {what}, found that other sites "
                f"hold {others} of them; fit all sites again."
            )


def check_cells_in_every_batch(moments: Moments) -> None:
    """Refuse batches without cells: they would count as batches and have no mean."""
    empty = moments.batches[moments.by_batch.n == 0]
    if empty.size or not moments.batches.size:
        raise BadValue(f"Expected cells in every batch, found none in {some_of(empty.tolist())}.")
