"""What is at a path, asked before it is opened: a pipe would wait for its writer, a device may never end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ..errors import BadFile, BadValue

__all__ = ["check_file", "kind_at"]

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
