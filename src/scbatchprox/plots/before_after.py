"""Cells before and after refinement, coloured by batch, by cell type and by how far they moved.

Cells are points, or a picture of pixels where there are very many of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ..core.checks import some_of
from ..core.shown import count
from ..errors import BadValue, Parameter
from ..kernels.arrays import Floats, Ints
from .canvas import GREY, Shown, colours, label, panels, picture, unset
from .inputs import Groups, Pair, pair_of
from .layout import views

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["MAX_POINTS", "before_after"]

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


@dataclass(frozen=True, eq=False)
class Panel:
    """Axes, the positions of cells on them, the limits of x and of y, and the order of drawing."""

    axes: Axes
    xy: Floats
    limits: Floats
    order: Ints

    def __post_init__(self) -> None:
        axes = self.axes
        axes.set_xlim(*self.limits[0])
        axes.set_ylim(*self.limits[1])
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_color("0.8")

    @property
    def inside(self) -> NDArray[np.bool_]:
        """Whether each cell is in the picture."""
        low, high = self.limits.T
        found: NDArray[np.bool_] = np.all((self.xy >= low) & (self.xy < high), axis=1)
        return found

    def draw_groups(self, codes: Ints, colours: list[str]) -> None:
        """Draw cells in the colours of their groups; no group covers another.

        Cells without a group (-1) are grey, and below all others.
        """
        from matplotlib.colors import to_rgb

        palette = np.array([to_rgb(colour) for colour in [*colours, GREY]])
        order = self.order[np.argsort(codes[self.order] >= 0, kind="stable")]
        if len(self.xy) <= MAX_POINTS:
            self._points(order, c=palette[codes[order]])
            return
        at, seen = self._pixels()
        order = order[seen[order]]
        # The last cell written to a pixel gives its colour, as the last point drawn would.
        shown = np.full(PIXELS**2, -1, np.int32)
        shown[at[order]] = codes[order]
        self._show(palette[shown], np.bincount(at[seen], minlength=PIXELS**2))

    def draw_values(self, values: Floats, top: float) -> Any:
        """Draw cells in the colours of numbers from 0 to ``top``; a pixel has the mean of its cells.

        Returns what a colour bar needs.
        """
        from matplotlib import colormaps
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import Normalize

        colours = ScalarMappable(Normalize(0.0, top or 1.0), colormaps["viridis_r"])
        if len(self.xy) <= MAX_POINTS:
            self._points(self.order, c=values[self.order], norm=colours.norm, cmap=colours.cmap)
            return colours
        at, seen = self._pixels()
        n = np.bincount(at[seen], minlength=PIXELS**2)
        mean = np.bincount(at[seen], values[seen], minlength=PIXELS**2) / np.maximum(n, 1)
        self._show(colours.to_rgba(mean)[:, :3], n)
        return colours

    def _points(self, order: Ints, **colours: Any) -> None:
        """Draw points: large for few cells, and larger in a larger panel."""
        figure: Any = self.axes.figure
        box = self.axes.get_window_extent()
        inches = box.width * box.height / figure.dpi**2
        area = float(np.clip(1500.0 * inches / len(self.xy), 1.0, 30.0))  # in points squared
        x, y = self.xy[order].T
        # They are pixels in a vector picture too: a file of 50,000 circles opens slowly.
        self.axes.scatter(x, y, s=area, linewidths=0, alpha=0.8, rasterized=True, **colours)

    def _pixels(self) -> tuple[Ints, NDArray[np.bool_]]:
        """The number of the pixel of each cell, and whether it is inside the picture."""
        low, high = self.limits.T
        at = ((self.xy - low) * (PIXELS / (high - low))).astype(np.int64)
        return at[:, 1] * PIXELS + at[:, 0], self.inside & (at < PIXELS).all(1)

    def _show(self, colour: Floats, n: Ints) -> None:
        """Draw pixels in their colours; the more cells one has, the more opaque it is."""
        part = np.log1p(n) / np.log1p(max(int(n.max()), 1))
        opacity = np.where(n > 0, MIN_OPACITY + (1.0 - MIN_OPACITY) * part, 0.0)
        image = np.column_stack([colour, opacity]).reshape(PIXELS, PIXELS, 4)
        self.axes.imshow(
            image, extent=(*self.limits[0], *self.limits[1]), origin="lower", aspect="auto",
            interpolation="nearest",
        )  # fmt: skip


def limits_of(*clouds: Floats) -> Floats:
    """((x_min, x_max), (y_min, y_max)) of the cells of these clouds, without those far from all others."""
    ends = []
    for cloud in clouds:
        some = cloud[:: 1 + len(cloud) // SOME_CELLS]
        first, last = np.quantile(some, [TAIL, 1 - TAIL], axis=0)
        low, high = cloud.min(0), cloud.max(0)
        wide = last - first
        near = [np.maximum(low, first - wide), np.minimum(high, last + wide)]
        # Cells at one point have no middle part that could tell what is far.
        ends.append(np.where(wide > 0, near, [low, high]))
    low, high = np.min(ends, 0)[0], np.max(ends, 0)[1]
    margin = np.where(high > low, MARGIN * (high - low), 0.5)
    found: Floats = np.stack([low - margin, high + margin], 1)
    return found


#: What cells can be coloured by.
COLOURINGS = ("batch", "cell type", "movement")
#: Inches of a panel, and of a column of names beside it.
PANEL, LEGEND = (4.2, 3.7), 1.6
#: A legend has at most this many names, in columns of at most so many.
MAX_NAMES, COLUMN = 40, 18
#: A name is written on the tile of a panel with most of its cells: tiles along each side, and the width and
#: height of a letter as a part of the panel.
TILES, LETTER = 20, (0.02, 0.05)
#: The colours of movement end at this quantile, so that a few cells do not decide on all colours.
TOP = 0.99


@picture
def before_after(
    data: Any,
    after: Any = None,
    *,
    key: str | None = None,
    batch_key: Any = None,
    label_key: Any = None,
    basis: Any = "auto",
    color: Sequence[str] | None = None,
    titles: tuple[str, str] | None = None,
    seed: int = 0,
    **shown: Unpack[Shown],
) -> Any:
    """Draw cells before and after refinement, one row of panels per colouring.

    More than 50,000 cells are drawn as pixels, so that a million take a few seconds.

    Parameters
    ----------
    data, after
        An AnnData or MuData that :func:`scbatchprox.refine` wrote to; or two arrays or data frames (cells x
        coordinates).
    key
        The refined embedding in ``obsm``, ``"rna:X_pca_batchprox"`` for that of the modality ``rna``; by
        default the only one that ``uns`` has a record of.
    batch_key, label_key
        Columns of ``obs`` with the batch and the type of each cell; by default the batches that were
        refined, and no types. With arrays, a label per cell. Cells without a label are grey.
    basis
        ``"umap"``: a UMAP of each, those in ``obsm`` (``X_umap`` and ``X_umap_batchprox``, which ends as
        ``key`` does) or new ones of at most 10,000 cells. ``"pca"``: both on the first two principal axes of
        the unrefined embedding, so that displacements can be seen. ``"auto"``: ``"umap"`` if these are in
        ``obsm`` or umap-learn is installed, and there are more than 15 cells and two coordinates; otherwise
        ``"pca"``. Another key of ``obsm``, such as ``"X_tsne"``: this and ``X_tsne_batchprox``. Two keys,
        or two arrays: positions before and after. Two numbers, such as ``(0, 1)``: these coordinates of the
        embeddings.
    color
        Which of ``"batch"``, ``"cell type"`` and ``"movement"`` to draw; by default all that are known.
    titles
        Titles of the two columns.
    seed
        Seed of the order in which cells are drawn, of the sample, and of the UMAP.
    ax
        Axes to draw in, two for each colouring.
    show
        ``True`` calls ``pyplot.show()``. ``None`` leaves it to the notebook. ``False`` does neither.
    save
        File to write, in a folder that exists; its suffix sets the format.

    Returns
    -------
    Array of axes, a row per colouring, with columns before and after.

    Examples
    --------
    >>> import numpy as np
    >>> from scbatchprox import BatchProx, pl
    >>> rng = np.random.default_rng(0)
    >>> batch = np.repeat(["a", "b"], 100)
    >>> Z = rng.normal(size=(200, 5)) + 2.0 * (batch == "b")[:, None]
    >>> refined = BatchProx(target="moment").fit_transform(Z, batch=batch)
    >>> pl.before_after(Z, refined, batch_key=batch, basis="pca").shape
    (2, 2)
    """
    cells = pair_of(data, after, key, batch_key, label_key)
    rows = _colourings(cells, color)
    found = views(cells, basis, seed)
    width = 2 * PANEL[0] + max(_legend_width(cells.groups.get(row)) for row in rows)
    grid = panels((len(rows), 2), (width, PANEL[1] * len(rows) + 0.3), **shown)
    # Positions in panels with different meanings have limits of their own.
    own = [limits_of(xy) for xy in (found.before, found.after)]
    both = limits_of(found.before, found.after)
    limits = [both, both] if found.shared else own
    order = np.random.default_rng(seed).permutation(found.rows.size)
    for line, row in zip(grid, rows, strict=True):
        places = zip(line, (found.before, found.after), limits, strict=True)
        pair = [Panel(*place, order) for place in places]
        if row == "movement":
            _movement(pair, cells.moved(found.rows))
        else:
            _groups(pair, cells.groups[row], found.rows, on_cells=row == "cell type")
        line[0].set_ylabel(f"by {row}", fontsize=12)
    for axes, title in zip(grid[0], titles or cells.titles, strict=True):
        axes.set_title(title, fontsize=12)
    for panel in pair:
        panel.axes.set_xlabel(unset(found.axes + _left_out(panel)), fontsize=9, color="0.4")
    return grid


def _colourings(cells: Pair, color: Sequence[str] | None) -> list[str]:
    known = [name for name in COLOURINGS if name in cells.groups or name == "movement"]
    color = known if color is None else [color] if isinstance(color, str) else list(color)
    absent = [name for name in color if name not in known]
    if absent or not color:
        raise BadValue(
            f"Expected color from {some_of(known)}, found {some_of(absent)}; ", Parameter("label_key="),
            " adds 'cell type'.",
        )  # fmt: skip
    return color


def _left_out(panel: Panel) -> str:
    """Say how many cells are beyond the edge of a panel."""
    n = int((~panel.inside).sum())
    return f"\n{count(n, 'cell')} outside the panel" if n else ""


def _movement(pair: list[Panel], moved: Floats) -> None:
    top = float(np.quantile(moved, TOP))
    for panel in pair:
        bar = panel.draw_values(moved, top)
    beside = panel.axes.inset_axes((1.03, 0.1, 0.035, 0.8))
    beside.figure.colorbar(bar, cax=beside, label="distance moved, in spreads", extend="max")


def _groups(pair: list[Panel], groups: Groups, rows: Ints, on_cells: bool) -> None:
    codes, names = groups.codes[rows], groups.names
    for panel in pair:
        panel.draw_groups(codes, colours(len(names)))
        if on_cells:
            _names_on_cells(panel, codes, names)
    _legend(pair[1].axes, groups)


def _legend(axes: Axes, groups: Groups) -> None:
    """Names beside the panel, in columns; those beyond the 40th are counted."""
    from matplotlib.lines import Line2D

    names, shown = groups.names, groups.names[:MAX_NAMES]
    marks = [(label(name), colour) for name, colour in zip(shown, colours(len(shown)), strict=True)]
    marks += [("no label", GREY)] * groups.incomplete
    handles = [
        Line2D([], [], marker="o", linestyle="", markersize=6, color=colour, label=text)
        for text, colour in marks
    ]
    if len(names) > len(shown):
        rest = f"and {len(names) - len(shown)} more"
        handles.append(Line2D([], [], linestyle="", label=rest))
    axes.legend(
        handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize=8,
        ncols=_columns(groups), handletextpad=0.1, columnspacing=0.8, borderaxespad=0.0,
    )  # fmt: skip


def _columns(groups: Groups) -> int:
    return -(-min(len(groups.names) + groups.incomplete, MAX_NAMES) // COLUMN)


def _legend_width(groups: Groups | None) -> float:
    if groups is None:
        return 0.9  # of a colour bar
    return LEGEND * _columns(groups)


def _names_on_cells(panel: Panel, codes: Ints, names: list[Any]) -> None:
    """Write names where most of their cells are, the largest groups first; none covers another."""
    from matplotlib.patheffects import withStroke

    taken: list[tuple[float, float, float]] = []
    axes, edge = panel.axes, panel.limits
    seen = panel.inside & (codes >= 0)
    xy, codes = panel.xy[seen], codes[seen]
    for code in np.argsort(-np.bincount(codes, minlength=len(names)), kind="stable").tolist():
        own = xy[codes == code]
        if len(own) == 0:
            continue
        text = label(names[code], 16)
        # The middle of the tile with most cells.
        counts, *ends = np.histogram2d(own[:, 0], own[:, 1], bins=TILES, range=edge)
        tile = np.unravel_index(counts.argmax(), counts.shape)
        middle = np.array([end[i : i + 2].mean() for i, end in zip(tile, ends, strict=True)])
        across, up = (middle - edge[:, 0]) / (edge[:, 1] - edge[:, 0])
        width = LETTER[0] * len(text)
        across = np.clip(across, width / 2, 1 - width / 2)  # within the panel
        if any(abs(across - a) < (width + w) / 2 and abs(up - u) < LETTER[1] for a, u, w in taken):
            continue
        taken.append((float(across), float(up), width))
        outline = [withStroke(linewidth=2.2, foreground="white")]
        axes.text(
            float(across), float(up), text, transform=axes.transAxes, fontsize=7.5, ha="center",
            va="center", weight="bold", path_effects=outline,
        )  # fmt: skip
