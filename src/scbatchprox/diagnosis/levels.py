"""The levels of a verdict: its first words, which say what to do with a batch."""

from __future__ import annotations

from typing import Any

__all__ = ["LEAVE_ALONE", "LEVELS", "SAFE", "WITH_CARE", "level_of"]

#: From good to bad.
LEVELS = SAFE, WITH_CARE, LEAVE_ALONE = ("safe", "move with care", "leave alone")


def level_of(verdict: Any, otherwise: str) -> str:
    """Return the level of a verdict, or ``otherwise`` for a text that has none."""
    return next((level for level in LEVELS if str(verdict).startswith(level)), otherwise)
