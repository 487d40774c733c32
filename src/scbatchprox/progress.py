"""How far a long job is: what the doors call as rows are done."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "silent"]

#: Called as ``progress(stage, rows_done, rows_in_all)`` after every chunk.
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Report no progress."""
