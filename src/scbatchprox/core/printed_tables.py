"""Tables: as text that fits a screen, as text in which nothing is cut off, as HTML, and as Markdown."""

from __future__ import annotations

import html
import math
import re
import shutil
import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import compress, zip_longest
from numbers import Integral
from typing import TYPE_CHECKING, Any

from .shown import PrintsFacts, one_line

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Tabled", "html_table", "markdown_table", "narrow_table", "short_names", "whole_table",
]  # fmt: skip

#: Rows that are printed of a table, at most.
ROWS = 40

#: Names of rows get at least this many columns of a screen.
LEAST_NAME = 8
#: On a screen that is too narrow, longer words of a header are broken.
LONG_WORD = 7
#: What is to the right: numbers, dates, and marks for what is not known.
_NUMBER = re.compile(r"[-+]?[\d,.:-]*(e[-+]?\d+)?%?|nan|-?inf")


class Tabled(PrintsFacts):
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
        return html_table(self._table(), [super().__repr__()], self._below(10**6))


def html_table(
    table: pd.DataFrame,
    above: Iterable[str] = (),
    below: Iterable[str] = (),
    most: int | None = ROWS,
) -> str:
    """Return a table of at most so many rows for a notebook, with lines above and below it."""
    before, after = (
        "".join(f"<p>{html.escape(line)}</p>" for line in lines) for lines in (above, below)
    )
    shown = table.to_html(max_rows=most, float_format="{:.2f}".format, na_rep="-", border=0)
    return f"{before}{shown}{after}"


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of texts in Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def narrow_table(table: pd.DataFrame, width: int) -> list[str]:
    """Return the lines of a table: headers have one word per line, and long names are shortened.

    Columns without any value are left out.
    """
    names = [one_line(name) for name in table.index]
    heads = [one_line(name).replace("_", " ").split() for name in table]
    columns = [[_cell(value) for value in table.iloc[:, i]] for i in range(table.shape[1])]
    known = [set(cells) != {"-"} for cells in columns]
    heads, columns = list(compress(heads, known)), list(compress(columns, known))
    if width - _total([0, *_widths(heads, columns)]) < max(map(len, names), default=0):
        heads = [[part for word in head for part in _halves(word)] for head in heads]
    room = width - _total([0, *_widths(heads, columns)])
    columns = [short_names(names, max(room, LEAST_NAME)), *columns]
    head, rows = _laid_out([[], *heads], columns, _widths([[], *heads], columns))
    return head + rows


def whole_table(
    table: pd.DataFrame,
    width: int,
    verbatim: Collection[str] = (),
    shown: Callable[[str], str] = one_line,
) -> tuple[list[str], list[str]]:
    """Return the lines of the header and of the rows of a table in which nothing is cut off.

    If it is too wide, headers are broken first, and then sentences, between words. A number without its last
    digits would be wrong, so lines may still be too wide. Columns that users have named (``verbatim``) keep
    their names. ``shown`` makes a line of any text.
    """
    titles = [str(name or "") for name in (table.index.name, *table.columns)]
    titles = [title if title in verbatim else title.replace("_", " ") for title in titles]
    rows = [[shown(_exact(value)) for value in row] for row in table.itertuples()]
    columns = [[row[i] for row in rows] for i in range(len(titles))]
    heads = [[shown(title)] for title in titles]
    widths = _widths(heads, columns)
    if _total(widths) > width:
        # Headers are mostly wider than what is below them.
        words = [list(map(shown, re.split("(?<=_)| ", title))) for title in titles]
        fits = _widths(words, columns)
        heads = [list(map(shown, _filled(*of, " _"))) for of in zip(titles, fits, strict=True)]
        widths, least = _widths(heads, columns), _widths(heads, columns, str.split)
        loose = [i for i, column in enumerate(columns) if i > 0 and not _are_numbers(column)]
        while _total(widths) > width and (loose := [i for i in loose if widths[i] > least[i]]):
            widths[max(loose, key=widths.__getitem__)] -= 1
    return _laid_out(heads, columns, widths)


def _laid_out(
    heads: list[list[str]], columns: list[list[str]], widths: list[int]
) -> tuple[list[str], list[str]]:
    """Return the lines of the header and of the rows; numbers are to the right, all else to the left."""
    right = [i > 0 and _are_numbers(column) for i, column in enumerate(columns)]

    def lines(cells: Iterable[Sequence[str]]) -> list[str]:
        return [
            "  ".join(map(_padded, parts, widths, right)).rstrip()
            for parts in zip_longest(*cells, fillvalue="")
        ]

    head = [[part for line in cell for part in _filled(line, w)]
            for cell, w in zip(heads, widths, strict=True)]  # fmt: skip
    rows = [lines(map(_filled, row, widths)) for row in zip(*columns, strict=True)]
    # Short titles stand just above their columns.
    return lines(cell[::-1] for cell in head)[::-1], [line for row in rows for line in row]


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - _wide(text))
    return space + text if right else text + space


def _filled(text: str, width: int, ends: str = " ") -> list[str]:
    """Break a text after spaces, or other ``ends`` of parts, into lines no wider than asked or a part is."""
    lines = [""]
    for part in re.findall(f"[^{ends}]*[{ends}]?", text):
        if lines[-1] and _wide(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return [line.rstrip() for line in lines]


def _wide(text: str) -> int:
    """The columns of a screen that a text takes: some letters take two, and some marks none."""
    return sum(
        0 if unicodedata.combining(c) else 1 + (unicodedata.east_asian_width(c) in "WF")
        for c in text
    )


def _widths(
    heads: list[list[str]],
    columns: list[list[str]],
    parts: Callable[[str], list[str]] = lambda text: [text],
) -> list[int]:
    """The widths of columns, or of the longest of the ``parts`` of their texts."""
    return [
        max((_wide(part) for text in head + cells for part in parts(text)), default=0)
        for head, cells in zip(heads, columns, strict=True)
    ]


def _total(widths: list[int]) -> int:
    """The width of a table: columns have two spaces between them."""
    return sum(widths) + 2 * (len(widths) - 1)


def _are_numbers(column: list[str]) -> bool:
    known = [text for text in column if text]
    return bool(known) and all(map(_NUMBER.fullmatch, known))


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


def _halves(word: str) -> list[str]:
    if len(word) <= LONG_WORD:
        return [word]
    half = (len(word) + 1) // 2
    return [f"{word[:half]}-", word[half:]]


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "-"
    if isinstance(value, float):
        return f"{value:.2f}" if math.isfinite(value) else str(value)
    number = isinstance(value, Integral) and not isinstance(value, bool)
    return f"{value:,}" if number else one_line(value)


def _exact(value: Any) -> str:
    return f"{value:,.3f}" if isinstance(value, float) else str(value)
