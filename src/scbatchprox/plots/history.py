"""How the rounds of a fit converged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.shown import count
from ..errors import BadValue
from ..kernels.arrays import Floats
from .canvas import COLOURS, check_save, finish, panels
from .given import REGISTERED, SOLVED, history_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["history"]


def history(
    data: Any,
    *,
    key: str | None = None,
    ax: Any = None,
    show: bool | None = None,
    save: str | Path | None = None,
) -> Any:
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
    check_save(save)
    table = history_of(data, key)
    if table.empty:
        raise BadValue("Expected the rounds of a fit, found none: batches were added, not fitted.")
    grid = panels(ax, (1, 3), (11, 3.2), show)
    rounds = table["round"].to_numpy(float)
    ends_only = len(rounds) == 2 and rounds[1] != rounds[0] + 1
    panels_of = REGISTERED if "matched" in table else SOLVED
    for axes, (name, title), colour in zip(grid[0], panels_of.items(), COLOURS, strict=False):
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
        axes.spines[["top", "right"]].set_visible(False)
    finish(grid, show, save)
    return grid[0]


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
