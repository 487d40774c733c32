"""Which numbers of a diagnosis are reasons of the verdict."""

from __future__ import annotations

from ..diagnosis.kept import MEASURES
from ..diagnosis.limits import (
    CONFOUNDED,
    DIFFERENT,
    LARGE_MOVE,
    LARGE_SCALE,
    MANY_UNMATCHED,
    MIN_DISTINCT,
    MIN_KEPT,
    MUCH_REMOVED,
)

__all__ = ["is_reason"]

#: Numbers that are reasons above or below a limit, and what the verdict then says.
ABOVE = {
    "moved": (LARGE_MOVE, "cells move by"),
    "scale_max": (LARGE_SCALE, "it is scaled by"),
    "composition": (DIFFERENT, "its composition"),
}
BELOW = {
    "scale_min": (1 / LARGE_SCALE, "it is scaled by"),
    "matched": (1 - MANY_UNMATCHED, "have no partner"),
    "distinct": (MIN_DISTINCT, "populations overlap"),
    "neighbours_kept": (MIN_KEPT, "of their neighbours"),
}


def is_reason(column: str, value: float, verdict: str) -> bool:
    """Whether a number is beyond its limit, and the verdict names it.

    A number beyond its limit alone is no reason: whether a composition matters depends on the target.
    """
    if column in ABOVE:
        limit, words = ABOVE[column]
        return value > limit and words in verdict
    if column in BELOW:
        limit, words = BELOW[column]
        return value < limit and words in verdict
    name, _, measure = column.rpartition(" ")
    # h5ad has no "/" in names of columns, but the verdict has.
    if measure not in MEASURES or repr(name.replace("/", "|")) not in verdict.replace("/", "|"):
        return False
    return value >= CONFOUNDED if measure == "confounded" else value > MUCH_REMOVED
