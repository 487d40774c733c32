"""Verdicts and advice: their levels, colours and legend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..diagnosis.levels import level_of as diagnosis_level
from .canvas import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LEVELS", "MAX_ROWS", "NONE", "level_of", "verdict_legend", "worst_first"]

#: The level of what has no verdict.
NONE = "no verdict"
#: Colours of verdicts, from good to bad. They differ in lightness too, for prints without colour.
LEVELS = {
    "safe": "#56B4E9",
    "move with care": "#E69F00",
    "leave alone": "#882255",
    NONE: GREY,
}
#: Of more batches than this only the ones that need attention are drawn.
MAX_ROWS = 60


def level_of(verdict: Any) -> str:
    """Return the level of a verdict; ``no verdict`` where there is none."""
    return diagnosis_level(verdict, NONE)


def worst_first(table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return at most ``MAX_ROWS`` rows: the worst verdicts first, then the largest numbers of a column."""
    levels = list(LEVELS)
    rank = table["verdict"].map(level_of).map(levels.index) if "verdict" in table else 0
    rank = pd.Series(rank, table.index).where(lambda r: r < len(levels) - 1, -1)
    order = pd.DataFrame({"rank": rank.to_numpy(), "by": table[column].to_numpy()})
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
