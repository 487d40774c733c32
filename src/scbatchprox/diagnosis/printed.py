"""The table of a diagnosis, printed so that it fits a screen and verdicts are whole."""

from __future__ import annotations

import html
import math
import shutil
import textwrap
from typing import Any

import pandas as pd

from ..core.shown import names

__all__ = ["Diagnosis"]

#: Batches that are printed, at most; and of those with one verdict, the names that are.
ROWS, NAMED = 40, 12
#: Columns of the screen, at most, that sentences are wrapped at.
WIDEST = 110


class Diagnosis(pd.DataFrame):  # type: ignore[misc]
    """A data frame that prints its verdicts as sentences below the numbers."""

    @property
    def _constructor(self) -> Any:
        return pd.DataFrame  # what is selected from the table is a common data frame

    def __repr__(self) -> str:
        if "verdict" not in self.columns:
            return str(pd.DataFrame(self))
        width = min(shutil.get_terminal_size().columns, WIDEST)
        lines = [
            line
            for verdict, batches in self.by_verdict().items()
            for line in textwrap.wrap(f"{batches}: {verdict}", width, subsequent_indent="    ")
        ]
        return "\n".join([*_table(pd.DataFrame(self).drop(columns="verdict")), "", *lines])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        if "verdict" not in self.columns:
            return str(pd.DataFrame(self)._repr_html_())
        numbers = pd.DataFrame(self).drop(columns="verdict")
        table = numbers.to_html(max_rows=ROWS, float_format="{:.2f}".format, na_rep="-", border=0)
        verdicts = "".join(
            f"<li><b>{html.escape(batches)}</b>: {html.escape(verdict)}</li>"
            for verdict, batches in self.by_verdict().items()
        )
        return f"{table}<ul>{verdicts}</ul>"

    def by_verdict(self) -> dict[str, str]:
        """Return each verdict and the batches that it is on, as a text; the most common one first."""
        found: dict[str, list[str]] = {}
        for batch, verdict in self["verdict"].items():
            found.setdefault(str(verdict), []).append(str(batch))
        return {
            verdict: names(batches, NAMED)
            for verdict, batches in sorted(found.items(), key=lambda item: -len(item[1]))
        }


def _table(numbers: pd.DataFrame) -> list[str]:
    """Return the lines of a table whose headers have one word per line, so that it is narrow."""
    rows = numbers if len(numbers) <= ROWS else numbers.iloc[:ROWS]
    columns = [["", *map(str, rows.index)]]
    columns += [[str(name), *map(_number, rows[name])] for name in rows if rows[name].notna().any()]
    heads = [cells[0].replace("_", " ").split() for cells in columns]
    deep = max(map(len, heads))
    lines = [""] * (deep + len(rows))
    for number, (head, cells) in enumerate(zip(heads, columns, strict=True)):
        column = [""] * (deep - len(head)) + head + cells[1:]
        wide = max(map(len, column))
        for i, text in enumerate(column):
            lines[i] += "  " + text.rjust(wide) if number else text.ljust(wide)
    more = len(numbers) - len(rows)
    return [*(line.rstrip() for line in lines), *([f"and {more:,} more batches"] if more else [])]


def _number(value: Any) -> str:
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:.2f}"
    return f"{value:,}"
