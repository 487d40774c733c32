"""Parameters, as users give them, become a Method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.fit import Method
from ..core.problem import Weights
from ..core.solvers import Solver, solver_of
from ..core.solvers.solution import check_rounds
from ..core.target import TargetRule
from .by_name import target_of

__all__ = ["method_of"]


def method_of(
    target: str | TargetRule,
    solver: str | Solver,
    rounds: int | str | None,
    lambda_target: float,
    mu: float,
    lambda_id: float,
    strength: float,
    consensus: Any = None,
) -> Method:
    """Return target, solver, rounds and weights as objects; raise if a parameter is wrong.

    If there is a consensus of an earlier fit, the constants of the target are those that it was made with:
    a later release may have other defaults.
    """
    rule: Any = target_of(target)
    weights = Weights(lambda_target, mu, lambda_id)
    if consensus is not None and hasattr(rule, "settings"):
        rule = replace(rule, settings=consensus.settings)
    number = rule.default_rounds if rounds == "auto" else check_rounds(rounds)
    return Method(rule, solver_of(solver), number, weights, strength)
