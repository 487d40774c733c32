"""How objects are printed: what a person would ask of them, on one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

__all__ = ["Changed", "PrintsFacts", "count", "names", "one_line"]

#: Names that are printed of a list.
NAMED = 4
# Control characters start commands to a terminal, such as "clear the screen". Others break a line or
# reverse the order of text. Surrogates stand for bytes of file names that are not UTF-8.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class PrintsFacts:
    """An object that prints as its class and a few facts, instead of all its arrays."""

    def _facts(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._facts()}>"


class Changed:
    """A frozen dataclass of options that prints only those that differ from their defaults."""

    def __repr__(self) -> str:
        given = []
        for field in fields(self):  # type: ignore[arg-type]
            value, default = getattr(self, field.name), field.default
            if field.default_factory is not MISSING:
                default = field.default_factory()
            if value != default:
                given.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(given)})"


def count(number: int, what: str, several: str | None = None) -> str:
    """Return a number of things, such as ``1 batch`` or ``1,200 cells``."""
    return f"{number:,} {what if number == 1 else several or what + 's'}"


def names(values: Sequence[Any], most: int = NAMED) -> str:
    """Return the first few names of a list, and how many more there are."""
    shown = ", ".join(one_line(value) for value in values[:most])
    more = len(values) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


def one_line(text: object) -> str:
    r"""Return text in one line that a terminal prints as it is; other characters are shown as ``\xNN``."""
    return _UNSAFE.sub(lambda found: _code(ord(found[0])), str(text))


def _code(number: int) -> str:
    if 0xDC80 <= number <= 0xDCFF:  # a byte of a file name
        number -= 0xDC00
    return f"\\x{number:02x}" if number <= 0xFF else f"\\u{number:04x}"
