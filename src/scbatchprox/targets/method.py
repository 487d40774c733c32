"""Targets and solvers by name, and parameters as users give them, become a Method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..core.checks import check_rounds
from ..core.fit import Method
from ..core.solvers import SOLVERS, Solver
from ..core.target import TargetRule, Weights
from ..errors import BadValue, Parameter
from ..options import Options
from .moment import MomentTarget
from .population.target import PopulationTarget

__all__ = ["TARGETS", "method_of", "solver_of", "target_of"]


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


#: All targets. A new target only needs an entry here.
TARGETS: dict[str, Callable[..., TargetRule]] = {
    "moment": MomentTarget,
    "population": PopulationTarget,
}


def target_of(target: str | TargetRule) -> TargetRule:
    """Return a target from its name, with default options, or the object itself."""
    if isinstance(target, str) and target in TARGETS:
        return TARGETS[target]()
    if isinstance(target, str | type) or not hasattr(target, "aim"):
        names = ", ".join(map(repr, TARGETS))
        found, hint = repr(target), ""
        if hasattr(target, "shape") or hasattr(target, "obsm"):  # cells, whose repr is a page
            found = type(target).__name__
            hint = (
                "; for an AnnData call scbatchprox.refine(adata, 'batch'), for an array "
                "BatchProx().fit_transform(Z, batch=labels)"
            )
        raise BadValue(
            "Expected ", Parameter("target"), f" to be one of {names} or a target object, found "
            f"{found}{hint}.",
        )  # fmt: skip
    return target


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
