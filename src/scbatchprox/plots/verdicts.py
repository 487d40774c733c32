"""Verdicts and advice: their levels, colours and legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..diagnosis.verdict import Level, verdicts_of
from .canvas import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LEVELS", "MAX_ROWS", "NONE", "levels_of", "verdict_legend", "worst_first"]

#: The level of what has no verdict.
NONE = "no verdict"
#: Colours of verdicts, from good to bad. They differ in lightness too, for prints without colour.
LEVELS: dict[str, str] = {
    Level.NO_EFFECT: "#A6DBC8",
    Level.REMOVED: "#56B4E9",
    Level.WEAK: "#E69F00",
    Level.ALONE: "#882255",
    NONE: GREY,
}
#: Of more batches than this only the ones that need attention are drawn.
MAX_ROWS = 60


def levels_of(table: pd.DataFrame) -> list[str]:
    """Return the level of each batch; ``no verdict`` where there is none."""
    return [NONE if verdict is None else verdict.level for verdict in verdicts_of(table)]


def worst_first(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return at most ``MAX_ROWS`` rows: the worst verdicts first, then the largest numbers of a column."""
    rank = [-1 if verdict is None else verdict.level.rank for verdict in verdicts_of(table)]
    order = pd.DataFrame({"rank": rank, "by": table[column].to_numpy()})
    order = order.sort_values(["rank", "by"], ascending=False, kind="stable")
    return table.iloc[order.index[:MAX_ROWS]]


def verdict_legend(
    axes: Axes, levels: list[str], marks: Sequence[Any] = (), what: str = "verdict", **options: Any
) -> None:
    """Say what colours mean: the ``levels`` in the picture, and other ``marks`` with labels."""
    from matplotlib.patches import Patch

    words = {name: f"{what}: {name}" for name in LEVELS} | {NONE: NONE}
    handles = [Patch(color=LEVELS[name], label=words[name]) for name in LEVELS if name in levels]
    axes.legend(handles=[*handles, *marks], frameon=False, fontsize=8, **options)
