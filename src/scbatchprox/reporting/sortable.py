"""The diagnosis as a table of Bokeh that can be sorted."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from .facts import Facts
from .markup import as_html
from .tables import COLUMNS, reasons_of, shown_columns, worst_first
from .words import levels_of

__all__ = ["sortable"]

#: Pixels of a row, for three lines of a reason.
ROW_HEIGHT = 54
#: Sorts the table by the chosen title.
SORT = """
const rows = orders[cb_obj.options.indexOf(cb_obj.value)]
source.data = Object.fromEntries(names.map((name, i) => [name, rows.map((row) => columns[i][row])]))
"""
#: Colours of the table are those of the page.
TABLE_CSS = """
:host { font-size: .875rem; }
.slick-header-column, .slick-cell { color: var(--text) !important; }
.slick-header-column { font-weight: 600; }
.slick-row, .slick-header, .slick-header-columns, .slick-header-column, .slick-viewport, .slick-pane {
  background: var(--page) !important; }
.slick-cell { font-size: .8125rem; line-height: 1.25; white-space: normal;
  border: none; border-bottom: 1px solid var(--line); }
.slick-row:hover .slick-cell { background: var(--panel); }
"""
#: So are those of the list of titles.
SELECT_CSS = """
:host { font-size: .875rem; color: var(--text); }
select { color: var(--text) !important; background-color: var(--page) !important; border-color: #808080;
  appearance: auto; background-image: none !important; }
select:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; }
"""


def sortable(facts: Facts) -> dict[str, Any]:
    """Return the same table as a Bokeh model, sorted by a click on a title, or by a list of titles."""
    from bokeh.models import (
        ColumnDataSource,
        CustomJS,
        DataTable,
        InlineStyleSheet,
        Select,
        StringFormatter,
        TableColumn,
    )

    table = worst_first(facts.table)
    shown = shown_columns(table)
    data: dict[str, list[Any]] = {"batch": [str(batch) for batch in table.index]}
    data["verdict"] = [str(level) for level in levels_of(table)]
    data["why"] = reasons_of(table)
    titles, formatters = {name: name for name in data}, {}
    for i, (name, (title, _, how)) in enumerate(shown.items()):
        field = name if name in COLUMNS else f"kept{i}"  # not a name that comes from the data
        data[field] = [_plain(x) for x in table[name]]
        titles[field], formatters[field] = title, _formatter(how)
    source = ColumnDataSource(data)
    # All columns of a diagnosis fit a page as wide as ours; columns to keep are further to the right.
    widths = {"batch": 130, "verdict": 105, "why": 300}
    columns = [
        TableColumn(
            field=field,
            title=as_html(title),  # the only text that Bokeh takes as HTML
            width=widths.get(field, 22 + 7 * len(title)),
            formatter=formatters.get(field) or StringFormatter(),
        )
        for field, title in titles.items()
    ]
    css = InlineStyleSheet(css=TABLE_CSS)
    height = min(ROW_HEIGHT * len(table) + 60, 480)
    grid = DataTable(
        source=source, columns=columns, index_position=None, sizing_mode="stretch_width",
        autosize_mode="none", row_height=ROW_HEIGHT, height=height, stylesheets=[css], name="sortable",
        selectable=False, reorderable=False, frozen_columns=1,
    )  # fmt: skip
    orders = {"the worst verdict first": list(range(len(table)))}
    for field, title in titles.items():
        ordered = pd.Series(data[field]).sort_values(
            ascending=field in widths, kind="stable", na_position="last"
        )
        orders[title] = ordered.index.tolist()
    select = Select(
        title="Sort by", options=list(orders), value=next(iter(orders)), name="sort",
        stylesheets=[InlineStyleSheet(css=SELECT_CSS)],
    )  # fmt: skip
    args = {
        "orders": list(orders.values()),
        "names": list(data),
        "columns": list(data.values()),
        "source": source,
    }
    select.js_on_change("value", CustomJS(args=args, code=SORT))
    return {"sortable": grid, "sort": select}


def _formatter(how: str) -> Any:
    from bokeh.models import NumberFormatter

    formats = {"{:,.0f}": "0,0", "{:.2f}": "0.00", "{:.0%}": "0%"}
    return NumberFormatter(format=formats[how], nan_format="–", null_format="–", text_align="right")


def _plain(x: Any) -> float | None:
    return None if math.isnan(x) else float(x)
