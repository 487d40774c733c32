"""Colours and markers that tell groups apart, for colour-blind readers too, on light and dark pages."""

from __future__ import annotations

__all__ = ["COLOURS", "MARKERS", "looks"]

#: Their lightness differs little, so that all are seen on white and on black; hues are far apart.
COLOURS = ("#0077BB", "#D55E00", "#009E73", "#B0579A", "#8A7A00", "#3899CA", "#DD5566", "#7A7A85")
#: Markers of Bokeh, and the signs that look like them.
MARKERS = {"circle": "●", "triangle": "▲", "square": "■", "diamond": "◆", "inverted_triangle": "▼"}


def looks(n: int) -> list[tuple[str, str]]:
    """Return a colour and a marker for each of ``n`` groups; all differ for up to 40 groups."""
    markers = list(MARKERS)
    return [
        (COLOURS[i % len(COLOURS)], markers[i // len(COLOURS) % len(markers)]) for i in range(n)
    ]
