"""Errors about a user's input.

Each is also the built-in error that Python users expect (``ValueError``, ``KeyError``, ...). To tell bad
input from a failure of the program, catch :class:`InputError`; the command line does so to choose its
exit code.

A sentence that names a parameter has it as a :class:`Parameter`, so that each door can say it in its own
words: ``BadValue("Expected ", Parameter("keep"), " in obs, found none.")``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

__all__ = [
    "Advice",
    "BadFile",
    "BadKey",
    "BadType",
    "BadValue",
    "DiskFull",
    "InUse",
    "InputError",
    "MissingExtra",
    "NotFinite",
    "Parameter",
    "Part",
    "Sentence",
]


@dataclass(frozen=True)
class Parameter:
    """A parameter that a sentence names, as Python has it: ``keep``, ``force=True``, ``target='moment'``.

    ``flag`` is its option on the command line, for sentences that tell Python users both.
    """

    python: str
    flag: str = ""

    def __str__(self) -> str:
        return f"{self.python} ({self.flag})" if self.flag else self.python


#: A part of a sentence.
Part = str | Parameter


class Sentence(Exception):
    """A sentence made of text and parameters; as text it has the words of Python."""

    def __init__(self, *parts: Part) -> None:
        super().__init__("".join(map(str, parts)))
        self.parts = parts

    def worded(self, spelled: Callable[[Parameter], str]) -> str:
        """Return the sentence in the words of another door."""
        return "".join(
            spelled(part) if isinstance(part, Parameter) else part for part in self.parts
        )

    def found_in(self, name: str) -> None:
        """Add the name of the file that the sentence is about."""
        *before, end = self.parts
        Sentence.__init__(self, *before, f"{str(end).removesuffix('.')} (in {name}).")

    def __str__(self) -> str:
        return self.worded(str)


class InputError(Sentence):
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


class Advice(Sentence, UserWarning):
    """A warning to a user."""


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

    def __init__(self, *parts: Part) -> None:
        super().__init__(*parts)
        self.errno = errno.ENOSPC


class MissingExtra(InputError, ImportError):
    """A package that is not installed; the message names the extra that installs it."""

    def __init__(self, *what_and_extra: Part) -> None:
        *what, extra = what_and_extra
        super().__init__("Expected ", *what, f", found none: pip install 'scbatchprox[{extra}]'.")
