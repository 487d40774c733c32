"""What moves the plots, and what chooses the cells in them: widgets of Bokeh, which a keyboard reaches."""

from __future__ import annotations

from typing import Any

from .looks import MARKERS, looks

__all__ = ["MOVES", "RESET", "all_or_none", "buttons", "chips", "moves"]

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
