"""Targets by name, as users ask for them."""

from __future__ import annotations

from ..errors import BadValue
from .base import TargetRule
from .moment import MomentTarget
from .population.target import PopulationTarget

__all__ = ["TARGETS", "target_of"]

TARGETS: dict[str, type] = {"moment": MomentTarget, "population": PopulationTarget}


def target_of(target: str | TargetRule, variance_matching: bool, eps: float) -> TargetRule:
    """Return the rule of a name, or the rule itself.

    ``variance_matching`` and ``eps`` belong to the moment target, and may not be set for another.
    """
    moment = MomentTarget(variance_matching, eps)
    if isinstance(target, str) and target == "moment":
        return moment
    named = isinstance(target, str) and target == "population"
    if not named and (isinstance(target, str | type) or not hasattr(target, "aim")):
        names = ", ".join(map(repr, TARGETS))
        raise BadValue(
            f"Expected target to be one of {names} or a target object, found {target!r}."
        )
    if moment != MomentTarget():
        raise BadValue(
            f"Expected variance_matching and eps only with target='moment', found them set for "
            f"target={target!r}."
        )
    return PopulationTarget() if isinstance(target, str) else target
