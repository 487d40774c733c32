"""The diagnosis of each batch as a picture: numbers and verdicts."""

from __future__ import annotations

from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..diagnosis.verdict import verdicts_of
from ..kernels.arrays import Floats
from .canvas import check_save, finish, label, panels, unset
from .given import diagnosis_of
from .verdicts import LEVELS, levels_of, verdict_legend, worst_first

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
    "agreement": "agreement",
    "evidence": "evidence",
    "support": "support",
    "chance": "chance",
    "gain": "gain",
    "smooth": "smooth",
    "composition": "composition\ndiffers",
    "removed": "removed",
    "neighbours_kept": "neighbours\nkept",
}
#: Background of numbers that are reasons of the verdict.
MARK = "#FFE3A3"
#: A verdict is written in lines of at most so many letters.
WRAP = 100
#: Inches of a column, of a letter, of a line of a verdict, and of the room around the lines of a row.
COLUMN, LETTER, LINE, GAP = 0.85, 0.054, 0.125, 0.115


def diagnosis(
    data: Any,
    *,
    key: str | None = None,
    ax: Any = None,
    show: bool | None = None,
    save: str | Path | None = None,
) -> Any:
    """Draw the diagnosis of each batch: its numbers, and its verdict.

    Numbers that the verdict names as reasons are marked. Diagnoses in files of earlier versions may not say
    which numbers are reasons; then none is marked.
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
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['verdict: no effect found', 'a reason of the verdict']
    """
    check_save(save)
    table = diagnosis_of(data, key)
    shown = worst_first(table, "moved")
    numbers = [name for name in shown if pd.api.types.is_numeric_dtype(shown[name])]
    # A file has columns in the order of the alphabet.
    columns = [name for name in HEADINGS if name in numbers]
    columns += [name for name in numbers if name not in HEADINGS]
    verdicts = [unset("\n".join(wrap(str(verdict), WRAP))) for verdict in shown["verdict"]]
    longest = max((len(line) for text in verdicts for line in text.splitlines()), default=0)
    room = 0.6 + longest * LETTER / COLUMN  # in columns
    # Rows are as high as their verdicts; the axis is in inches.
    ends = np.cumsum([0.0] + [GAP + LINE * (1 + text.count("\n")) for text in verdicts])
    width = 1.8 + COLUMN * (len(columns) + room)
    grid = panels(ax, (1, 1), (width, 1.5 + max(ends[-1], 3 * (GAP + LINE))), show)
    axes = grid[0, 0]
    _numbers(axes, shown, columns, ends)
    levels = levels_of(shown)
    middle = (ends[1:] + ends[:-1]) / 2
    for y, level, text in zip(middle, levels, verdicts, strict=True):
        axes.plot(len(columns) + 0.05, y, "s", markersize=8, color=LEVELS[level])
        axes.text(len(columns) + 0.3, y, text, fontsize=7.5, va="center", ha="left")
    for y in ends[1:-1]:
        axes.axhline(y, color="0.9", linewidth=0.6, zorder=0)
    names = [HEADINGS.get(name, unset(str(name)).replace(" ", "\n")) for name in columns]
    axes.set_xticks([*range(len(columns)), len(columns) + 0.3], [*names, "verdict"], fontsize=8)
    axes.get_xticklabels()[-1].set_horizontalalignment("left")
    axes.set_yticks(middle, [label(name) for name in shown.index], fontsize=8)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set_xlim(-0.5, len(columns) + max(room, 1.0))
    axes.set_ylim(max(ends[-1], 3 * (GAP + LINE)), 0)
    axes.spines[:].set_visible(False)
    if len(table) > len(shown):
        axes.set_xlabel(f"the {len(shown)} batches of {len(table)} that need most care", fontsize=8)
    _legend(axes, levels)
    finish(grid, show, save)
    return axes


def _numbers(axes: Axes, table: pd.DataFrame, columns: list[str], ends: Floats) -> None:
    """Write every number, and mark those that are reasons of the verdict."""
    from matplotlib.patches import Rectangle

    verdicts = verdicts_of(table)
    for j, name in enumerate(columns):
        rows = zip(table[name], verdicts, ends[:-1], ends[1:], strict=True)
        for value, verdict, start, end in rows:
            if verdict is not None and str(name) in verdict.names:
                box = (j - 0.46, start + 0.015), 0.92, end - start - 0.03
                axes.add_patch(Rectangle(*box, color=MARK, linewidth=0))
            text = f"{value:,}" if name == "n_cells" else "–" if pd.isna(value) else f"{value:.2f}"
            axes.text(
                j, (start + end) / 2, text, fontsize=7.5, ha="center", va="center", color="0.15"
            )


def _legend(axes: Axes, levels: list[str]) -> None:
    from matplotlib.patches import Patch

    marks = [Patch(color=MARK, label="a reason of the verdict")] * bool(axes.patches)
    place: dict[str, Any] = {
        "loc": "upper left",
        "bbox_to_anchor": (0, 0),
        "ncols": len(LEVELS) + 1,
    }
    verdict_legend(axes, levels, marks, **place)
