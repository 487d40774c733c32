"""Solvers compute the Solution of a Problem. Each is in one file and holds its own options."""

from __future__ import annotations

from ...choices import Solvers
from ..problem import History, Solution, Solver, Visited
from .adam import Adam
from .exact import Exact

__all__ = ["SOLVERS", "Adam", "Exact", "History", "Solution", "Solver", "Visited"]

#: Solvers by the name that users pass and that files store.
SOLVERS: dict[str, type[Exact] | type[Adam]] = {
    Solvers.exact.value: Exact,
    Solvers.adam.value: Adam,
}
