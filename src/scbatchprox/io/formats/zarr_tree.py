"""The files of a ``.zarr`` store, also those that links lead to: listed, copied, and compared."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from zarr.storage import LocalStore

from ...errors import BadValue
from ..found import kind_at

__all__ = ["RegularFiles", "checksum", "copy_store"]

#: A checksum reads the first and last bytes of this many files, evenly chosen, and the sizes of all.
SAMPLED, ENDS = 256, 1 << 16


class RegularFiles(LocalStore):
    """A store that zarr reads only regular files from; each is looked at when it is read, not before."""

    async def get(self, key: str, *args: Any, **options: Any) -> Any:
        """Read a file; ``None`` if there is none."""
        _check_entry(self.root / key)
        return await super().get(key, *args, **options)

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[Any]) -> Any:
        """Read parts of files."""
        wanted = list(key_ranges)
        for key, _ in wanted:
            _check_entry(self.root / key)
        return await super().get_partial_values(prototype, wanted)

    def get_sync(self, key: str, *args: Any, **options: Any) -> Any:
        """Read a file without asyncio, which newer versions of zarr do."""
        _check_entry(self.root / key)
        return super().get_sync(key, *args, **options)


def _check_entry(path: Path) -> None:
    found = kind_at(path)
    if found not in (None, "file", "folder"):
        raise BadValue(f"Expected files and folders in a store, found a {found} at {path}.")


def copy_store(source: Path, target: Path) -> None:
    """Copy the files of a store, but not their permissions: the copy must be writeable."""
    target.mkdir()
    # A link that leads to the copy itself would never end.
    for relative, path in _walk(source, (_identity(source), _identity(target.parent))):
        if path.is_dir():
            (target / relative).mkdir()
        elif path.is_symlink() and not path.exists():
            raise BadValue(f"Expected a complete store, found a link to nothing at {path}.")
        else:
            shutil.copyfile(path, target / relative)


def checksum(element: Path) -> str:
    """Return a checksum that tells an element of a store from another one; a copy has the same.

    It does not find every change within large arrays: all of them would have to be read.
    """
    found = hashlib.sha256()
    if element.is_dir():
        files = sorted(
            (str(relative), path)
            for relative, path in _walk(element, (_identity(element),))
            if not path.is_dir()
        )
        step = max(1, len(files) // SAMPLED)
        for i, (name, path) in enumerate(files):
            # A file that is removed while we look is a change as well.
            size = path.stat().st_size if path.exists() else -1
            found.update(f"{name}\0{size}\0".encode(errors="surrogateescape"))
            if i % step == 0 and size > 0:
                found.update(_ends(path, size))
    return found.hexdigest()


def _ends(path: Path, size: int) -> bytes:
    with open(path, "rb") as file:
        first = file.read(ENDS)
        file.seek(max(ENDS, size - ENDS))
        return first + file.read(ENDS)


def _walk(
    folder: Path, above: tuple[tuple[int, int], ...], at: Path = Path()
) -> Iterator[tuple[Path, Path]]:
    """Yield relative and full paths in a folder, folders before what is in them."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        if not entry.is_file() and not entry.is_dir():
            _check_entry(path)
        yield at / entry.name, path
        if path.is_dir():
            here = _identity(path)
            if here in above:
                raise BadValue(f"Expected links within a store to end, found a circle at {path}.")
            yield from _walk(path, (*above, here), at / entry.name)


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino
