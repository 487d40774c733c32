"""Tables of numbers as text that fits a screen."""

from __future__ import annotations

import html
import math
import shutil
from itertools import compress
from numbers import Integral
from typing import TYPE_CHECKING, Any

from .shown import Facts, one_line

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Tabled", "narrow_table", "short_names"]

#: Rows that are printed of a table, at most.
ROWS = 40

#: Names of rows get at least this many columns of a screen.
LEAST_NAME = 8
#: On a screen that is too narrow, longer words of a header are broken.
LONG_WORD = 7


class Tabled(Facts):
    """An object that prints as a few facts and a table."""

    def _table(self) -> pd.DataFrame:
        raise NotImplementedError

    def _below(self, width: int) -> list[str]:
        """Return lines that follow the table."""
        return []

    def __repr__(self) -> str:
        width, table = shutil.get_terminal_size().columns, self._table()
        lines = narrow_table(table.iloc[:ROWS], width) if len(table) else []
        more = len(table) - ROWS
        left = [f"and {more:,} more rows"] if more > 0 else []
        return "\n".join([super().__repr__(), *lines, *left, *self._below(width)])

    def _repr_html_(self) -> str:
        table = self._table().to_html(
            max_rows=ROWS, float_format="{:.2f}".format, na_rep="-", border=0
        )
        below = "".join(f"<p>{html.escape(line)}</p>" for line in self._below(10**6))
        return f"<p>{html.escape(super().__repr__())}</p>{table}{below}"


def narrow_table(table: pd.DataFrame, width: int) -> list[str]:
    """Return the lines of a table: headers have one word per line, and long names are shortened.

    Columns without any value are left out.
    """
    names = [one_line(name) for name in table.index]
    heads = [one_line(name).replace("_", " ").split() for name in table]
    columns = [[_cell(value) for value in table.iloc[:, i]] for i in range(table.shape[1])]
    known = [set(cells) != {"-"} for cells in columns]
    heads, columns = list(compress(heads, known)), list(compress(columns, known))
    if width - _width(heads, columns) < max(map(len, names), default=0):
        heads = [[part for word in head for part in _broken(word)] for head in heads]
    names = short_names(names, max(width - _width(heads, columns), LEAST_NAME))
    deep = max(map(len, heads), default=1)
    lines = [""] * (deep + len(names))
    for i, (head, values) in enumerate(zip([[], *heads], [names, *columns], strict=True)):
        column = [""] * (deep - len(head)) + head + values
        wide = max(map(len, column))
        # Words are to the left, as in other tables of this package.
        left = i == 0 or not all(map(_is_number, values))
        for row, text in enumerate(column):
            lines[row] += ("  " if i else "") + (text.ljust(wide) if left else text.rjust(wide))
    return [line.rstrip() for line in lines]


def short_names(names: list[str], room: int) -> list[str]:
    """Shorten names in the middle to at most ``room`` characters, if they stay different.

    What all names begin or end with is left out first, if that is needed to tell them apart. Names that
    still could not be told apart are longer.
    """
    longest = max(map(len, names), default=0)
    for wide in range(min(room, longest), longest + 1):
        for texts in (names, _without_common(names)):
            # A part of the beginning and a part of the end, first about as much of both.
            for head in sorted(range(wide), key=lambda head: abs(2 * head - wide)):
                short = [_shortened(text, wide, head) for text in texts]
                if len(set(short)) == len(set(names)):
                    return short
    return names


def _shortened(text: str, wide: int, head: int) -> str:
    tail = wide - 1 - head
    return text if len(text) <= wide else f"{text[:head]}…{text[len(text) - tail :]}"


def _without_common(names: list[str]) -> list[str]:
    start = _same(names)
    rest = [name[start:] for name in names]
    end = _same([name[::-1] for name in rest])
    return [
        "…" * (start > 0) + text[: len(text) - end] + "…" * (end > 0) for text in rest
    ]  # fmt: skip


def _same(names: list[str]) -> int:
    """How many characters all names begin with."""
    first, last = min(names), max(names)  # all others lie between these
    return next((i for i, (a, b) in enumerate(zip(first, last)) if a != b), len(first))  # noqa: B905


def _broken(word: str) -> list[str]:
    if len(word) <= LONG_WORD:
        return [word]
    half = (len(word) + 1) // 2
    return [f"{word[:half]}-", word[half:]]


def _width(heads: list[list[str]], columns: list[list[str]]) -> int:
    """The width of all columns but the names."""
    return sum(2 + max(map(len, head + cells)) for head, cells in zip(heads, columns, strict=True))


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}" if math.isfinite(value) else str(value)
    number = isinstance(value, Integral) and not isinstance(value, bool)
    return f"{value:,}" if number else one_line(value)


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.lstrip("-")[:1].isdigit() or cell.endswith("inf")
