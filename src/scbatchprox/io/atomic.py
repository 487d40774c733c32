"""What is at a path, and files that are written completely or not at all, even if the process is killed."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import BadFile, BadValue

__all__ = ["check_file", "check_place", "check_same", "kind_at", "replacing", "sync_folder"]

_KINDS = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"
}  # fmt: skip


def kind_at(path: str | Path) -> str | None:
    """Return what links lead to: a file, folder, pipe, socket or device; ``None`` if there is nothing."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadValue(f"Expected links that end, found a circle of links at {path}.") from None
        raise
    return _KINDS.get(stat.S_IFMT(mode), "device")


def check_file(path: str | Path, what: str) -> None:
    """Raise an error unless there is a regular file to read, which is to be ``what``."""
    found = kind_at(path)
    if found is None:
        raise BadFile(f"Expected {what}, found no file at {path}.")
    if found != "file":
        raise BadValue(f"Expected {what}, found a {found} at {path}.")


@contextmanager
def replacing(
    path: str | Path, check: Callable[[], None] | None = None, *, mode: int | None = None
) -> Iterator[Path]:
    """Yield an empty file beside ``path``; it replaces ``path`` on success and is removed on failure.

    ``check`` is called when the file is complete, and may still raise. The file has ``mode`` from the moment
    when it is made; by default that of the old file, or of any new one. A killed process leaves the old
    file, or none, at ``path``, and perhaps a hidden ``.NAME.*.partial`` beside it.
    """
    check_place(path)
    path = Path(path).resolve()  # a link stays a link, and points to the new file
    if not path.parent.is_dir():
        raise BadFile(f"Expected a folder to write to, found none at {path.parent}.")
    temporary = path.parent / f".{path.name}.{secrets.token_hex(6)}.partial"
    # Not by tempfile, whose files only their owner may read.
    new = 0o666 if mode is None else mode
    os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, new))
    try:
        yield temporary
        with open(temporary, "r+b") as file:  # Windows cannot sync a file that is open for reading
            os.fsync(file.fileno())
        if check is not None:
            check()
        if mode is None and path.exists():
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


def check_same(path: str | Path, before: os.stat_result, now: os.stat_result) -> None:
    """Raise an error if a file was replaced or changed."""
    # Not by the time of its last change of any kind: a hard link to a file does not change its content.
    if not os.path.samestat(before, now) or (
        (before.st_size, before.st_mtime_ns) != (now.st_size, now.st_mtime_ns)
    ):
        raise BadValue(
            f"Expected {path} to stay as it was when it was read, found that it was changed since; "
            f"try again."
        )


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power failure, if the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
