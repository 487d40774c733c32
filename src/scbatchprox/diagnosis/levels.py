"""The levels of a verdict. Other modules ask a level what it means, and never compare its text."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Level"]


class Level(StrEnum):
    """What to do with a batch; from good to bad."""

    SAFE = "safe"
    WITH_CARE = "move with care"
    LEAVE_ALONE = "leave alone"

    @property
    def rank(self) -> int:
        """A larger number for a worse level."""
        return list(Level).index(self)

    @property
    def fine(self) -> bool:
        """Whether nobody has to look at the batch."""
        return self is Level.SAFE

    @property
    def needs_force(self) -> bool:
        """Whether the batch should not be moved, and an atlas refuses it."""
        return self is Level.LEAVE_ALONE

    @property
    def tone(self) -> str:
        """How serious it is: ``fine``, ``care`` or ``alone``; the class of CSS in reports."""
        return "fine" if self.fine else "alone" if self.needs_force else "care"
