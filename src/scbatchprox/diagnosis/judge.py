"""The judge: verdicts from numbers. Nothing else compares numbers with limits to decide what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..core.evidence import Decision
from ..targets.population.settings import PopulationSettings
from .kept import Kept
from .levels import Level
from .limits import (
    CONFOUNDED,
    DIFFERENT,
    FAR,
    FAR_FACTOR,
    LARGE_SCALE,
    MIN_KEPT,
    MUCH_REMOVED,
    VERY_FAR,
    VERY_FAR_FACTOR,
)
from .verdict import N_BATCHES, Reason, Verdict

__all__ = ["DEFAULTS", "judge_arriving", "judge_batch", "judge_kept", "judge_place", "with_care"]

DEFAULTS = PopulationSettings()
LEVELS = {
    Decision.NO_EFFECT: Level.NO_EFFECT,
    Decision.REMOVED: Level.REMOVED,
    Decision.WEAK: Level.WEAK,
    Decision.ALONE: Level.ALONE,
}


def judge_batch(
    numbers: Mapping[str, Any],
    decision: Decision | None,
    *,
    settings: PopulationSettings = DEFAULTS,
    by_moments: bool = False,
    n_batches: int = 2,
) -> Verdict:
    """Return the verdict on a batch: what the evidence decided, and reasons for care.

    Without a decision there is no evidence, and only reasons for care count. Numbers that are missing or NaN
    are no reasons. ``by_moments`` is for a target that moves whole batches. ``n_batches`` are all that the
    batch was fitted with.
    """
    if n_batches < 2:
        return Verdict(Level.ALONE, (Reason(N_BATCHES, n_batches, 2),))
    at = _Numbers(numbers)
    verdict = Verdict(Level.REMOVED)
    if decision is not None:
        reason = _reason(decision, at, settings, n_batches)
        verdict = Verdict(LEVELS[decision], () if math.isnan(reason.value) else (reason,))
    beyond = {
        ("composition", DIFFERENT): by_moments and at["composition"] > DIFFERENT,
        ("scale_min", 1 / LARGE_SCALE): at["scale_min"] < 1 / LARGE_SCALE,
        ("scale_max", LARGE_SCALE): at["scale_max"] > LARGE_SCALE,
        ("neighbours_kept", MIN_KEPT): at["neighbours_kept"] < MIN_KEPT,
    }
    found = [Reason(name, at[name], limit) for (name, limit), is_one in beyond.items() if is_one]
    return with_care(verdict, found, at["moved"])


class _Numbers:
    """Numbers by name; NaN is not known."""

    def __init__(self, numbers: Mapping[str, Any]) -> None:
        self.numbers = numbers

    def __getitem__(self, name: str) -> float:
        return float(self.numbers.get(name, np.nan))


def _reason(
    decision: Decision, at: _Numbers, settings: PopulationSettings, n_batches: int
) -> Reason:
    """Return the number that decided, with its limit."""
    own, agreement = at["evidence"], at["agreement"]
    match decision:
        case Decision.ALONE if own > settings.evidence:
            return Reason(N_BATCHES, 1, 2)  # it has evidence, but all others were found to be alone
        case Decision.ALONE | Decision.WEAK:
            return Reason("evidence", own, settings.evidence)
        case Decision.REMOVED if agreement <= settings.agreement and at["smooth"] > 0:
            return Reason("smooth", at["smooth"], 0.0)  # it has no shift, but a smooth part
        case Decision.NO_EFFECT if at["gain"] <= settings.better:
            return Reason("gain", at["gain"], settings.better)
    limit = settings.agreement
    if decision == Decision.NO_EFFECT and agreement > limit:  # among many batches more is needed
        limit = math.sqrt(limit**2 + 2.0 * math.log(max(n_batches - 1.0, 1.0)))
    return Reason("agreement", agreement, limit)


def with_care(verdict: Verdict, reasons: Iterable[Reason], moved: float) -> Verdict:
    """Return the verdict on a batch with further reasons for care; none count if it is not ``moved``."""
    found = tuple(reasons)
    if not found or moved == 0 or verdict.level.needs_force:
        return verdict
    # What speaks for moving the batch is no reason for care.
    return Verdict(Level.WEAK, (() if verdict.level.fine else verdict.reasons) + found)


def judge_kept(columns: Iterable[Kept]) -> list[Reason]:
    """Return reasons for care on all batches: columns to keep that batches tell, or that are removed."""
    return [
        Reason(name, value, limit)
        for column in columns
        for (name, value), limit in zip(
            column.numbers.items(), (CONFOUNDED, MUCH_REMOVED), strict=True
        )
        if value >= limit
    ]


def judge_place(numbers: Mapping[str, Any]) -> Verdict:
    """Return the verdict on how far a new batch lies from an atlas, and on its spread."""
    # A batch near one known batch is close, even if the mean of all cells is far.
    nearest = min(("distance", "nearest_distance"), key=lambda name: float(numbers[name]))
    distance = float(numbers[nearest])
    ratio = 1.0 if np.isnan(numbers["spread_ratio"]) else float(numbers["spread_ratio"])
    factor = max(ratio, 1 / ratio)
    reasons = []
    if distance > FAR:
        reasons.append(Reason(nearest, distance, VERY_FAR if distance > VERY_FAR else FAR))
    if factor > FAR_FACTOR:
        limit = VERY_FAR_FACTOR if factor > VERY_FAR_FACTOR else FAR_FACTOR
        reasons.append(Reason("spread_ratio", ratio, limit if ratio > 1 else 1 / limit))
    if distance > VERY_FAR or factor > VERY_FAR_FACTOR:
        return Verdict(Level.ALONE, tuple(reasons))
    return Verdict(Level.WEAK if reasons else Level.REMOVED, tuple(reasons))


def judge_arriving(
    numbers: Mapping[str, Any], decision: Decision | None, settings: PopulationSettings = DEFAULTS
) -> Verdict:
    """Return the verdict on a new batch of an atlas."""
    place, own = judge_place(numbers), judge_batch(numbers, decision, settings=settings)
    return place if place.level.needs_force else with_care(own, place.reasons, numbers["moved"])
