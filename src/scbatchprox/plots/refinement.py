"""What a refinement does to each batch: how far it moves, scales and shifts, rounds, and verdicts."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pandas as pd

from ..core.checks import some_of
from ..core.shown import count
from ..diagnosis.table import COLUMNS, worst_first
from ..diagnosis.verdict import verdicts_of
from ..errors import BadKey, BadValue
from ..kernels.arrays import Floats
from .canvas import (
    COLOURS,
    LEVELS,
    MAX_ROWS,
    Shown,
    label,
    levels_of,
    panels,
    picture,
    plain_frame,
    titles_above,
    unset,
    verdict_legend,
)  # fmt: skip
from .inputs import REGISTERED, SOLVED, adapter_of, diagnosis_of, history_of, movement_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["adapter", "diagnosis", "history", "movement"]

#: The axis reaches at least to here.
LEAST = 0.5


@picture
def movement(data: Any, *, key: str | None = None, **shown: Unpack[Shown]) -> Any:
    """Draw how far each batch moved, the farthest on top, in the colour of its verdict.

    The distance is the root mean squared displacement of the batch's cells, divided by the batch's spread. It
    is no reason of a verdict; :func:`scbatchprox.pl.diagnosis` shows the reasons. Of more than 60 batches the
    60 that moved farthest are drawn.

    Parameters
    ----------
    data
        An AnnData that :func:`scbatchprox.refine` wrote to, a fitted :class:`scbatchprox.BatchProx`, or a
        table of ``model.movement()`` or :func:`scbatchprox.diagnose`.
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
    >>> from scbatchprox import BatchProx, pl
    >>> Z = np.random.default_rng(0).normal(size=(300, 5))
    >>> model = BatchProx().fit(Z, batch=np.repeat(["a", "b", "c"], 100))
    >>> axes = pl.movement(model)
    >>> sorted(label.get_text() for label in axes.get_yticklabels())
    ['a', 'b', 'c']
    """
    table = movement_of(data, key).sort_values("relative", ascending=False, kind="stable")
    moved = table["relative"].iloc[:MAX_ROWS]
    levels = levels_of(table.iloc[:MAX_ROWS])
    n = max(len(moved), 3)
    axes = panels((1, 1), (6.5, 1.6 + 0.22 * n), **shown)[0, 0]
    at = range(len(moved))
    bars = axes.barh(at, moved, color=[LEVELS[level] for level in levels], height=0.75)
    axes.bar_label(bars, [f"{x:.2f}" for x in moved], fontsize=7, padding=2, color="0.3")
    axes.set_yticks(at, [label(name) for name in moved.index], fontsize=8)
    axes.set_ylim(n - 0.4, -0.6)
    axes.set_xlim(0, 1.12 * max(float(moved.max()), LEAST))
    title = "How far each batch moved"
    if len(table) > len(moved):
        title += f"\n{len(moved)} of {len(table)} batches, those that moved farthest"
    legend_lines = (len(set(levels)) + 1) // 2
    axes.set_title(title, fontsize=10, loc="left", pad=8 + 14 * legend_lines)
    axes.set_xlabel("distance moved / spread of the batch", fontsize=9)
    plain_frame(axes)
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "ncols": 2}
    verdict_legend(axes, levels, **place, borderaxespad=0.2)
    return axes


#: Colours end at this quantile of the absolute values, so that one coordinate does not fade all others.
TOP = 0.98
#: The smallest ranges of colours: of shifts (less is rounding), and of logarithms of scales, to base 2.
MIN_RANGE, MIN_LOG_RANGE = 1e-6, 0.3
#: Scales that differ less from 1 cannot be seen.
SAME_SCALE = 0.01


@picture
def adapter(data: Any, *, key: str | None = None, batch: Any = None, **shown: Unpack[Shown]) -> Any:
    """Draw the scale and the shift of each batch (row) and coordinate (column).

    White means no change, and a panel without any says so. Scales are coloured by their logarithm: red
    stretches, blue shrinks.

    Parameters
    ----------
    data
        An AnnData that :func:`scbatchprox.refine` wrote to, a fitted :class:`scbatchprox.BatchProx`, or an
        :class:`scbatchprox.Adapter`.
    key
        The record in ``uns``; by default the only one.
    batch
        Draw the populations of this batch. By default a batch with several populations is drawn as their
        mean.
    ax, show, save
        As for :func:`scbatchprox.pl.before_after`; two axes.

    Returns
    -------
    Array of two axes: scale and shift.

    Examples
    --------
    >>> import numpy as np
    >>> from scbatchprox import Adapter, pl
    >>> fitted = Adapter.per_batch(np.array(["a", "b"]), np.ones((2, 3)), np.zeros((2, 3)))
    >>> [axes.get_title() for axes in pl.adapter(fitted)]
    ['scale', 'shift']
    """
    names, scale, shift, note = _rows(*adapter_of(data, key), batch)
    height = 1.5 + 0.2 * min(max(len(names), 3), MAX_ROWS)
    both = left, right = panels((1, 2), (11, height), **shown)[0]
    span = max(_top(np.log2(np.maximum(np.abs(scale), MIN_RANGE))), MIN_LOG_RANGE)
    with np.errstate(divide="ignore"):
        bar = _heat(left, np.log2(np.abs(scale)), span, f"scale{note}")
    # Scales at equal distances; so many digits tell them apart.
    ticks = np.linspace(-span, span, 5)
    bar.set_ticks(ticks, labels=[f"{2.0**tick:.3g}" for tick in ticks])
    if np.abs(scale - 1.0).max() < SAME_SCALE:
        _say(left, "all scales are 1 ± 0.01:\nbatches are shifted, not stretched")
    _heat(right, shift, max(_top(shift), MIN_RANGE), f"shift{note}")
    if np.abs(shift).max() < MIN_RANGE:
        _say(right, "all shifts are 0")
    step = -(-len(names) // MAX_ROWS)
    left.set_yticks(range(0, len(names), step), [label(n) for n in names[::step]], fontsize=8)
    right.set_yticks([])
    return both


def _rows(
    of: np.ndarray, scale: Floats, shift: Floats, batch: Any
) -> tuple[list[Any], Floats, Floats, str]:
    """Names, scales and shifts of the rows to draw, and a note on them."""
    batches, code, count = np.unique(of, return_inverse=True, return_counts=True)
    if batch is not None:
        own = of == batch
        if not np.any(own):
            raise BadKey(
                f"Expected a batch of the adapter, found {batch!r}; available: "
                f"{some_of(batches.tolist())}."
            )
        names = [f"population {i + 1}" for i in range(int(own.sum()))]
        return names, scale[own], shift[own], f" of the populations of {label(batch)}"
    mean = np.zeros((2, batches.size, scale.shape[1]))
    np.add.at(mean[0], code, scale)
    np.add.at(mean[1], code, shift)
    mean /= count[:, None]
    note = "" if (count == 1).all() else " (mean of the populations of a batch)"
    return batches.tolist(), mean[0], mean[1], note


def _top(values: Floats) -> float:
    return float(np.quantile(np.abs(values), TOP))


def _say(axes: Axes, text: str) -> None:
    """Write in the middle of a panel, which would look broken if it were only white."""
    axes.text(
        0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=9, color="0.4"
    )


def _heat(axes: Axes, values: Floats, span: float, title: str) -> Any:
    """Draw values as colours; returns the colour bar."""
    image = axes.imshow(
        values, cmap="RdBu_r", vmin=-span, vmax=span, aspect="auto", interpolation="nearest"
    )
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("coordinate", fontsize=9)
    d = values.shape[1]
    step = max(1, -(-d // 10))
    axes.set_xticks(range(0, d, step), [str(i + 1) for i in range(0, d, step)], fontsize=8)
    bar = axes.figure.colorbar(image, ax=axes, extend="both", pad=0.02)
    bar.ax.tick_params(labelsize=8)
    return bar


@picture
def history(data: Any, *, key: str | None = None, **shown: Unpack[Shown]) -> Any:
    """Draw the rounds of a fit.

    Of a solver: the objective, the distance to the target, and the change in each round. Of a registration:
    how much of a batch met others, how far populations have moved, and how well displacements agree.
    Of some fits only the start and the end are known: those to the fixed point (``rounds=None``), and those
    with the population target of earlier versions. They are drawn as two bars with numbers.

    Parameters
    ----------
    data
        An AnnData that :func:`scbatchprox.refine` wrote to, a fitted :class:`scbatchprox.BatchProx`, a
        :class:`scbatchprox.History`, a :class:`scbatchprox.Trace`, or its table.
    key
        The record in ``uns``; by default the only one.
    ax, show, save
        As for :func:`scbatchprox.pl.before_after`; three axes.

    Returns
    -------
    Array of three axes.

    Examples
    --------
    >>> import numpy as np
    >>> from scbatchprox import BatchProx, pl
    >>> Z = np.random.default_rng(0).normal(size=(200, 5))
    >>> model = BatchProx(target="moment").fit(Z, batch=np.repeat(["a", "b"], 100))
    >>> [len(axes.lines[0].get_xdata()) for axes in pl.history(model)]
    [4, 4, 3]
    """
    table = history_of(data, key)
    if table.empty:
        raise BadValue("Expected the rounds of a fit, found none: batches were added, not fitted.")
    row = panels((1, 3), (11, 3.2), **shown)[0]
    rounds = table["round"].to_numpy(float)
    ends_only = len(rounds) == 2 and rounds[1] != rounds[0] + 1
    panels_of = REGISTERED if "matched" in table else SOLVED
    for axes, (name, title), colour in zip(row, panels_of.items(), COLOURS, strict=False):
        values = table[name].to_numpy(float)
        if np.isnan(values).all():
            axes.text(0.5, 0.5, "not known", ha="center", transform=axes.transAxes, color="0.4")
            axes.set_xticks([])
            axes.set_yticks([])
        elif ends_only:
            _ends(axes, rounds[1], values, colour)
            title = title.replace("in the round", "from start to end")
        else:
            # The first step is none.
            use = slice(1, None) if name == "step" else slice(None)
            _rounds(axes, rounds, values, use, colour)
            if name == "step" and 0 < 10 * values[use].min(initial=np.inf) < values.max():
                axes.set_yscale("log")
            elif name == "matched":
                axes.set_ylim(0, 1.05)
            elif name not in ("objective", "agreement"):
                axes.set_ylim(0, 1.08 * values.max() or 1.0)
        axes.set_title(title, fontsize=10)
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        plain_frame(axes)
    return row


def _ends(axes: Axes, last: float, values: Floats, colour: str) -> None:
    """Draw the start and the end of a fit whose rounds are not known."""
    end = "fixed point" if np.isinf(last) else f"after {count(int(last), 'round')}"
    bars = axes.bar(["start", end], values, color=colour, width=0.5)
    axes.bar_label(bars, [f"{value:.3g}" for value in values], fontsize=8, padding=1, color="0.3")
    axes.margins(y=0.12)


def _rounds(axes: Axes, rounds: Floats, values: Floats, use: slice, colour: str) -> None:
    """Draw a line over rounds; it is dotted where rounds are left out."""
    line = "-" if (np.diff(rounds) == 1).all() else ":"
    axes.plot(rounds[use], values[use], line, marker="o", markersize=5, color=colour)
    last = int(rounds[-1])
    axes.set_xticks(np.unique(np.linspace(0, last, min(last, 10) + 1).round()))
    axes.set_xlabel("round" if line == "-" else "round (dotted: some are left out)", fontsize=9)


#: Headings of columns: their names, but for these.
HEADINGS = {name: name.replace("_", "\n") for name in COLUMNS} | {
    "n_cells": "cells",
    "composition": "composition\ndiffers",
}
#: Background of numbers that are reasons of the verdict.
MARK = "#FFE3A3"
#: A verdict is written in lines of at most so many letters.
WRAP = 100
#: Inches of a column, of a letter, of a line of a verdict, and of the room around the lines of a row.
COLUMN, LETTER, LINE, GAP = 0.85, 0.054, 0.125, 0.115


@picture
def diagnosis(data: Any, *, key: str | None = None, **shown: Unpack[Shown]) -> Any:
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
    from matplotlib.patches import Patch

    table = diagnosis_of(data, key)
    worst = worst_first(table, unknown=-1).iloc[:MAX_ROWS]
    numbers = [name for name in worst if pd.api.types.is_numeric_dtype(worst[name])]
    # A file has columns in the order of the alphabet.
    columns = [name for name in HEADINGS if name in numbers]
    columns += [name for name in numbers if name not in HEADINGS]
    verdicts = [unset("\n".join(wrap(str(verdict), WRAP))) for verdict in worst["verdict"]]
    longest = max((len(line) for text in verdicts for line in text.splitlines()), default=0)
    room = 0.6 + longest * LETTER / COLUMN  # in columns
    # Rows are as high as their verdicts; the axis is in inches.
    ends = np.cumsum([0.0] + [GAP + LINE * (1 + text.count("\n")) for text in verdicts])
    height = max(ends[-1], 3 * (GAP + LINE))
    width = 1.8 + COLUMN * (len(columns) + room)
    axes = panels((1, 1), (width, 1.5 + height), **shown)[0, 0]
    _numbers(axes, worst, columns, ends)
    levels = levels_of(worst)
    middle = (ends[1:] + ends[:-1]) / 2
    for y, level, text in zip(middle, levels, verdicts, strict=True):
        axes.plot(len(columns) + 0.05, y, "s", markersize=8, color=LEVELS[level])
        axes.text(len(columns) + 0.3, y, text, fontsize=7.5, va="center", ha="left")
    for y in ends[1:-1]:
        axes.axhline(y, color="0.9", linewidth=0.6, zorder=0)
    names = [HEADINGS.get(name, unset(str(name)).replace(" ", "\n")) for name in columns]
    axes.set_xticks([*range(len(columns)), len(columns) + 0.3], [*names, "verdict"], fontsize=8)
    axes.get_xticklabels()[-1].set_horizontalalignment("left")
    axes.set_yticks(middle, [label(name) for name in worst.index], fontsize=8)
    titles_above(axes)
    axes.set_xlim(-0.5, len(columns) + max(room, 1.0))
    axes.set_ylim(height, 0)
    if len(table) > len(worst):
        axes.set_xlabel(f"the {len(worst)} batches of {len(table)} that need most care", fontsize=8)
    marks = [Patch(color=MARK, label="a reason of the verdict")] * bool(axes.patches)
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, 0)}
    verdict_legend(axes, levels, marks, ncols=len(LEVELS) + 1, **place)
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
