"""Verdicts in words: the only place that turns one into a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..core.shown import count, names
from .kept import MEASURES
from .levels import Level
from .limits import FAR, FAR_FACTOR
from .verdict import N_BATCHES, Reason, Verdict

__all__ = [
    "FIRST", "NEARNESS", "clauses", "composition_warning", "kept_warning", "place_sentence", "sentence",
    "why",
]  # fmt: skip

#: How far a new batch of an atlas lies, by the level of that; and the word for the first batches.
NEARNESS = {Level.SAFE: "close", Level.WITH_CARE: "far", Level.LEAVE_ALONE: "very far"}
FIRST = "first"
#: Batches that a warning names.
NAMED = 5


def sentence(verdict: Verdict, numbers: Mapping[str, Any], others: str = "other batches") -> str:
    """Return a verdict in words; ``numbers`` are those that it was made from."""
    said = "; ".join(clauses(verdict, numbers, others))
    return f"{verdict.level}: {said}" if said else str(verdict.level)


def why(text: str, level: Level | None) -> str:
    """Return the sentence of a table without its level."""
    return "" if text == level else text.removeprefix(f"{level}: ")


def clauses(
    verdict: Verdict, numbers: Mapping[str, Any], others: str = "other batches"
) -> list[str]:
    """Return the reasons in words; numbers that belong together are in one clause."""
    return list(dict.fromkeys(_clause(r, verdict, numbers, others) for r in verdict.reasons))


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


def composition_warning(batches: list[Any], overlap: bool, diagnosed: bool) -> str:
    """Return the warning that the target is wrong for batches that differ in composition."""
    start = f"Batches differ in composition ({names(batches, NAMED)})"
    hint = "" if diagnosed else "; diagnose=True (--diagnose) gives a verdict per batch"
    if not overlap:
        return (
            f"{start}: a target that moves whole batches puts different populations on top of each "
            f"other; try target='population'{hint}."
        )
    return (
        f"{start} and their populations overlap so much that no target can match them; compare with "
        f"the unrefined embedding{hint}."
    )


def kept_warning(name: str, verdict: Verdict, numbers: Mapping[str, Any]) -> str:
    """Return the warning that a column to keep is removed."""
    (reason,) = clauses(verdict, numbers)
    return f"To keep {name!r}, leave the batches alone or lower strength: {reason}."


def _clause(reason: Reason, verdict: Verdict, numbers: Mapping[str, Any], others: str) -> str:
    value = reason.value
    match reason.name:
        case "matched" if math.isnan(value):
            return (
                "it lies apart from all others: only its mean and shape support moving it, and whether its "
                "cells have partners is unknown"
            )
        case "matched":
            return f"{1 - value:.0%} of its cells have no partner in {others}"
        case "composition" | "distinct":
            return _composition(verdict, numbers)
        case "moved":
            return f"cells move by {value:.2f} of its spread"
        case "scale_min" | "scale_max":
            return f"it is scaled by {numbers['scale_min']:.2f} to {numbers['scale_max']:.2f}"
        case "neighbours_kept":
            return f"cells keep {value:.0%} of their neighbours"
        case "n_cells":
            return f"it has {count(int(value), 'cell')}, too few to know its composition"
        case "distance" | "nearest_distance" | "spread_ratio":
            return f"it is {NEARNESS[verdict.level]} from all batches of the atlas"
    if reason.name == N_BATCHES:
        return "there is no other batch to align it with"
    return _kept(reason.name.rpartition(" ")[0], verdict, numbers)


def _composition(verdict: Verdict, numbers: Mapping[str, Any]) -> str:
    differs = f"its composition differs ({numbers['composition']:.2f}), and"
    overlap, alone = "distinct" in verdict.names, verdict.level.needs_force
    if alone and overlap:
        return (
            f"{differs} populations overlap too much to be matched ({numbers['distinct']:.0%} of the "
            f"variance is between groups of them)"
        )
    if alone:
        return (
            f"its composition is very different from that of the others ({numbers['composition']:.2f}), and "
            f"a target that moves whole batches would merge different populations"
        )
    if overlap:
        return f"{differs} populations overlap so much that no target can match them"
    return f"{differs} only target='population' takes that into account"


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
