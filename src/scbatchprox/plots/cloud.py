"""Cells as points, or as a picture of pixels where there are very many of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..kernels.arrays import Floats, Ints

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MAX_POINTS", "draw_groups", "draw_values"]

#: More cells than this are drawn as pixels.
MAX_POINTS = 50_000
#: Pixels along each side of such a picture.
PIXELS = 400
#: Opacity of a pixel with one cell; the fullest pixel has 1.
MIN_OPACITY = 0.35
#: A margin around the cells, as a part of their range.
MARGIN = 0.03
#: A picture of pixels ends at these quantiles of the cells, so that a few of them do not shrink it.
EDGE = 1e-4


def draw_groups(
    axes: Axes, xy: Floats, codes: Ints, colours: list[str], order: Ints, limits: Floats
) -> None:
    """Draw cells in the colours of their groups, in a random ``order``: no group covers another."""
    from matplotlib.colors import to_rgb

    palette = np.array([to_rgb(colour) for colour in colours])
    _frame(axes, limits)
    if len(xy) <= MAX_POINTS:
        x, y = xy[order].T
        axes.scatter(x, y, s=_size(axes, len(xy)), c=palette[codes[order]], **_POINT)
        return
    row, column, inside = _pixels(xy, limits)
    order = order[inside[order]]
    # The last cell written to a pixel gives its colour, as the last point drawn would.
    shown = np.full((PIXELS, PIXELS), -1, np.int32)
    shown[row[order], column[order]] = codes[order]
    image = np.zeros((PIXELS, PIXELS, 4))
    image[..., :3] = palette[shown]
    image[..., 3] = _opacity(row[inside], column[inside])
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
    row, column, inside = _pixels(xy, limits)
    at = row[inside] * PIXELS + column[inside]
    count = np.bincount(at, minlength=PIXELS**2)
    mean = np.bincount(at, values[inside], minlength=PIXELS**2) / np.maximum(count, 1)
    image = colours.to_rgba(mean.reshape(PIXELS, PIXELS))
    image[..., 3] = _opacity(row[inside], column[inside])
    _show(axes, image, limits)
    return colours


def limits_of(*clouds: Floats) -> Floats:
    """((x_min, x_max), (y_min, y_max)) of the cells of these clouds."""
    if len(clouds[0]) <= MAX_POINTS:
        ends = np.array([[np.min(c, 0) for c in clouds], [np.max(c, 0) for c in clouds]])
    else:
        steps = (
            1 + len(clouds[0]) // 200_000
        )  # a quantile of very many cells needs only some of them
        ends = np.array([np.quantile(c[::steps], [EDGE, 1 - EDGE], axis=0) for c in clouds])
        ends = ends.transpose(1, 0, 2)
    low, high = ends[0].min(0), ends[1].max(0)
    margin = np.where(high > low, MARGIN * (high - low), 0.5)
    found: Floats = np.stack([low - margin, high + margin], 1)
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
    inside = ((xy >= low) & (xy < high)).all(1) & (at < PIXELS).all(1)
    return at[:, 1], at[:, 0], inside


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
