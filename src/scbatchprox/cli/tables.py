"""Tables as text: numbers to the right, words to the left, and nothing cut off on a narrow terminal."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from .plain import plain

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console
    from rich.table import Table

__all__ = ["print_table"]

#: Numbers, dates, and marks for what is not known.
_NUMBER = re.compile(r"[-+]?[\d,.:-]*(e[-+]?\d+)?%?|nan|-?inf")


def print_table(console: Console, table: pd.DataFrame, verbatim: Collection[str] = ()) -> None:
    """Print a table; columns that users have named (``verbatim``) keep their names."""
    from rich.measure import Measurement

    titles = [str(name or "") for name in (table.index.name, *table.columns)]
    titles = [title if title in verbatim else title.replace("_", " ") for title in titles]
    rows = [[_cell(value) for value in row] for row in table.itertuples()]
    found, unlimited = _of(titles, rows, console), console.options.update(width=10**6)
    if Measurement.get(console, unlimited, found).maximum > console.width:
        # Headers are mostly wider than what is below them: break them first.
        broken = [_broken(title, [row[i] for row in rows]) for i, title in enumerate(titles)]
        found = _of(broken, rows, console)
    width = console.width
    # Lines that the terminal wraps are ugly, but a number without its last digits is wrong.
    console.width = max(width, Measurement.get(console, unlimited, found).minimum)
    console.print(found)
    console.width = width


def _of(titles: list[str], rows: list[list[str]], console: Console) -> Table:
    from rich.table import Table
    from rich.text import Text

    def text(value: str) -> Text:
        # Never markup: "[red]" is a name.
        return Text("\n").join(Text(plain(line, console.encoding)) for line in value.split("\n"))

    found = Table(box=None, header_style="bold", pad_edge=False)
    for i, title in enumerate(titles):
        values = [row[i] for row in rows if row[i]]
        numbers = i > 0 and bool(values) and all(map(_NUMBER.fullmatch, values))
        # Neither numbers nor names of batches are wrapped; text is, between words.
        words = [word for value in (title, *values) for word in value.split()]
        found.add_column(
            text(title),
            justify="right" if numbers else "left",
            no_wrap=numbers or i == 0,
            min_width=max(map(len, words), default=None),
        )
    for row in rows:
        found.add_row(*(Text(plain(value, console.encoding)) for value in row))
    return found


def _broken(title: str, values: list[str]) -> str:
    """Break a header after spaces and underscores, no narrower than the values below it."""
    parts = re.findall(r"[^ _]*[ _]?", title)
    width = max(len(part.rstrip()) for part in (*parts, *values))
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: Any) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else str(value)
