"""Errors about what a user handed in, each also the built-in error that Python users expect.

A caller that must tell bad input from a failure of the program (the command line does, by its exit
code) catches :class:`InputError`; everyone else catches ``ValueError``, ``KeyError`` and so on.
"""

from __future__ import annotations

__all__ = [
    "BadFile",
    "BadKey",
    "BadType",
    "BadValue",
    "InUse",
    "InputError",
    "MissingExtra",
    "NotFinite",
]


class InputError(Exception):
    """One sentence on what was expected, what was found and, where it helps, what is available."""

    def __str__(self) -> str:
        # A KeyError would print its sentence in quotes.
        return Exception.__str__(self)


class BadValue(InputError, ValueError):
    """A value that makes no sense here."""


class NotFinite(BadValue):
    """Cells with NaN or infinity in them, or too large to compute with."""


class InUse(BadValue):
    """A file that somebody else is writing to."""


class BadType(InputError, TypeError):
    """A value of a kind that makes no sense here."""


class BadKey(InputError, KeyError):
    """A name that is not there."""


class BadFile(InputError, FileNotFoundError):
    """A file that is not there."""


class MissingExtra(InputError, ImportError):
    """A package that is not installed, and the extra that brings it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"Expected {what}, found none: pip install 'scbatchprox[{extra}]'.")
