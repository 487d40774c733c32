"""Errors about a user's input.

Each is also the built-in error that Python users expect (``ValueError``, ``KeyError``, ...). To tell bad
input from a failure of the program, catch :class:`InputError`; the command line does so to choose its
exit code.
"""

from __future__ import annotations

import errno

__all__ = [
    "BadFile",
    "BadKey",
    "BadType",
    "BadValue",
    "DiskFull",
    "InUse",
    "InputError",
    "MissingExtra",
    "NotFinite",
]


class InputError(Exception):
    """One sentence: what was expected, what was found and, where it helps, what is available.

    Examples
    --------
    >>> from scbatchprox import BatchProx, InputError
    >>> try:
    ...     BatchProx(rounds=-1).fit([[0.0], [1.0]], batch=["a", "b"])
    ... except InputError as error:
    ...     print(error)
    Expected rounds to be a whole number >= 0, or None for the fixed point, found -1.
    """

    def __str__(self) -> str:
        # KeyError.__str__ would put the message in quotes.
        return Exception.__str__(self)


class BadValue(InputError, ValueError):
    """A value that is not allowed here."""


class NotFinite(BadValue):
    """Cells with values that are NaN, infinite, or too large to compute with."""


class InUse(BadValue):
    """A file that another process is writing to."""


class BadType(InputError, TypeError):
    """A value of a type that is not allowed here."""


class BadKey(InputError, KeyError):
    """A name that does not exist."""


class BadFile(InputError, FileNotFoundError):
    """A file that does not exist."""


class DiskFull(InputError, OSError):
    """A disk without room for what a file needs, found before anything is written."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.errno = errno.ENOSPC


class MissingExtra(InputError, ImportError):
    """A package that is not installed; the message names the extra that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"Expected {what}, found none: pip install 'scbatchprox[{extra}]'.")
