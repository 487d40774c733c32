"""The levels of a verdict. Other modules ask a level what it means, and never compare its text."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["Level"]


class Level(StrEnum):
    """What was found out about a batch; from good to bad.

    A batch with no effect, or with nothing to compare with, stays exactly as it is, if the target needs
    evidence to move it.
    """

    NO_EFFECT = "no effect found"
    REMOVED = "effect removed"
    WEAK = "weak evidence"
    ALONE = "nothing to compare with"

    @property
    def rank(self) -> int:
        """A larger number for a worse level."""
        return list(Level).index(self)

    @property
    def fine(self) -> bool:
        """Whether nobody has to look at the batch."""
        return self in (Level.NO_EFFECT, Level.REMOVED)

    @property
    def needs_force(self) -> bool:
        """Whether an atlas refuses the batch."""
        return self is Level.ALONE

    @property
    def tone(self) -> str:
        """How serious it is: ``fine``, ``care`` or ``alone``; the class of CSS in reports."""
        return "fine" if self.fine else "alone" if self.needs_force else "care"
