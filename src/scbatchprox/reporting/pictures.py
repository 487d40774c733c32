"""The scatter plots before and after refinement, and what controls them: models of Bokeh.

Colours and markers tell groups apart, for colour-blind readers too, on light and dark pages. What moves the
plots, and what chooses the cells in them, are widgets that a keyboard reaches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.labels import Labels
from .contents import Drawn

__all__ = [
    "COLOURS", "MARKERS", "MOVES", "RESET", "all_or_none", "buttons", "chips", "looks", "moves", "scatter",
]  # fmt: skip

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


#: Buttons that move both plots, and the part of the shown range by which its ends move: (start, end) across,
#: (start, end) upwards.
MOVES = {
    "zoom in": ((0.2, -0.2), (0.2, -0.2)),
    "zoom out": ((-1 / 3, 1 / 3), (-1 / 3, 1 / 3)),
    "left": ((-0.25, -0.25), (0.0, 0.0)),
    "right": ((0.25, 0.25), (0.0, 0.0)),
    "up": ((0.0, 0.0), (0.25, 0.25)),
    "down": ((0.0, 0.0), (-0.25, -0.25)),
}
#: The button that undoes them.
RESET = "all cells"
#: Moves the ends of both ranges by parts of their lengths.
MOVE = """
for (const [range, [start, end]] of [[x, across], [y, upwards]]) {
  const length = range.end - range.start
  range.setv({start: range.start + start * length, end: range.end + end * length})
}
"""


def moves(x: Any, y: Any) -> dict[str, Any]:
    """Return buttons that zoom and move all plots with these ranges, for readers without a mouse."""
    found = {
        label: _button(label, MOVE, {"x": x, "y": y, "across": across, "upwards": upwards})
        for label, (across, upwards) in MOVES.items()
    }
    return found | {RESET: _button(RESET, "x.reset(); y.reset()", {"x": x, "y": y})}


def all_or_none(name: str, group: Any) -> dict[str, Any]:
    """Return two buttons that tick all names of a list, and none."""
    return {
        f"{name}_{label}": _button(
            label, "group.active = active", {"group": group, "active": active}
        )
        for label, active in (("all", group.active), ("none", []))
    }


def _button(label: str, code: str, args: dict[str, Any]) -> Any:
    from bokeh.models import Button, CustomJS

    button = Button(label=label, stylesheets=[buttons()])
    button.js_on_event("button_click", CustomJS(args=args, code=code))
    return button


def buttons() -> Any:
    """Return the style of buttons."""
    from bokeh.models import InlineStyleSheet

    return InlineStyleSheet(
        css=".bk-btn{font:inherit;color:inherit;background:transparent;border-color:#808080}"
        ".bk-btn.bk-active{background:#0067A5;color:#fff}"
        ".bk-btn:focus-visible{outline:3px solid #3899CA;outline-offset:2px}"
    )


def chips(n: int) -> Any:
    """Return the style of a list of names with the colour and the marker of each before its name."""
    from bokeh.models import InlineStyleSheet

    rules = [
        f":host(.coloured) label:nth-of-type({i + 1}) span::before"
        f'{{content:"{MARKERS[marker]}";color:{colour}}}'
        for i, (colour, marker) in enumerate(looks(n))
    ]
    base = (
        ":host{color:inherit;font:inherit;max-height:var(--list);overflow:auto;width:100%!important}"
        "label{display:flex;gap:.5em;align-items:baseline;padding:.15em .2em;overflow-wrap:anywhere}"
        "label span{position:static!important;min-width:0}span::before{margin-right:.4em}"
        "input:focus-visible{outline:3px solid #3899CA;outline-offset:2px}"
        # On paper the list is the legend: all of it, and only the names that are ticked.
        "@media print{:host{max-height:none!important;overflow:visible;height:auto!important}"
        ".bk-input-group{display:flex!important;flex-flow:row wrap;gap:0 1.2em}"
        "input{display:none}label:has(input:not(:checked)){display:none}}"
    )
    return InlineStyleSheet(css=base + "".join(rules))


#: Edge of a point in pixels, and how much of what is below it is covered.
POINT, ALPHA = 5, 0.7
#: Grey that is seen on white and on black.
GREY = "#808080"
#: Distances above this part of the cells have the last colour.
MOST_MOVED = 0.98
#: Colours of distances, from none to far: cividis, without its darkest and lightest ends.
DISTANCES = ("#3B4A6B", "#575D6D", "#707173", "#8A8678", "#A59C74", "#C3B369", "#E1CC55")
#: Shows the cells of the batches and the types that are ticked.
FILTER = """
const [b, t] = [new Set(batches.active), new Set(types.active)]
shown.booleans = Array.from(data.data.batch, (code, i) => b.has(+code) && t.has(+data.data.type[i]))
"""
#: Colours cells by what was chosen; the list of names whose colours are shown has the class.
COLOUR = """
for (const glyph of glyphs) glyph.setv(styles[cb_obj.active])
lists.forEach((list, i) => list.css_classes = i == cb_obj.active ? ["coloured"] : [])
"""


def scatter(drawn: Drawn, type_name: str | None) -> dict[str, Any]:
    """Return Bokeh models by their place in the page."""
    from bokeh.models import (
        BooleanFilter,
        CDSView,
        CheckboxGroup,
        ColumnDataSource,
        CustomJS,
        CustomJSHover,
        RadioButtonGroup,
    )

    types = drawn.cell_type or Labels.of(None, drawn.n)
    order = np.random.default_rng(0).permutation(drawn.n)  # no group always covers another
    source = ColumnDataSource(_columns(drawn, types, order))
    shown = BooleanFilter()
    view = CDSView(filter=shown)
    styles = [_style("batch", drawn.batch), _style("type", types), _distances(drawn)]
    names = [CustomJSHover(args={"names": _names(labels)}, code="return names[value]")
             for labels in (drawn.batch, types)]  # fmt: skip
    tooltips = [("batch", "@batch{custom}"), (type_name or "", "@type{custom}")]
    tooltips = [*tooltips[: 2 if type_name else 1], ("moved", "@moved{0.00} of the batch's spread")]
    ranges = {f"{axis}_range": _range(drawn, i) for i, axis in enumerate("xy")}
    plots, glyphs = {}, []
    for place in ("before", "after"):
        plot = _plot(place, ranges)
        glyph = plot.scatter(
            f"x_{place}", f"y_{place}", source=source, view=view, size=POINT, fill_alpha=ALPHA,
            line_color=None, **styles[0],
        )  # fmt: skip
        plot.add_tools(_hover(tooltips, {"@batch": names[0], "@type": names[1]}))
        glyphs.append(glyph.glyph)
        plots[place] = plot
    lists = [
        CheckboxGroup(
            labels=_names(labels), active=list(range(labels.batches.size)),
            stylesheets=[chips(labels.batches.size)], css_classes=["coloured"] * (i == 0),
            name=name,
        )
        for i, (name, labels) in enumerate((("batches", drawn.batch), ("types", types)))
    ]  # fmt: skip
    args = {"batches": lists[0], "types": lists[1], "shown": shown, "data": source}
    for group in lists:
        group.js_on_change("active", CustomJS(args=args, code=FILTER))
    chosen = ["batch", type_name, "distance moved"] if type_name else ["batch", "distance moved"]
    styles = styles if type_name else [styles[0], styles[2]]
    colour = RadioButtonGroup(labels=chosen, active=0, name="colour", stylesheets=[buttons()])
    shown_lists = lists if type_name else lists[:1]
    colour.js_on_change(
        "active",
        CustomJS(args={"glyphs": glyphs, "styles": styles, "lists": shown_lists}, code=COLOUR),
    )
    found = plots | {"colour": colour, "batches": lists[0]} | all_or_none("batches", lists[0])
    found |= moves(ranges["x_range"], ranges["y_range"])
    return found | ({"types": lists[1]} | all_or_none("types", lists[1]) if type_name else {})


def moved_limit(drawn: Drawn) -> float:
    """Return the distance from which on cells have the last colour."""
    return float(np.quantile(drawn.moved, MOST_MOVED)) or 1.0


def _range(drawn: Drawn, axis: int) -> Any:
    """Return a range that holds the cells of both plots; it stays when some are hidden."""
    from bokeh.models import Range1d

    both = np.concatenate([drawn.before[:, axis], drawn.after[:, axis]])
    margin = 0.04 * float(np.ptp(both)) or 1.0
    return Range1d(float(both.min()) - margin, float(both.max()) + margin)


def _columns(drawn: Drawn, types: Labels, order: Any) -> dict[str, Any]:
    """Return the columns of the picture: arrays of float32, and codes of groups as text."""
    positions = {
        f"{axis}_{place}": Z[order, i].astype(np.float32)
        for place, Z in (("before", drawn.before), ("after", drawn.after))
        for i, axis in enumerate("xy")
    }
    codes = {
        name: [str(code) for code in labels.codes[order].tolist()]
        for name, labels in (("batch", drawn.batch), ("type", types))
    }
    return positions | codes | {"moved": drawn.moved[order].astype(np.float32)}


def _names(labels: Labels) -> list[str]:
    return [str(name) for name in labels.batches.tolist()]


def _style(column: str, labels: Labels) -> dict[str, Any]:
    """Return the colour and the marker of cells by group."""
    from bokeh.transform import factor_cmap, factor_mark

    codes = [str(code) for code in range(labels.batches.size)]
    colours, markers = zip(*looks(len(codes)), strict=True)
    return {
        "fill_color": factor_cmap(column, colours, codes),
        "marker": factor_mark(column, markers, codes),
    }


def _distances(drawn: Drawn) -> dict[str, Any]:
    """Return the colour of cells by the distance they moved."""
    from bokeh.core.properties import value
    from bokeh.transform import linear_cmap

    far = linear_cmap("moved", DISTANCES, 0.0, moved_limit(drawn))
    return {"fill_color": far, "marker": value("circle")}


def _plot(place: str, ranges: dict[str, Any]) -> Any:
    """Return an empty plot that fills its place, on whatever the page has as its background."""
    from bokeh.models import PanTool, WheelZoomTool
    from bokeh.plotting import figure

    # With Ctrl, since a wheel that zooms at once would keep a reader from scrolling past the plots.
    wheel = WheelZoomTool(modifiers="ctrl")
    plot = figure(
        tools=[PanTool(), "box_zoom", wheel, "reset", "save"],
        sizing_mode="scale_width", aspect_ratio=1.0, min_width=200, toolbar_location="below",
        background_fill_alpha=0.0, border_fill_alpha=0.0, outline_line_color=GREY, name=place,
        active_drag="box_zoom", **ranges,
    )  # fmt: skip
    plot.toolbar.logo = None
    plot.toolbar.active_scroll = wheel
    plot.axis.visible = False
    plot.grid.visible = False
    return plot


def _hover(tooltips: list[tuple[str, str]], formatters: dict[str, Any]) -> Any:
    from bokeh.models import HoverTool

    # One cell at a time: in dense places there would be dozens.
    return HoverTool(tooltips=tooltips, formatters=formatters, limit=1, visible=False)
