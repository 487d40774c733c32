"""The judge: verdicts from numbers. Nothing else compares numbers with limits to decide what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .kept import MEASURES, Kept
from .levels import Level
from .limits import (
    CONFOUNDED,
    DIFFERENT,
    FAR,
    FAR_FACTOR,
    LARGE_MOVE,
    LARGE_SCALE,
    MANY_UNMATCHED,
    MIN_CELLS,
    MIN_DISTINCT,
    MIN_KEPT,
    MIN_MATCHED,
    MUCH_REMOVED,
    VERY_DIFFERENT,
    VERY_FAR,
    VERY_FAR_FACTOR,
)
from .verdict import N_BATCHES, Reason, Verdict

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "judge_arriving", "judge_batch", "judge_compositions", "judge_kept", "judge_place", "together",
]  # fmt: skip


def judge_batch(
    numbers: Mapping[str, Any],
    by_moments: bool = False,
    by_mean: bool = False,
    n_batches: int = 2,
) -> Verdict:
    """Return the verdict on a batch; numbers that are missing or NaN are no reasons.

    ``by_moments`` is for a target that moves whole batches, ``by_mean`` for a batch that was aligned by its
    mean. ``n_batches`` are all that the batch was fitted with.
    """

    def at(name: str) -> float:
        return float(numbers.get(name, np.nan))

    if n_batches < 2:
        return Verdict(Level.LEAVE_ALONE, (Reason(N_BATCHES, n_batches, 2),))
    variation, overlap = at("composition"), at("distinct") < MIN_DISTINCT
    differs = variation > DIFFERENT and (by_moments or overlap)
    limits: dict[str, float] = {}
    level = Level.LEAVE_ALONE
    if at("matched") < MIN_MATCHED and not by_mean:
        limits["matched"] = MIN_MATCHED
    elif by_moments and variation > VERY_DIFFERENT:
        limits["composition"] = VERY_DIFFERENT
    elif differs and not by_moments:
        limits |= {"composition": DIFFERENT, "distinct": MIN_DISTINCT}
    else:
        found = {
            ("n_cells", MIN_CELLS): at("n_cells") < MIN_CELLS,
            ("matched", 1 - MANY_UNMATCHED): by_mean or 1 - at("matched") > MANY_UNMATCHED,
            ("composition", DIFFERENT): differs,
            ("distinct", MIN_DISTINCT): differs and overlap,
            ("moved", LARGE_MOVE): at("moved") > LARGE_MOVE,
            ("scale_min", 1 / LARGE_SCALE): at("scale_min") < 1 / LARGE_SCALE,
            ("scale_max", LARGE_SCALE): at("scale_max") > LARGE_SCALE,
            ("neighbours_kept", MIN_KEPT): at("neighbours_kept") < MIN_KEPT,
        }
        limits = dict(key for key, beyond in found.items() if beyond)
        level = Level.WITH_CARE if limits else Level.SAFE
    return Verdict(level, tuple(Reason(name, at(name), limit) for name, limit in limits.items()))


def judge_kept(columns: Iterable[Kept]) -> Verdict:
    """Return what columns to keep say of all batches."""
    reasons: list[Reason] = []
    for column in columns:
        beyond = (column.confounded >= CONFOUNDED, column.removed > MUCH_REMOVED)
        found = [
            Reason(name, value, limit)
            for (name, value), limit, is_reason in zip(
                column.numbers.items(), (CONFOUNDED, MUCH_REMOVED), beyond, strict=True
            )
            if is_reason
        ]
        if len(found) == len(MEASURES):
            return Verdict(Level.LEAVE_ALONE, tuple(found))
        reasons += found
    return Verdict(Level.WITH_CARE if reasons else Level.SAFE, tuple(reasons))


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
        return Verdict(Level.LEAVE_ALONE, tuple(reasons))
    return Verdict(Level.WITH_CARE if reasons else Level.SAFE, tuple(reasons))


def judge_arriving(numbers: Mapping[str, Any], by_mean: bool) -> Verdict:
    """Return the verdict on a new batch of an atlas."""
    known = {name: numbers[name] for name in ("moved", "matched") if name in numbers}
    return together(judge_place(numbers), judge_batch(known, by_mean=by_mean))


def together(first: Verdict, second: Verdict) -> Verdict:
    """Return one verdict for two on a batch; one against moving it names only the reason that decides."""
    for one in (first, second):
        if one.level.needs_force:
            return one
    worst = max(first.level, second.level, key=lambda level: level.rank)
    return Verdict(worst, first.reasons + second.reasons)


def judge_compositions(table: pd.DataFrame, by_moments: bool) -> tuple[list[Any], bool]:
    """Return the batches whose composition the target is wrong for, and whether populations overlap."""
    overlap = bool((table["distinct"] < MIN_DISTINCT).any())
    if table["n_cells"].median() < MIN_CELLS or not (by_moments or overlap):
        return [], overlap
    return table.index[table["composition"] > DIFFERENT].tolist(), overlap
