"""The files of a ``.zarr`` store, also those that links lead to: listed, copied, and compared."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from zarr.storage import LocalStore

from ...errors import BadValue
from ...kernels.threads import get_num_threads
from ..found import kind_at

__all__ = ["RegularFiles", "checksum", "copy_store", "state"]


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
    """Return a checksum of all bytes of an element of a store; a copy has the same."""
    return _digest(element, _content)


def state(element: Path) -> str:
    """Return what tells that the files of an element are the same and were not written to; reads none."""
    return _digest(element, _status)


def _digest(element: Path, describe: Callable[[Path], str]) -> str:
    """Put what is known of each file of an element together; of one that is removed meanwhile, nothing."""

    def described(path: Path) -> str:
        try:
            return describe(path)
        except FileNotFoundError:
            return ""

    found = hashlib.sha256()
    if element.is_dir():
        files = sorted(
            (str(relative), path)
            for relative, path in _walk(element, (_identity(element),))
            if not path.is_dir()
        )
        # Reading and hashing do not hold Python's lock.
        with ThreadPoolExecutor(get_num_threads()) as pool:
            texts = pool.map(described, (path for _, path in files))
            for (name, _), text in zip(files, texts, strict=True):
                found.update(f"{name}\0{text}\0".encode(errors="surrogateescape"))
    return found.hexdigest()


def _content(path: Path) -> str:
    with open(path, "rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _status(path: Path) -> str:
    found = path.stat()
    return f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _walk(
    folder: Path, above: tuple[tuple[int, int], ...], at: Path = Path()
) -> Iterator[tuple[Path, Path]]:
    """Yield relative and full paths in a folder, folders before what is in them."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        # A link first: to ask a circle of links whether it is a file is an error of the system.
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
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
