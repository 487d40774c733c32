"""What all pictures share: colours of groups and of verdicts, figures and axes, showing and saving."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import numpy as np
import pandas as pd

from ..core.checks import some_of
from ..diagnosis.verdict import Level, verdicts_of
from ..errors import BadFile, BadType, BadValue, MissingExtra
from ..options import with_parameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "COLOURS", "DPI", "GREY", "LEVELS", "MAX_ROWS", "NONE", "Shown", "colours", "label", "levels_of",
    "new_figure", "panels", "picture", "plain_frame", "titles_above", "unset", "verdict_legend",
]  # fmt: skip

#: The first seven are those of Okabe and Ito. Each of the others is the one that differs most from all before
#: it, for readers with normal sight, without red cones and without green cones.
COLOURS = [
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#D55E00", "#0000FF"),
    *("#0F0087", "#E1E196", "#692D0F", "#2D78FF", "#3C0F4B", "#FFD2D2", "#2D5A5A", "#87F05A"),
    *("#78B45A", "#69783C", "#870FC3", "#960F87", "#C3D2F0", "#5A1E2D", "#3C4BFF", "#8796FF"),
    *("#FF6987", "#963C00", "#1E0F69", "#B4F000", "#2D1E00", "#1E694B", "#D200B4", "#A5B4A5"),
    *("#B43C87", "#000FD2", "#3CB4C3", "#3C3C5A", "#F0B496", "#691E96", "#00D22D", "#5A961E"),
]
#: What has no colour of its own.
GREY = "#9A9A9A"
#: Dots per inch of written pictures.
DPI = 110
#: Longer names are cut.
NAME_LENGTH = 24


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this size in inches, drawn without a display."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("matplotlib to draw with", "report") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


class Shown(TypedDict, total=False):
    """Where a picture goes: parameters of all pictures, as told at :func:`.before_after`."""

    ax: Any
    show: bool | None
    save: str | Path | None


Draw = TypeVar("Draw", bound=Callable[..., Any])


def picture(draw: Draw) -> Draw:
    """Save and show what a function draws; it passes its parameters ``**shown`` on to :func:`panels`.

    ``show=None`` leaves it to a notebook, which shows every figure that pyplot knows. ``False`` makes a
    figure that pyplot does not know.
    """

    @wraps(draw)
    def drawn(*args: Any, **options: Any) -> Any:
        signed.bind(*args, **options)
        save = options.get("save")
        _check_save(save)
        axes = draw(*args, **options)
        if save is not None:
            np.ravel(axes)[0].figure.savefig(save, dpi=DPI)
        if options.get("show"):
            import matplotlib.pyplot as plt

            plt.show()
        return axes

    own = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind.__forward_arg__)
        for name, kind in Shown.__annotations__.items()
    ]
    signed = signature(with_parameters(drawn, own))
    return drawn  # type: ignore[return-value]


def panels(
    shape: tuple[int, int],
    size: tuple[float, float],
    *,
    ax: Any = None,
    show: bool | None = None,
    save: str | Path | None = None,
    **options: Any,
) -> Any:
    """Return a grid of axes: those that the user gave as ``ax``, or those of a new figure.

    Parameters
    ----------
    shape, size
        Rows and columns, and inches of a new figure.
    ax, show, save
        As for :func:`picture`; axes may be one, or as many as the grid has, in any nesting.
    options
        Of ``Figure.subplots``, for a new figure.
    """
    n = shape[0] * shape[1]
    if ax is None:
        return _figure(size, show).subplots(*shape, squeeze=False, **options)
    given = np.array(ax, dtype=object).ravel()
    if not all(hasattr(one, "imshow") for one in given):
        raise BadType(f"Expected axes of matplotlib as ax, found {type(given[0]).__name__}.")
    if given.size != n:
        raise BadValue(f"Expected {n} axes for {shape[0]} x {shape[1]} panels, found {given.size}.")
    return given.reshape(shape)


def _check_save(save: Any) -> None:
    """Check that a picture can be written to ``save``, before minutes of drawing."""
    if save is None:
        return
    if not isinstance(save, str | Path):
        raise BadType(f"Expected save to be a file, such as 'picture.png', found {save!r}.")
    folder, kind = Path(save).parent, Path(save).suffix[1:]
    if not folder.is_dir():
        raise BadFile(
            f"Expected save to be a file in a folder that exists, found no {str(folder)!r}."
        )
    available = new_figure(1, 1).canvas.get_supported_filetypes()
    if kind and kind.lower() not in available:
        raise BadValue(
            f"Expected save to be a picture, found the suffix {kind!r}; available: "
            f"{some_of(sorted(available), most=20)}."
        )


def plain_frame(axes: Axes) -> None:
    """Leave out the lines above and to the right of a panel."""
    axes.spines[["top", "right"]].set_visible(False)


def titles_above(axes: Axes) -> None:
    """Make a panel a table: titles of columns are above, and there are no lines around it."""
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)


def colours(n: int) -> list[str]:
    """Return a colour for each of ``n`` groups; they repeat after the 40th."""
    return [COLOURS[i % len(COLOURS)] for i in range(n)]


def label(name: Any, length: int = NAME_LENGTH) -> str:
    """Return a name that fits beside a picture; the middle of a long one is left out.

    >>> label("a_very_long_name_of_a_sample_L001")
    'a_very_long_…sample_L001'
    """
    text = str(name)
    if len(text) > length:
        head = length // 2
        text = f"{text[:head]}…{text[len(text) - (length - head - 1) :]}"
    return unset(text)


def unset(text: str) -> str:
    """Return a text that is drawn as it is: matplotlib would set what is between two ``$`` as a formula."""
    return text.replace("$", r"\$")


def _figure(size: tuple[float, float], show: bool | None) -> Figure:
    figure = new_figure(*size)  # an error here names the extra
    if show is False or not (show or _pyplot_in_use()):
        return figure
    import matplotlib.pyplot as plt

    return plt.figure(figsize=size, layout="constrained")


def _pyplot_in_use() -> bool:
    """Whether the user draws with pyplot, or is in a notebook, where only pyplot's figures appear."""
    shell = sys.modules.get("IPython")
    return "matplotlib.pyplot" in sys.modules or (
        shell is not None and shell.get_ipython() is not None
    )


#: The level of what has no verdict.
NONE = "no verdict"
#: Colours of verdicts, from good to bad. They differ in lightness too, for prints without colour.
LEVELS: dict[str, str] = {
    Level.NO_EFFECT: "#A6DBC8",
    Level.REMOVED: "#56B4E9",
    Level.WEAK: "#E69F00",
    Level.ALONE: "#882255",
    NONE: GREY,
}
#: Of more batches than this only the ones that need attention are drawn.
MAX_ROWS = 60


def levels_of(table: pd.DataFrame) -> list[str]:
    """Return the level of each batch; ``no verdict`` where there is none."""
    return [NONE if verdict is None else verdict.level for verdict in verdicts_of(table)]


def verdict_legend(
    axes: Axes, levels: list[str], marks: Sequence[Any] = (), what: str = "verdict", **options: Any
) -> None:
    """Say what colours mean: the ``levels`` in the picture, and other ``marks`` with labels."""
    from matplotlib.patches import Patch

    words = {name: f"{what}: {name}" for name in LEVELS} | {NONE: NONE}
    handles = [Patch(color=LEVELS[name], label=words[name]) for name in LEVELS if name in levels]
    axes.legend(handles=[*handles, *marks], frameon=False, fontsize=8, **options)
