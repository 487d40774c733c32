"""Pictures of experiments: dots with a spread, and lines over steps; needs matplotlib (extra ``report``).

Both take a table in long form, with columns ``dataset``, ``upstream``, ``method``, ``value`` and others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scbatchprox.plots.canvas import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["dots", "lines"]

#: A method has the same colour in all pictures; methods not listed take the next one of ``COLOURS``.
METHOD_COLOURS = {
    "unrefined": "#000000",
    "harmony": "#E69F00",
    "batchprox": "#0072B2",
    "batchprox_adam": "#56B4E9",
    "batchprox_population": "#CC79A7",
    "batchprox_frozen": "#0072B2",
    "batchprox_refit": "#009E73",
    "batchprox_population_frozen": "#CC79A7",
    "batchprox_population_refit": "#882255",
    "scarches": "#D55E00",
    "no batch effect": "#009E73",
    "shuffled_harmony": "#A6761D",
    "shuffled_batchprox_population": "#999999",
    "full": "#0072B2",
    "mean-only": "#009E73",
    "w/o FedProx": "#CC79A7",
    "w/o identity": "#E69F00",
}
_MARKERS = "osD^vPX*"


def dots(
    rows: pd.DataFrame,
    *,
    xlabel: str,
    y: str = "dataset",
    panel: str = "upstream",
    names: Any = None,
) -> Figure:
    """Draw a dot for the mean and a bar for the spread of ``value``, a colour for each method.

    Parameters
    ----------
    rows
        Long form, for one metric.
    xlabel
        Label of the values.
    y, panel
        Columns whose values give the lines of a panel, and the panels.
    names
        Display names of methods, lines and panels.
    """
    names = names or {}
    panels = _panels(rows, panel)
    lines_of = {name: list(dict.fromkeys(part[y])) for name, part in panels.items()}
    height = sum(max(len(found), 1) for found in lines_of.values())
    figure = new_figure(7.5, 1.2 + 0.55 * height + 0.5 * len(panels))
    ratios = [max(len(found), 1) + 0.4 for found in lines_of.values()]
    grid = figure.subplots(
        len(panels), 1, squeeze=False, sharex=True, gridspec_kw={"height_ratios": ratios}
    )[:, 0]
    methods = list(dict.fromkeys(rows["method"]))
    for axes, (name, part) in zip(grid, panels.items(), strict=True):
        _dots_of_panel(axes, part, y, lines_of[name], methods, names)
        axes.set_title(names.get(name, name), fontsize=10, loc="left")
    grid[-1].set_xlabel(xlabel)
    _legend(figure, grid)
    return figure


def lines(
    rows: pd.DataFrame, *, x: str, row: str, column: str, ylabel: str, names: Any = None
) -> Figure:
    """Draw ``value`` against the values of ``x``, in their order, a line for each method.

    Parameters
    ----------
    rows
        Long form.
    x
        Column with the steps; they are drawn at equal distances.
    row, column
        Columns whose values give the rows and columns of panels.
    ylabel
        Label of the values.
    names
        Display names of methods and panels.
    """
    names = names or {}
    down, across = (list(dict.fromkeys(rows[key])) for key in (row, column))
    figure = new_figure(1.2 + 2.4 * max(len(across), 2), 1.0 + 1.9 * max(len(down), 1))
    grid = figure.subplots(max(len(down), 1), max(len(across), 1), squeeze=False, sharey="row")
    methods = list(dict.fromkeys(rows["method"]))
    for i, r in enumerate(down):
        for j, c in enumerate(across):
            part = rows[(rows[row] == r) & (rows[column] == c)]
            _lines_of_panel(grid[i, j], part, x, methods, names)
            if i == 0:
                grid[i, j].set_title(names.get(c, c), fontsize=9)
            if i == len(down) - 1:
                grid[i, j].set_xlabel(names.get(x, x), fontsize=8)
        label = names.get(r, r)
        grid[i, 0].set_ylabel(f"{label}\n{ylabel}" if ylabel else label, fontsize=8)
    _legend(figure, grid.ravel())
    return figure


def _dots_of_panel(
    axes: Axes, part: pd.DataFrame, y: str, found: Sequence[str], methods: Sequence[str], names: Any
) -> None:
    for m, method in enumerate(methods):
        values = part[part["method"] == method].groupby(y, sort=False)["value"]
        mean, sd = values.mean(), values.std(ddof=1).fillna(0.0)
        at = np.array([found.index(line) for line in mean.index], float)
        # Methods are drawn below each other within a line, so that equal values do not overlap.
        offset = (m - (len(methods) - 1) / 2) * 0.8 / max(len(methods), 1)
        axes.errorbar(
            mean, at + offset, xerr=sd, fmt=_MARKERS[m % len(_MARKERS)], markersize=4.5, linewidth=1.2,
            color=_colour(method, m), label=str(names.get(method, method)),
        )  # fmt: skip
    axes.set_yticks(range(len(found)), [str(names.get(line, line)) for line in found], fontsize=8)
    axes.set_ylim(max(len(found), 1) - 0.5, -0.5)
    for line in range(1, len(found)):
        axes.axhline(line - 0.5, color="0.9", linewidth=0.8, zorder=0)
    axes.grid(axis="x", color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def _lines_of_panel(
    axes: Axes, part: pd.DataFrame, x: str, methods: Sequence[str], names: Any
) -> None:
    steps = list(dict.fromkeys(part[x]))
    for m, method in enumerate(methods):
        values = part[part["method"] == method].groupby(x, sort=False)["value"].mean()
        at = sorted((steps.index(step), value) for step, value in values.items())
        axes.plot(
            [i for i, _ in at], [value for _, value in at], color=_colour(method, m), linewidth=1.4,
            marker=_MARKERS[m % len(_MARKERS)], markersize=4, label=str(names.get(method, method)),
        )  # fmt: skip
    axes.set_xticks(range(len(steps)), [str(names.get(step, step)) for step in steps], fontsize=7)
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def _panels(rows: pd.DataFrame, panel: str) -> dict[str, pd.DataFrame]:
    return {name: rows[rows[panel] == name] for name in dict.fromkeys(rows[panel])} or {"": rows}


def _colour(method: str, at: int) -> str:
    return METHOD_COLOURS.get(method, COLOURS[at % len(COLOURS)])


def _legend(figure: Figure, grid: Any) -> None:
    found: dict[str, Any] = {}
    for axes in grid:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    if found:
        column = 0.5 + 0.075 * max(map(len, found))  # inches for a marker and the longest name
        figure.legend(
            list(found.values()), list(found), loc="outside lower center", frameon=False, fontsize=8,
            ncols=max(1, min(len(found), int(figure.get_figwidth() / column))),
        )  # fmt: skip
