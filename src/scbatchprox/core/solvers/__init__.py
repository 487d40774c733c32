"""Solvers compute the Solution of a Problem. Each is in one file and holds its own options."""

from __future__ import annotations

from ...choices import Solvers
from ...errors import BadValue, Parameter
from .adam import Adam
from .exact import Exact
from .solution import History, Solution, Solver, Visited

__all__ = ["SOLVERS", "Adam", "Exact", "History", "Solution", "Solver", "Visited", "solver_of"]

#: Solvers by the name that users pass and that files store.
SOLVERS: dict[str, type[Exact] | type[Adam]] = {
    Solvers.exact.value: Exact,
    Solvers.adam.value: Adam,
}


def solver_of(solver: str | Solver) -> Solver:
    """Return a solver from its name, with default options, or the object itself."""
    if isinstance(solver, str) and solver in SOLVERS:
        return SOLVERS[solver]()
    if not isinstance(solver, str | type) and callable(getattr(solver, "solve", None)):
        return solver
    names = ", ".join(map(repr, SOLVERS))
    raise BadValue(
            "Expected ", Parameter("solver"), f" to be one of {names} or a solver object, found {solver!r}."
        )  # fmt: skip
