"""The data folder: an argument, an environment variable, or a folder in the user's cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from scbatchprox.errors import BadFile, Parameter, Part

__all__ = ["VARIABLE", "data_folder"]

#: The environment variable that names the data folder.
VARIABLE = "SCBATCHPROX_DATA"


def data_folder(data_dir: str | Path | None = None) -> Path:
    """Return ``data_dir``, else ``$SCBATCHPROX_DATA``, else a folder in the user's cache.

    The first two must exist; the first download makes the folder in the cache.
    """
    if data_dir is not None:
        return _existing(Path(data_dir), Parameter("data_dir"))
    named = os.environ.get(VARIABLE)
    return _existing(Path(named), f"${VARIABLE}") if named else _cache() / "scbatchprox"


def _existing(folder: Path, name: Part) -> Path:
    if not folder.is_dir():
        raise BadFile("Expected ", name, f" to be a folder of data, found none at {folder}.")
    return folder


def _cache() -> Path:
    """Return the cache folder of the operating system."""
    named = os.environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    return Path.home() / ".cache"
