"""Files that are there whole or not at all, whenever the process is killed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import BadFile

__all__ = ["replacing", "sync_folder"]


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Offer an empty file beside ``path``; on success it takes its place, on failure it is gone.

    A killed process leaves the old file, or none, at ``path``, and perhaps a hidden
    ``.NAME.*.partial`` beside it.
    """
    path = Path(path).resolve()  # a link stays a link, to the new file
    if not path.parent.is_dir():
        raise BadFile(f"Expected a folder to write to, found none at {path.parent}.")
    beside = path.parent / f".{path.name}.{secrets.token_hex(6)}.partial"
    # Not by tempfile, whose files are for their owner alone.
    os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    try:
        yield beside
        with open(beside, "r+b") as file:  # Windows cannot sync what is open for reading
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, beside)
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
