"""Targets by name, as users ask for them."""

from __future__ import annotations

from ..core.target import TargetRule
from ..errors import BadValue
from .moment import MomentTarget
from .population.target import PopulationTarget

__all__ = ["TARGETS", "target_of"]

#: A new target is listed here, and is then known to every door.
TARGETS: dict[str, type[MomentTarget] | type[PopulationTarget]] = {
    "moment": MomentTarget,
    "population": PopulationTarget,
}


def target_of(target: str | TargetRule) -> TargetRule:
    """Return the target of a name, with its default options, or the target itself."""
    if isinstance(target, str) and target in TARGETS:
        return TARGETS[target]()
    if isinstance(target, str | type) or not hasattr(target, "aim"):
        names = ", ".join(map(repr, TARGETS))
        raise BadValue(
            f"Expected target to be one of {names} or a target object, found {target!r}."
        )
    return target
