"""What all pictures share: colours, resolution and an empty figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "DPI", "new_figure"]

#: The colours of Okabe and Ito, which colour-blind readers can distinguish, and a few more for many groups.
COLOURS = [
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#D55E00", "#B8A800"),
    *("#8C564B", "#7F7F7F", "#5B3FA0", "#A6CEE3"),
]
#: Dots per inch of written pictures.
DPI = 110


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
