"""Text from data, such as labels, file names and messages of errors, made safe to print."""

from __future__ import annotations

from ..core.shown import one_line

__all__ = ["plain"]


def plain(text: object, encoding: str = "utf-8") -> str:
    r"""Return text in one line that a terminal prints as it is; other characters are shown as ``\xNN``."""
    return one_line(text).encode(encoding, "backslashreplace").decode(encoding)
