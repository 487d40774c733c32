"""How the rounds of a fit converged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadValue
from .canvas import COLOURS, check_save, finish, panels
from .given import history_of

__all__ = ["history"]

#: Columns of a history, and what they are.
PANELS = {
    "objective": "objective",
    "distance": "distance of a cell to its target",
    "step": "change of the adapter in the round",
}


def history(
    data: Any,
    *,
    key: str | None = None,
    ax: Any = None,
    show: bool | None = None,
    save: str | Path | None = None,
) -> Any:
    """Draw the rounds of a fit: the objective, the distance to the target, and the change in each round.

    A fixed point (``rounds=None``) is drawn at ∞. The population target has only a start and an end, which a
    dotted line joins.

    Parameters
    ----------
    data
        An AnnData that :func:`scbatchprox.refine` wrote to, a fitted :class:`scbatchprox.BatchProx`, a
        :class:`scbatchprox.History`, or its table.
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
    rounds = table["round"].to_numpy(float)
    finite = rounds[np.isfinite(rounds)]
    last = float(finite.max(initial=0.0))
    at = np.where(np.isfinite(rounds), rounds, last + 1)
    line = "-" if (np.diff(at) == 1).all() else ":"  # rounds between are unknown
    grid = panels(ax, (1, 3), (11, 3.2), show)
    for axes, (name, title), colour in zip(grid[0], PANELS.items(), COLOURS, strict=False):
        # The first step is none.
        use = slice(1, None) if name == "step" else slice(None)
        values = table[name].to_numpy(float)[use]
        axes.plot(at[use], values, line, marker="o", markersize=5, color=colour)
        if name == "step" and (values > 0).all() and len(values) > 1:
            axes.set_yscale("log")
        elif name != "objective":
            axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("round", fontsize=9)
        ticks = np.unique(np.linspace(0, last, min(int(last), 10) + 1).round())
        words = [f"{tick:g}" for tick in ticks]
        if finite.size < rounds.size:
            ticks, words = np.append(ticks, last + 1), [*words, "∞"]
        axes.set_xticks(ticks, words)
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    finish(grid, show, save)
    return grid[0]
