"""How far each batch moved, relative to its own spread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .canvas import check_save, finish, label, panels
from .given import movement_of
from .verdicts import LEVELS, MAX_ROWS, levels_of, verdict_legend

__all__ = ["movement"]

#: The axis reaches at least to here.
LEAST = 0.5


def movement(
    data: Any,
    *,
    key: str | None = None,
    ax: Any = None,
    show: bool | None = None,
    save: str | Path | None = None,
) -> Any:
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
    check_save(save)
    table = movement_of(data, key).sort_values("relative", ascending=False, kind="stable")
    shown = table.iloc[:MAX_ROWS]
    levels = levels_of(shown)
    grid = panels(ax, (1, 1), (6.5, 1.6 + 0.22 * max(len(shown), 3)), show)
    axes = grid[0, 0]
    at = range(len(shown))
    bars = axes.barh(at, shown["relative"], color=[LEVELS[level] for level in levels], height=0.75)
    axes.bar_label(
        bars, [f"{x:.2f}" for x in shown["relative"]], fontsize=7, padding=2, color="0.3"
    )
    axes.set_yticks(at, [label(name) for name in shown.index], fontsize=8)
    axes.set_ylim(max(len(shown), 3) - 0.4, -0.6)
    axes.set_xlim(0, 1.12 * max(float(shown["relative"].max()), LEAST))
    title = "How far each batch moved"
    if len(table) > len(shown):
        title += f"\n{len(shown)} of {len(table)} batches, those that moved farthest"
    legend_lines = (len(set(levels)) + 1) // 2
    axes.set_title(title, fontsize=10, loc="left", pad=8 + 14 * legend_lines)
    axes.set_xlabel("distance moved / spread of the batch", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "ncols": 2}
    verdict_legend(axes, levels, **place, borderaxespad=0.2)
    finish(grid, show, save)
    return axes
