"""Progress of long jobs: the type of the callbacks that report it."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Progress", "silent"]

#: Called as ``progress(stage, rows_done, rows_total)`` after every chunk; the stage ``"rounds"`` has rounds.
Progress = Callable[[str, int, int], None]


def silent(stage: str, done: int, total: int) -> None:
    """Report no progress."""
