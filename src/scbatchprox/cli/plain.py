"""Text from data, such as labels, file names and messages of errors, made safe to print."""

from __future__ import annotations

import re

__all__ = ["plain"]

# Control characters start commands to a terminal, such as "clear the screen". Others break a line or
# reverse the order of text. Surrogates stand for bytes of file names that are not UTF-8.
_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def plain(text: object, encoding: str = "utf-8") -> str:
    r"""Return text in one line that a terminal prints as it is; other characters are shown as ``\xNN``."""
    shown = _UNSAFE.sub(lambda found: _code(ord(found[0])), str(text))
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _code(number: int) -> str:
    if 0xDC80 <= number <= 0xDCFF:  # a byte of a file name
        number -= 0xDC00
    return f"\\x{number:02x}" if number <= 0xFF else f"\\u{number:04x}"
