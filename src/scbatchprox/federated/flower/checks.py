"""Where a courier refuses to start: where it could read cells or keys.

A courier talks to a server that others run. So its account must be able to do one thing only: read an outbox
and write an inbox. This is tried out, not read from modes: lists of rights and roots have their own rules.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ...errors import BadFile, BadValue
from .folder import Folder

__all__ = ["check_account", "check_boxes", "check_private"]


def check_account(*, insecure: bool) -> None:
    """Refuse an account that can read everything."""
    if not insecure and os.geteuid() == 0:
        raise BadValue(
            "Expected an account of its own for the courier, found root, which can read everything."
        )


def check_private(paths: Iterable[Path]) -> None:
    """Refuse to start if one of these (the site's cells, its private folder) can be read."""
    for path in paths:
        try:
            os.lstat(path)
        except FileNotFoundError:
            raise BadFile(
                f"Expected a file or folder to check at {path}, found none; name the site's cells and "
                "its private folder."
            ) from None
        except OSError:
            continue  # not even its folder can be searched
        if _readable(path):
            raise BadValue(
                f"Expected that this account cannot read {path}, found that it can; run the courier "
                "under an account of its own."
            )


def check_boxes(outbox: Path, inbox: Path) -> None:
    """Refuse folders that hold anything but messages, or that cannot be used."""
    for name, path in (("outbox", outbox), ("inbox", inbox)):
        if not path.is_dir():
            raise BadFile(f"Expected a folder as --{name}, found none at {path}.")
    if outbox.resolve() == inbox.resolve():
        raise BadValue(f"Expected two folders, found {outbox} as outbox and as inbox.")
    if not os.access(outbox, os.R_OK | os.X_OK):
        raise BadValue(f"Expected an outbox that this account can read, found {outbox}.")
    if not os.access(inbox, os.R_OK | os.W_OK | os.X_OK):
        raise BadValue(f"Expected an inbox that this account can write to, found {inbox}.")
    for path in (outbox, inbox):
        strangers = Folder(path).strangers()
        if strangers:
            raise BadValue(
                f"Expected only messages of a study in {path}, found {strangers[0]!r}"
                + (f" and {len(strangers) - 1} more." if len(strangers) > 1 else ".")
            )


def _readable(path: Path) -> bool:
    """Whether a file can be opened, or a folder listed or searched."""
    try:
        if path.is_dir():
            try:
                os.listdir(path)
            except PermissionError:
                os.stat(f"{path}/.")  # allowed to who may open what is inside by its name
            return True
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        return True
    except OSError:
        return False
