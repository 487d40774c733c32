"""Two names on a file system exchange what they stand for in one step."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

__all__ = ["exchange"]

#: Errors that mean: this system, or this file system, has no such step. Some containers answer EPERM.
_UNABLE = {
    errno.ENOSYS,
    errno.EINVAL,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.EXDEV,
    errno.EPERM,
}
_AT_FDCWD = -100
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux, and RENAME_SWAP of macOS


def exchange(a: Path, b: Path) -> bool:
    """Exchange two existing files or folders, or return False where that takes more than one step.

    Nobody sees a moment in which one of the names is missing, and a killed process leaves both as they
    were, or both exchanged.
    """
    code = _call(os.fsencode(a), os.fsencode(b))
    if code in _UNABLE:
        return False
    if code:
        raise OSError(code, os.strerror(code), str(b))
    return True


def _call(a: bytes, b: bytes) -> int:
    """Ask the system; return the number of its error, or 0."""
    try:
        if sys.platform == "linux":
            system = ctypes.CDLL(None, use_errno=True)
            failed = system.renameat2(_AT_FDCWD, a, _AT_FDCWD, b, ctypes.c_uint(_EXCHANGE))
        elif sys.platform == "darwin":
            system = ctypes.CDLL(None, use_errno=True)
            failed = system.renamex_np(a, b, ctypes.c_uint(_EXCHANGE))
        else:
            return errno.ENOSYS
    except AttributeError:  # a C library from before 2018
        return errno.ENOSYS
    return ctypes.get_errno() if failed else 0
