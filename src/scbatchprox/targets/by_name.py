"""Targets by the names that users pass."""

from __future__ import annotations

from collections.abc import Callable

from ..core.target import TargetRule
from ..errors import BadValue, Parameter
from .moment import MomentTarget
from .population.target import PopulationTarget

__all__ = ["TARGETS", "target_of"]

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
