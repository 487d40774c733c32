"""Damaged files: errors of other packages become one sentence, and sizes are checked before they are used.

A header can claim any size. Memory for a claim is asked for only if the file can hold it and the machine too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import BadValue, InputError

__all__ = ["available_bytes", "check_fits", "damaged", "naming", "reading"]

#: Requests of fewer bytes are not compared with the memory of the machine.
SMALL = 1 << 26


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Raise one sentence on a damaged file for any error but those of the system and our own.

    Packages that read files raise errors of almost any type for damaged ones.
    """
    try:
        with naming(path):
            yield
    except (InputError, AssertionError):
        raise
    except MemoryError as error:
        raise BadValue(
            f"Expected a file that fits in memory, found {path}, which needs more than there is, or is "
            f"damaged ({_reason(error)})."
        ) from error
    except OSError as error:
        if error.errno is not None:
            raise  # an error of the system, such as a full disk
        raise damaged(path, error) from error
    except Exception as error:
        raise damaged(path, error) from error


@contextmanager
def naming(*paths: str | Path) -> Iterator[None]:
    """Add the name of a file to errors about its content that name no file."""
    try:
        yield
    except InputError as error:
        if not any(Path(path).name in str(error) for path in paths):
            error.found_in(Path(paths[0]).name)
        raise


def damaged(path: str | Path, error: object) -> BadValue:
    """Return the error for a file that cannot be read; ``error`` is the reason."""
    kind = Path(path).suffix.lower()
    article = "an" if kind == ".h5ad" else "a"
    return BadValue(
        f"Expected {article} {kind} file, found {path}, which is damaged or of another kind "
        f"({_reason(error)})."
    )


def check_fits(n_bytes: int, what: str, path: str | Path) -> None:
    """Raise an error if an array of this size does not fit in memory."""
    if n_bytes <= SMALL:
        return
    most = available_bytes()
    if most is not None and n_bytes > most:
        raise BadValue(
            f"Expected {what} to fit in memory ({most / 1e9:,.1f} GB available), found "
            f"{n_bytes / 1e9:,.1f} GB in {path}."
        )


def available_bytes() -> int | None:
    """Return the memory that a new request can be given, or ``None`` if the system does not tell."""
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":") for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        pass
    try:  # not on Linux: all memory of the machine
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def _reason(error: object) -> str:
    """Return the first line of an error, not too long."""
    lines = str(error).strip().splitlines() or [""]
    reason = lines[0].strip().rstrip(".") or type(error).__name__
    if isinstance(error, KeyError):
        reason = f"no {reason}"
    return reason if len(reason) <= 200 else f"{reason[:200]}..."
