"""The diagnosis of each batch as a picture: numbers, limits and verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..diagnosis.limits import (
    DIFFERENT,
    LARGE_MOVE,
    LARGE_SCALE,
    MANY_UNMATCHED,
    MIN_DISTINCT,
    MIN_KEPT,
)
from .canvas import check_save, finish, label, panels, unset
from .given import diagnosis_of
from .verdicts import LEVELS, level_of, verdict_legend, worst_first

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["diagnosis"]

#: Columns with their headings.
HEADINGS = {
    "n_cells": "cells",
    "moved": "moved",
    "scale_min": "scale\nmin",
    "scale_max": "scale\nmax",
    "matched": "matched",
    "composition": "composition\ndiffers",
    "distinct": "distinct",
    "neighbours_kept": "neighbours\nkept",
}
#: Numbers above or below these are marked. Whether that matters depends on the target: the verdict says it.
ABOVE = {"moved": LARGE_MOVE, "scale_max": LARGE_SCALE, "composition": DIFFERENT}
BELOW = {
    "scale_min": 1 / LARGE_SCALE, "matched": 1 - MANY_UNMATCHED, "distinct": MIN_DISTINCT,
    "neighbours_kept": MIN_KEPT,
}  # fmt: skip
#: Background of such numbers.
MARK = "#FFE3A3"
#: Letters of the reasons of a verdict that are written in a line.
REASON_LENGTH = 90
#: Inches of a column, and of a letter.
COLUMN, LETTER = 0.85, 0.062


def diagnosis(
    data: Any,
    *,
    key: str | None = None,
    ax: Any = None,
    show: bool | None = None,
    save: str | Path | None = None,
) -> Any:
    """Draw the diagnosis of each batch: its numbers, those beyond a limit in colour, and its verdict.

    The worst verdicts are on top. Of more than 60 batches the 60 worst are drawn.

    Parameters
    ----------
    data
        The table of :func:`scbatchprox.diagnose`, an AnnData that :func:`scbatchprox.refine` wrote a
        diagnosis to, or a :class:`scbatchprox.BatchProx` with one.
    key
        The record in ``uns``; by default the only one.
    ax, show, save
        As for :func:`scbatchprox.pl.before_after`.

    Returns
    -------
    The axes.

    Examples
    --------
    >>> import numpy as np
    >>> from scbatchprox import diagnose, pl
    >>> rng = np.random.default_rng(0)
    >>> Z = rng.normal(size=(600, 5)) + 8.0 * rng.integers(0, 3, size=(600, 1))
    >>> axes = pl.diagnosis(diagnose(Z, np.repeat(["a", "b"], 300)))
    >>> [text.get_text() for text in axes.texts if text.get_text() == "safe"]
    ['safe', 'safe']
    """
    check_save(save)
    table = diagnosis_of(data, key)
    shown = worst_first(table, "moved")
    numbers = [name for name in shown if pd.api.types.is_numeric_dtype(shown[name])]
    # A file has columns in the order of the alphabet.
    columns = [name for name in HEADINGS if name in numbers]
    columns += [name for name in numbers if name not in HEADINGS]
    lines = [_line(unset(str(verdict))) for verdict in shown["verdict"]]
    room = 0.6 + max(map(len, lines), default=0) * LETTER / COLUMN  # in columns
    width = 1.8 + COLUMN * (len(columns) + room)
    grid = panels(ax, (1, 1), (width, 1.5 + 0.24 * max(len(shown), 3)), show)
    from matplotlib.patches import Patch

    axes = grid[0, 0]
    _numbers(axes, shown, columns)
    levels = [level_of(verdict) for verdict in shown["verdict"]]
    for row, (level, line) in enumerate(zip(levels, lines, strict=True)):
        axes.plot(len(columns) + 0.05, row, "s", markersize=8, color=LEVELS[level])
        axes.text(len(columns) + 0.3, row, line, fontsize=7.5, va="center", ha="left")
    names = [HEADINGS.get(name, unset(str(name)).replace(" ", "\n")) for name in columns]
    axes.set_xticks([*range(len(columns)), len(columns) + 0.3], [*names, "verdict"], fontsize=8)
    axes.get_xticklabels()[-1].set_horizontalalignment("left")
    axes.set_yticks(range(len(shown)), [label(name) for name in shown.index], fontsize=8)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set_xlim(-0.5, len(columns) + max(room, 1.0))
    axes.set_ylim(max(len(shown), 3) - 0.4, -0.6)
    axes.spines[:].set_visible(False)
    if len(table) > len(shown):
        axes.set_xlabel(f"the {len(shown)} batches of {len(table)} that need most care", fontsize=8)
    marks = [Patch(color=MARK, label="beyond a limit")]
    place = {"loc": "upper left", "bbox_to_anchor": (0, 0), "ncols": len(LEVELS) + 1}
    verdict_legend(axes, levels, marks, **place)
    finish(grid, show, save)
    return axes


def _numbers(axes: Axes, table: pd.DataFrame, columns: list[str]) -> None:
    """Write every number, and mark those beyond a limit."""
    from matplotlib.patches import Rectangle

    for j, name in enumerate(columns):
        for i, value in enumerate(table[name]):
            if value > ABOVE.get(name, float("inf")) or value < BELOW.get(name, -float("inf")):
                axes.add_patch(Rectangle((j - 0.46, i - 0.44), 0.92, 0.88, color=MARK, linewidth=0))
            text = f"{value:,}" if name == "n_cells" else "–" if pd.isna(value) else f"{value:.2f}"
            axes.text(j, i, text, fontsize=7.5, ha="center", va="center", color="0.15")


def _line(verdict: str) -> str:
    """Return a verdict in one line; the end of a long one is left out."""
    return verdict if len(verdict) <= REASON_LENGTH else verdict[: REASON_LENGTH - 1].rstrip() + "…"
