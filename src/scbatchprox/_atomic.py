"""Files that are there whole or not at all, whenever the process is killed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["replacing", "sync_folder"]


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Offer an empty file beside ``path``; on success it takes its place, on failure it is gone.

    A killed process leaves the old file, or none, at ``path``, and perhaps a hidden
    ``.NAME.*.partial`` beside it.
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    beside = Path(name)
    try:
        os.fchmod(handle, 0o666 & ~_umask())  # mkstemp's own mode would keep a group out
        os.close(handle)
        yield beside
        with open(beside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with suppress(FileNotFoundError):
            beside.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    """The process's umask, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
