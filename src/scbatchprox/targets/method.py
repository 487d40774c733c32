"""Parameters, as users give them, become a Method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core.fit import Method
from ..core.problem import Weights
from ..core.solvers import solver_of
from ..core.solvers.solution import check_rounds
from ..options import Options
from .by_name import target_of

__all__ = ["method_of"]


def method_of(options: Options, consensus: Any = None) -> Method:
    """Return target, solver, rounds and weights as objects; raise if a parameter is wrong.

    If there is a consensus of an earlier fit, the constants of the target are those that it was made with:
    a later release may have other defaults.
    """
    rule: Any = target_of(options.target)
    weights = Weights(options.lambda_target, options.mu, options.lambda_id)
    if consensus is not None and hasattr(rule, "settings"):
        rule = replace(rule, settings=consensus.settings)
    rounds = options.rounds
    number = rule.default_rounds if rounds == "auto" else check_rounds(rounds)
    return Method(rule, solver_of(options.solver), number, weights, options.strength)
