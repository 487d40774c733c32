"""Files that are written completely or not at all, even if the process is killed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import BadFile, BadValue
from .found import kind_at

__all__ = ["check_place", "replacing", "sync_folder"]


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield an empty file beside ``path``; it replaces ``path`` on success and is removed on failure.

    A killed process leaves the old file, or none, at ``path``, and perhaps a hidden
    ``.NAME.*.partial`` beside it.
    """
    check_place(path)
    path = Path(path).resolve()  # a link stays a link, and points to the new file
    if not path.parent.is_dir():
        raise BadFile(f"Expected a folder to write to, found none at {path.parent}.")
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.partial"
    # Not by tempfile, whose files only their owner may read.
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield temporary
        with open(temporary, "r+b") as file:  # Windows cannot sync a file that is open for reading
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def check_place(path: str | Path) -> None:
    """Raise an error if there is something else than a regular file; a rename would replace a device."""
    # Before links are resolved: /dev/stdout may lead to a pipe, which has no name.
    found = kind_at(path)
    if found not in (None, "file"):
        raise BadValue(f"Expected a place for a regular file, found a {found} at {path}.")


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power failure, if the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
