"""Plots of embeddings before and after refinement; needs matplotlib (extra ``report``)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .canvas import COLOURS, DPI, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["before_after"]


def before_after(
    before: Any,
    after: Any,
    colour_by: Mapping[str, Any],
    *,
    titles: tuple[str, str] = ("before", "after"),
    path: str | Path | None = None,
    seed: int = 0,
) -> Figure:
    """Draw both embeddings on the first two principal axes of the first, one row per colouring.

    Both columns share axes and limits, so that displacements can be compared.

    Parameters
    ----------
    before, after
        (N, d) embeddings of the same cells.
    colour_by
        Title of each row, and the label of each cell that sets its colour.
    titles
        Titles of the two columns.
    path
        File for the picture, if given; the suffix sets the format.
    seed
        Seed of the order in which cells are drawn, so that no group always covers another.
    """
    figure = new_figure(10, 4.2 * len(colour_by))
    before, after = np.asarray(before, float), np.asarray(after, float)
    principal = _principal_axes(before)
    views = [(Z - before.mean(0)) @ principal for Z in (before, after)]
    order = np.random.default_rng(seed).permutation(len(before))
    grid = figure.subplots(len(colour_by), 2, sharex=True, sharey=True, squeeze=False)
    for row, (name, labels) in zip(grid, colour_by.items(), strict=True):
        for axes, view, title in zip(row, views, titles, strict=True):
            _scatter(axes, view[order], pd.Categorical(np.asarray(labels)[order]))
            axes.set_title(f"{title}, by {name}", fontsize=11)
        handles, names = row[1].get_legend_handles_labels()
        row[1].legend(
            handles, names, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False,
            fontsize=8, markerscale=4,
        )  # fmt: skip
    if path is not None:
        figure.savefig(path, dpi=DPI)
    return figure


def _principal_axes(Z: np.ndarray) -> np.ndarray:
    _, vectors = np.linalg.eigh(np.cov(Z, rowvar=False).reshape(Z.shape[1], -1))
    two = vectors[:, ::-1][:, :2]
    return two if two.shape[1] == 2 else np.hstack([two, np.zeros_like(two)])


def _scatter(axes: Axes, view: np.ndarray, labels: pd.Categorical) -> None:
    size = float(np.clip(20_000 / len(view), 0.5, 12))
    for code, name in enumerate(labels.categories):
        cells = labels.codes == code
        x, y = view[cells].T
        axes.scatter(
            x, y, s=size, color=COLOURS[code % len(COLOURS)], linewidths=0, alpha=0.7,
            label=str(name), zorder=2 + 1 / (1 + cells.sum()),
        )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])
