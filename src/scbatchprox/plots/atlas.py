"""The life of an atlas: cells and batches of each version, and the arrival of each batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..errors import BadType, BadValue
from .canvas import (
    COLOURS,
    LEVELS,
    MAX_ROWS,
    Shown,
    label,
    panels,
    picture,
    plain_frame,
    verdict_legend,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..atlas import Atlas

__all__ = ["atlas"]

#: Versions that are named below the picture; of more, some are.
MAX_TICKS = 25
#: Marks of what happens to a batch.
_MARKS: dict[str, dict[str, Any]] = {
    "removed": {"marker": "x", "color": "0.3", "markersize": 6, "linestyle": ""},
    "returned by a rollback": {
        "marker": "o", "color": "0.3", "markerfacecolor": "white", "markersize": 7, "linestyle": "",
    },
}  # fmt: skip


@picture
def atlas(data: Atlas | str | Path, **shown: Unpack[Shown]) -> Any:
    """Draw the versions of an atlas, and when each batch arrived.

    The upper panel has the cells of each version, with the number of batches. In the lower one a batch is a
    line from the version that added it to the one that removed it. The mark at its start has the colour of
    the advice on its arrival; the number beside it tells how far the batch moved then, relative to its
    spread. Of more than 60 arrivals the latest 60 are drawn.

    Parameters
    ----------
    data
        An :class:`scbatchprox.Atlas`, or its folder.
    ax, show, save
        As for :func:`scbatchprox.pl.before_after`; two axes.

    Returns
    -------
    Array of two axes: versions and arrivals.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from scbatchprox import Atlas, pl
    >>> grown = Atlas.create(tempfile.mkdtemp())
    >>> rng = np.random.default_rng(0)
    >>> types = 9.0 * rng.normal(size=(4, 5))
    >>> Z = rng.normal(size=(300, 5)) + types[rng.integers(0, 4, size=300)]
    >>> _ = grown.add(Z[:200], batch=np.repeat(["a", "b"], 100))
    >>> _ = grown.add(Z[200:], batch=["c"] * 100)
    >>> [label.get_text() for label in pl.atlas(grown)[1].get_yticklabels()]
    ['a', 'b', 'c']
    """
    opened = _opened(data)
    log = opened.entries()
    stays = _stays(opened, log)
    if not stays:
        raise BadValue("Expected an atlas with batches, found one without any; add some first.")
    latest = stays[-MAX_ROWS:]
    height = 0.22 * max(len(latest), 3)
    width = float(np.clip(3.5 + 0.5 * len(log), 7, 14))
    grid = panels(
        (2, 1), (width, 4.0 + height), sharex=True,
        gridspec_kw={"height_ratios": [2, max(height, 1.0)]}, **shown,
    )  # fmt: skip
    above, below = grid[:, 0]
    _versions(above, log)
    _arrivals(below, latest, log[-1]["number"])
    _legend(below, latest)
    title = "arrivals, and how far each batch moved"
    if len(stays) > len(latest):
        title += f"; the latest {len(latest)} of {len(stays)}"
    below.set_title(title, fontsize=10, loc="left", pad=22)
    named = _named(log)
    below.set_xticks([e["number"] for e in named], [_words(e) for e in named], fontsize=8)
    return grid[:, 0]


@dataclass(frozen=True)
class _Stay:
    """A batch from the version that added it to the one that removed it, or to now."""

    batch: Any
    first: int
    last: int | None
    level: str
    moved: float


def _opened(data: Any) -> Atlas:
    if isinstance(data, str | Path):
        from ..atlas import Atlas

        return Atlas(data)
    if not hasattr(data, "entries") or not hasattr(data, "model_at"):
        raise BadType(f"Expected an Atlas or its folder, found {type(data).__name__}.")
    opened: Atlas = data
    return opened


def _stays(opened: Atlas, log: list[dict[str, Any]]) -> list[_Stay]:
    """Return all batches in the order of their arrival."""
    found: list[_Stay] = []
    here: dict[Any, int] = {}
    for entry in log:
        for count in entry["removed"]:
            at = here.pop(count["batch"])
            found[at] = replace(found[at], last=entry["number"])
        new = [count["batch"] for count in entry["added"] if count["batch"] not in here]
        judged = _judged(opened, entry, new) if entry["action"] == "add" else {}
        for batch in new:
            here[batch] = len(found)
            found.append(_Stay(batch, entry["number"], None, *judged.get(batch, ("", np.nan))))
    return found


def _judged(opened: Atlas, entry: dict[str, Any], new: list[Any]) -> dict[Any, tuple[str, float]]:
    """Level of the advice, and movement, of arriving batches, from the models before and after."""
    from ..atlas.judging import judge_arrival

    before, after = opened.model_at(entry["parent"]), opened.model_at(entry["number"])
    if after is None or not new:
        return {}
    table = judge_arrival(before, after.fit_.moments.select(new), after)
    pairs = zip(table["advice_level"], table["moved"], strict=True)
    return dict(zip(table.index.tolist(), pairs, strict=True))


def _versions(axes: Axes, log: list[dict[str, Any]]) -> None:
    numbers, cells = ([entry[name] for entry in log] for name in ("number", "n_cells"))
    bars = axes.bar(numbers, cells, color=COLOURS[5], width=0.8)
    named = {entry["number"] for entry in _named(log)}
    names = [f"{e['n_batches']}" if e["number"] in named else "" for e in log]
    axes.bar_label(bars, names, fontsize=8, padding=1, color="0.3")
    axes.set_ylabel("cells", fontsize=9)
    axes.set_title("cells of each version; above, its number of batches", fontsize=10, loc="left")
    axes.yaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    axes.tick_params(labelsize=8)
    axes.margins(y=0.15)
    plain_frame(axes)


def _arrivals(axes: Axes, stays: list[_Stay], now: int) -> None:
    rows = {batch: row for row, batch in enumerate(dict.fromkeys(stay.batch for stay in stays))}
    for stay in stays:
        row = rows[stay.batch]
        end = now + 0.4 if stay.last is None else stay.last - 0.5
        axes.plot([stay.first, end], [row, row], color="0.75", linewidth=3, solid_capstyle="butt")
        if stay.last is not None:
            axes.plot(end, row, **_MARKS["removed"])
        if np.isnan(stay.moved):
            axes.plot(stay.first, row, **_MARKS["returned by a rollback"])
            continue
        axes.plot(stay.first, row, "o", markersize=8, color=LEVELS[stay.level])
        axes.text(stay.first - 0.2, row, f"{stay.moved:.2f}", fontsize=7, ha="right", va="center")
    axes.set_yticks(range(len(rows)), [label(batch) for batch in rows], fontsize=8)
    axes.set_ylim(max(len(rows), 3) - 0.4, -0.6)
    axes.set_xlim(0.4, now + 0.6)
    axes.set_xlabel("version", fontsize=9)
    plain_frame(axes)


def _legend(axes: Axes, stays: list[_Stay]) -> None:
    from matplotlib.lines import Line2D

    levels = [stay.level for stay in stays if not np.isnan(stay.moved)]
    used = {
        "removed": any(stay.last is not None for stay in stays),
        "returned by a rollback": any(np.isnan(stay.moved) for stay in stays),
    }
    marks = [Line2D([], [], label=name, **_MARKS[name]) for name in used if used[name]]
    place = {"loc": "lower left", "bbox_to_anchor": (0, 1.0), "ncols": 6, "borderaxespad": 0.2}
    verdict_legend(axes, levels, marks, "advice", **place)


def _named(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Versions that are named: of many only some, at equal distances, with the latest."""
    step = -(-len(log) // MAX_TICKS)
    return log[(len(log) - 1) % step :: step]


def _words(entry: dict[str, Any]) -> str:
    word = f"to {entry['to']}" if entry["action"] == "rollback" else entry["action"]
    return f"{entry['number']}\n{word}"
