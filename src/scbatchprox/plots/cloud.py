"""Cells as points, or as a picture of pixels where there are very many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Floats, Ints
from .canvas import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MAX_POINTS", "draw_groups", "draw_values", "inside", "limits_of"]

#: More cells than this are drawn as pixels.
MAX_POINTS = 50_000
#: Pixels along each side of such a picture.
PIXELS = 400
#: Opacity of a pixel with one cell; the fullest pixel has 1.
MIN_OPACITY = 0.35
#: A margin around the cells, as a part of their range.
MARGIN = 0.03
#: A picture ends where a cell is farther from the middle part of the cells than this part is wide: a few
#: cells do not shrink all others. The middle part is without so many cells at either end.
TAIL = 0.05
#: Quantiles of very many cells are those of about this many.
SOME_CELLS = 200_000


def draw_groups(
    axes: Axes, xy: Floats, codes: Ints, colours: list[str], order: Ints, limits: Floats
) -> None:
    """Draw cells in the colours of their groups, in a random ``order``: no group covers another.

    Cells without a group (-1) are grey, and below all others.
    """
    from matplotlib.colors import to_rgb

    palette = np.array([to_rgb(colour) for colour in [*colours, GREY]])
    order = order[np.argsort(codes[order] >= 0, kind="stable")]
    _frame(axes, limits)
    if len(xy) <= MAX_POINTS:
        x, y = xy[order].T
        axes.scatter(x, y, s=_size(axes, len(xy)), c=palette[codes[order]], **_POINT)
        return
    row, column, seen = _pixels(xy, limits)
    order = order[seen[order]]
    # The last cell written to a pixel gives its colour, as the last point drawn would.
    shown = np.full((PIXELS, PIXELS), -1, np.int32)
    shown[row[order], column[order]] = codes[order]
    image = np.zeros((PIXELS, PIXELS, 4))
    image[..., :3] = palette[shown]
    image[..., 3] = _opacity(row[seen], column[seen])
    _show(axes, image, limits)


def draw_values(
    axes: Axes, xy: Floats, values: Floats, order: Ints, limits: Floats, top: float
) -> Any:
    """Draw cells in the colours of numbers from 0 to ``top``; a pixel has the mean of its cells.

    Returns what a colour bar needs.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    _frame(axes, limits)
    norm = Normalize(0.0, top or 1.0)
    colours = ScalarMappable(norm, colormaps["viridis_r"])
    if len(xy) <= MAX_POINTS:
        x, y = xy[order].T
        style: dict[str, Any] = {"norm": norm, "cmap": "viridis_r"} | _POINT
        axes.scatter(x, y, s=_size(axes, len(xy)), c=values[order], **style)
        return colours
    row, column, seen = _pixels(xy, limits)
    at = row[seen] * PIXELS + column[seen]
    count = np.bincount(at, minlength=PIXELS**2)
    mean = np.bincount(at, values[seen], minlength=PIXELS**2) / np.maximum(count, 1)
    image = colours.to_rgba(mean.reshape(PIXELS, PIXELS))
    image[..., 3] = _opacity(row[seen], column[seen])
    _show(axes, image, limits)
    return colours


def limits_of(*clouds: Floats) -> Floats:
    """((x_min, x_max), (y_min, y_max)) of the cells of these clouds, without those far from all others."""
    ends = []
    for cloud in clouds:
        some = cloud[:: 1 + len(cloud) // SOME_CELLS]
        first, last = np.quantile(some, [TAIL, 1 - TAIL], axis=0)
        low, high = cloud.min(0), cloud.max(0)
        wide = last - first
        # Cells at one point have no middle part that could tell what is far.
        ends.append(
            np.where(
                wide > 0,
                [np.maximum(low, first - wide), np.minimum(high, last + wide)],
                [low, high],
            )
        )
    low, high = np.min(ends, 0)[0], np.max(ends, 0)[1]
    margin = np.where(high > low, MARGIN * (high - low), 0.5)
    found: Floats = np.stack([low - margin, high + margin], 1)
    return found


def inside(xy: Floats, limits: Floats) -> NDArray[np.bool_]:
    """Whether each cell is in the picture."""
    found: NDArray[np.bool_] = np.all((xy >= limits[:, 0]) & (xy < limits[:, 1]), axis=1)
    return found


#: Points of a vector picture are pixels too: a file of 50,000 circles opens slowly.
_POINT: dict[str, Any] = {"linewidths": 0, "alpha": 0.8, "rasterized": True}


def _size(axes: Axes, n: int) -> float:
    """Area of a point, in points squared: large for few cells, and larger in a larger panel."""
    figure: Any = axes.figure
    box = axes.get_window_extent()
    inches = box.width * box.height / figure.dpi**2
    return float(np.clip(1500.0 * inches / n, 1.0, 30.0))


def _frame(axes: Axes, limits: Floats) -> None:
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color("0.8")


def _pixels(xy: Floats, limits: Floats) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Row and column of the pixel of each cell, and whether it is inside the picture."""
    low, high = limits.T
    at = ((xy - low) * (PIXELS / (high - low))).astype(np.int64)
    return at[:, 1], at[:, 0], inside(xy, limits) & (at < PIXELS).all(1)


def _opacity(row: Ints, column: Ints) -> Floats:
    """(PIXELS, PIXELS) opacity by the logarithm of the number of cells; 0 without any."""
    count = np.bincount(row * PIXELS + column, minlength=PIXELS**2).reshape(PIXELS, PIXELS)
    part = np.log1p(count) / np.log1p(max(int(count.max()), 1))
    shade: Floats = np.where(count > 0, MIN_OPACITY + (1.0 - MIN_OPACITY) * part, 0.0)
    return shade


def _show(axes: Axes, image: Floats, limits: Floats) -> None:
    axes.imshow(
        image, extent=(*limits[0], *limits[1]), origin="lower", aspect="auto",
        interpolation="nearest",
    )  # fmt: skip
