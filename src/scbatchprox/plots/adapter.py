"""Scale and shift of each batch and coordinate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.checks import some_of
from ..errors import BadKey
from ..kernels.arrays import Floats
from .canvas import check_save, finish, label, panels
from .given import AdapterRows, adapter_of
from .verdicts import MAX_ROWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["adapter"]

#: Colours end at this quantile of the absolute values, so that one coordinate does not fade all others.
TOP = 0.98
#: The smallest ranges of colours: of shifts (less is rounding), and of logarithms of scales, to base 2.
MIN_RANGE, MIN_LOG_RANGE = 1e-6, 0.3
#: Scales that differ less from 1 cannot be seen.
SAME_SCALE = 0.01


def adapter(
    data: Any,
    *,
    key: str | None = None,
    batch: Any = None,
    ax: Any = None,
    show: bool | None = None,
    save: str | Path | None = None,
) -> Any:
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
    check_save(save)
    rows = adapter_of(data, key)
    names, scale, shift, note = _rows(rows, batch)
    height = 1.5 + 0.2 * min(max(len(names), 3), MAX_ROWS)
    grid = panels(ax, (1, 2), (11, height), show)
    left, right = grid[0]
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
    finish(grid, show, save)
    return grid[0]


def _rows(rows: AdapterRows, batch: Any) -> tuple[list[Any], Floats, Floats, str]:
    """Names, scales and shifts of the rows to draw, and a note on them."""
    batches, code, count = np.unique(rows.batch, return_inverse=True, return_counts=True)
    if batch is not None:
        own = rows.batch == batch
        if not np.any(own):
            raise BadKey(
                f"Expected a batch of the adapter, found {batch!r}; available: "
                f"{some_of(batches.tolist())}."
            )
        names = [f"population {i + 1}" for i in range(int(own.sum()))]
        return names, rows.scale[own], rows.shift[own], f" of the populations of {label(batch)}"
    mean = np.zeros((2, batches.size, rows.scale.shape[1]))
    np.add.at(mean[0], code, rows.scale)
    np.add.at(mean[1], code, rows.shift)
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
