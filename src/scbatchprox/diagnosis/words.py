"""Verdicts in words: the only place that turns one into a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..core.shown import names
from ..errors import Parameter, Part
from .kept import MEASURES
from .levels import Level
from .limits import FAR, FAR_FACTOR
from .verdict import N_BATCHES, Reason, Verdict

__all__ = [
    "FIRST", "NEARNESS", "clauses", "composition_warning", "kept_warning", "place_sentence", "sentence",
]  # fmt: skip

#: How far a new batch of an atlas lies, by the level of that; and the word for the first batches.
NEARNESS = {Level.REMOVED: "close", Level.WEAK: "far", Level.ALONE: "very far"}
FIRST = "first"
#: Batches that a warning names.
NAMED = 5


def sentence(
    verdict: Verdict,
    numbers: Mapping[str, Any],
    others: str = "the others",
    mover: str | None = None,
) -> str:
    """Return a verdict in words; ``numbers`` are those that it was made from.

    ``mover`` is what moves batches without regard to evidence, if anything does.
    """
    said = "; ".join(clauses(verdict, numbers, others, mover))
    return f"{verdict.level}: {said}" if said else str(verdict.level)


def clauses(
    verdict: Verdict,
    numbers: Mapping[str, Any],
    others: str = "the others",
    mover: str | None = None,
) -> list[str]:
    """Return the reasons in words; numbers that belong together are in one clause."""
    found = (_clause(reason, verdict, numbers, others, mover) for reason in verdict.reasons)
    return list(dict.fromkeys(found))


def place_sentence(verdict: Verdict | None, numbers: Mapping[str, Any]) -> str:
    """Return in words how far a new batch lies from an atlas; ``None`` for the first batches."""
    if verdict is None:
        return f"{FIRST}: the atlas has no batches to compare it with"
    said = [
        f"its spread is {reason.value:.3g} times that of the atlas' batches ({1 / FAR_FACTOR:g} to "
        f"{FAR_FACTOR:g} is close)"
        if reason.name == "spread_ratio"
        else f"its mean lies {reason.value:.3g} spreads away (up to {FAR:g} is close)"
        for reason in verdict.reasons
    ]
    distance = min(numbers["distance"], numbers["nearest_distance"])
    said = said or [f"its mean lies {distance:.2f} spreads away"]
    return f"{NEARNESS[verdict.level]}: {' and '.join(said)}"


def composition_warning(batches: list[Any], diagnosed: bool) -> list[Part]:
    """Return the warning that the target is wrong for batches that differ in composition."""
    hint: list[Part] = [
        "; ",
        Parameter("diagnose=True", "--diagnose"),
        " gives a verdict per batch",
    ]
    return [
        f"Batches differ in composition ({names(batches, NAMED)}): a target that moves whole batches puts "
        f"different populations on top of each other; try ", Parameter("target='population'"),
        *([] if diagnosed else hint), ".",
    ]  # fmt: skip


def kept_warning(name: str, reasons: list[Reason], numbers: Mapping[str, Any]) -> list[Part]:
    """Return the warning that a column to keep is removed."""
    (reason,) = clauses(Verdict(Level.WEAK, tuple(reasons)), numbers)
    return [
        f"To keep {name!r}, leave the batches alone or lower ",
        Parameter("strength"),
        f": {reason}.",
    ]


def _clause(
    reason: Reason, verdict: Verdict, numbers: Mapping[str, Any], others: str, mover: str | None
) -> str:
    value = reason.value
    match reason.name:
        case "evidence" | "agreement" | "gain" | "smooth" | "n_batches":
            then = _then(verdict.level, numbers.get("moved", math.nan), mover)
            return _decided(reason, verdict.level, others, mover) + then
        case "composition":
            return (
                f"its composition differs ({value:.2f}), and only target='population' takes that into "
                f"account"
            )
        case "scale_min" | "scale_max":
            return f"it is scaled by {numbers['scale_min']:.2f} to {numbers['scale_max']:.2f}"
        case "neighbours_kept":
            return f"cells keep {value:.0%} of their neighbours"
        case "distance" | "nearest_distance" | "spread_ratio":
            return f"it is {NEARNESS[verdict.level]} from all batches of the atlas"
    return _kept(reason.name.rpartition(" ")[0], verdict, numbers)


def _decided(reason: Reason, level: Level, others: str, mover: str | None) -> str:
    """The number that decided on the level."""
    value, limit = f"{reason.value:.2f}", f"{reason.limit:.2f} needed"
    if reason.name == N_BATCHES:
        return "there is no other batch that it can be compared with"
    if reason.name == "smooth":
        return f"its neighbouring centres agree on a displacement ({value})"
    if reason.name == "gain":
        return (
            f"a shift would hardly bring it nearer to {others} ({value} times, more than {limit})"
        )
    if reason.name == "agreement" and level is Level.NO_EFFECT:
        return f"its centres do not agree on a displacement ({value}, at least {limit})"
    if reason.name == "agreement":
        return f"its centres agree on a displacement ({value})"
    if level is Level.ALONE:
        return f"its geometry fits {others} no better than turned copies of it ({value}, {limit})"
    own = f"its own geometry gives {value} ({limit})"
    return own if mover else f"moved with the others' help, {own}"


def _then(level: Level, moved: float, mover: str | None) -> str:
    """What followed from it, if the level does not say so."""
    stays = level in (Level.NO_EFFECT, Level.ALONE)
    if moved == 0:
        return "; left exactly as it is" if stays else "; these options move nothing"
    if mover and level is not Level.REMOVED:
        return f"; {mover} moves it all the same"
    return ""


def _kept(name: str, verdict: Verdict, numbers: Mapping[str, Any]) -> str:
    names = [f"{name} {what}" for what in MEASURES]
    told, gone = (float(numbers[of]) for of in names)
    few = "one value" if told > 1 - 1e-9 else "almost one value"
    confounded = f"each batch has {few} of {name!r}, so the two cannot be told apart"
    removed = f"the refinement removes {gone:.0%} of the variance between the values of {name!r}"
    match [of in verdict.names for of in names]:
        case [True, True]:
            return f"{confounded}, and {removed}"
        case [True, False]:
            part = "none" if math.isnan(gone) else f"{max(gone, 0.0):.0%}"
            return f"{confounded}; the refinement removes {part} of the variance between its values"
    return removed
