"""Folders of messages: read and written without following links, each file written once.

A courier talks to a server that others run. So its account must be able to do one thing only: read an outbox
and write an inbox. It refuses to start where it could read cells or keys. This is tried out, not read from
modes: lists of rights and roots have their own rules.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import BadFile, BadValue
from .letters import (
    FIRST_LINE,
    MAX_BYTES,
    MAX_FILES,
    MAX_TOTAL,
    Code,
    Content,
    Have,
    Part,
    is_name,
    wanted,
)

__all__ = ["CourierFolder", "check_account", "check_boxes", "check_private"]

#: Files that are arriving, named by their hash.
STAGING = ".courier"
_TEMPORARY = re.compile(r"\..+\.partial")  # written by a site, renamed when complete
_DEPTH = 4
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_FOLDER = _READ | os.O_DIRECTORY


class CourierFolder:
    """Messages below ``root``. Paths below it are never followed out of it."""

    def __init__(
        self,
        root: Path,
        *,
        most: int = MAX_BYTES,
        files: int = MAX_FILES,
        total: int = MAX_TOTAL,
    ) -> None:
        self.root = root.resolve()
        self._most, self._files, self._total = most, files, total
        # Hashes of files that have not changed since, by name.
        self._known: dict[str, tuple[tuple[int, ...], Content | None]] = {}

    def files(self) -> dict[str, Content]:
        """Return all messages; other files are left out."""
        seen: dict[str, tuple[tuple[int, ...], Content | None]] = {}
        found: dict[str, Content] = {}
        for name, folder, last in self._walk():
            if not is_name(name):
                continue
            try:
                file = os.open(last, _READ, dir_fd=folder)
            except OSError:
                continue  # a link, or a file that is gone
            try:
                facts = os.fstat(file)
                mark = (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
                known = self._known.get(name)
                entry = known[1] if known and known[0] == mark else self._entry(file, facts)
                seen[name] = (mark, entry)
            finally:
                os.close(file)
            if entry:
                found[name] = entry
        self._known = seen
        return found

    def strangers(self) -> list[str]:
        """Return files, links and folders that are not messages, nor on their way to be."""
        return sorted(
            name
            for name, folder, last in self._walk()
            if not (
                (is_name(name) and _starts_right(folder, last))
                or name.startswith(f"{STAGING}/")
                or (_TEMPORARY.fullmatch(last) and is_name(_final(name)))
            )
        )

    def begun(self) -> dict[str, int]:
        """Return the number of bytes that have arrived, of each hash."""
        try:
            with self._open([STAGING]) as folder, os.scandir(folder) as entries:
                return {
                    entry.name: entry.stat(follow_symlinks=False).st_size
                    for entry in entries
                    if entry.is_file(follow_symlinks=False)
                }
        except FileNotFoundError:
            return {}

    def parts(self, files: Mapping[str, Content], other: Have, budget: int) -> list[Part]:
        """Return what to send of some messages to a side that lacks it: at most ``budget`` bytes."""
        return [
            Part(want.name, want.entry, want.offset, data)
            for want in wanted(files, other, budget)
            if (data := self.read(want.name, want.offset, want.length))
        ]

    def read(self, name: str, offset: int, length: int) -> bytes:
        """Return bytes of a message."""
        *parents, last = name.split("/")
        with self._open(parents) as folder, _opened(last, _READ, folder) as file:
            return os.pread(file, length, offset)

    def accept(self, part: Part, files: dict[str, Content]) -> Code:
        """Add a part of a file that arrives; ``files`` is updated when it is complete."""
        entry = part.entry
        if not is_name(part.name):
            return Code.BAD_NAME
        if part.name in files:
            return Code.OK if files[part.name] == entry else Code.CONFLICT
        if not len(FIRST_LINE) <= entry.size <= self._most:
            return Code.TOO_LARGE if entry.size > self._most else Code.BAD_FILE
        begun = self.begun()
        used = sum(known.size for known in files.values()) + sum(begun.values())
        if len(files) + len(begun) >= self._files or used + len(part.data) > self._total:
            return Code.FULL
        if part.offset == 0 and not part.data.startswith(FIRST_LINE[: len(part.data)]):
            return Code.BAD_FILE
        with self._open([STAGING], make=True) as staging:
            arrived = _append(staging, part)
            if arrived is None:
                return Code.OUT_OF_STEP
            if arrived < entry.size:
                return Code.OK
            code = self._finish(staging, part.name, entry)
        if code is Code.OK:
            files[part.name] = entry
        return code

    def _finish(self, staging: int, name: str, entry: Content) -> Code:
        """Give a complete file its name, if it is what was announced and the name is free."""
        with _opened(entry.hash, _READ, staging) as file:
            right = self._entry(file, os.fstat(file)) == entry
            os.fsync(file)
        try:
            if not right:
                return Code.BAD_FILE
            *parents, last = name.split("/")
            with self._open(parents, make=True) as folder:
                _link(staging, entry.hash, folder, last)
                os.fsync(folder)
            return Code.OK
        except FileExistsError:
            return Code.CONFLICT
        finally:
            os.unlink(entry.hash, dir_fd=staging)

    def _entry(self, file: int, facts: os.stat_result) -> Content | None:
        """Return hash and size of an open file, or None if it is not a message."""
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > self._most:
            return None
        digest, size = hashlib.sha256(), 0
        while data := os.pread(file, 1 << 20, size):
            if size == 0 and not data.startswith(FIRST_LINE):
                return None
            digest.update(data)
            size += len(data)
        return Content(digest.hexdigest(), size) if size else None

    def _walk(self) -> Iterator[tuple[str, int, str]]:
        """Yield the name, the open parent and the last part of all that is not a folder."""

        def walk(folder: int, prefix: str, depth: int) -> Iterator[tuple[str, int, str]]:
            for last in sorted(os.listdir(folder)):
                name = prefix + last
                is_folder = stat.S_ISDIR(_mode(folder, last))
                if not is_folder or depth == _DEPTH:
                    yield name, folder, last
                    continue
                with _opened(last, _OPEN_FOLDER, folder) as inner:
                    yield from walk(inner, f"{name}/", depth + 1)

        with self._open([]) as root:
            yield from walk(root, "", 0)

    @contextmanager
    def _open(self, parts: list[str], *, make: bool = False) -> Iterator[int]:
        """Open a folder below the root, one part after the other; a link is an error."""
        folder = os.open(self.root, _OPEN_FOLDER)
        try:
            for part in parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                inner = os.open(part, _OPEN_FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)


@contextmanager
def _opened(name: str, flags: int, folder: int) -> Iterator[int]:
    """Open a file in a folder that is open."""
    file = os.open(name, flags, 0o666, dir_fd=folder)
    try:
        yield file
    finally:
        os.close(file)


def _append(staging: int, part: Part) -> int | None:
    """Append a part to what has arrived, and return how much has; None if it does not fit there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with _opened(part.entry.hash, flags, staging) as file:
        size = os.fstat(file).st_size
        if size != part.offset or size + len(part.data) > part.entry.size:
            return None
        view = memoryview(part.data)
        while view:
            written = os.pwrite(file, view, size)
            view, size = view[written:], size + written
        return size


def _link(source: int, name: str, target: int, last: str) -> None:
    """Give a file a second name, never one that is taken."""
    try:
        os.link(name, last, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        # Some shares have no links. Only this courier writes here, so nobody comes in between.
        if _mode(target, last):
            raise FileExistsError(last) from None
        os.rename(name, last, src_dir_fd=source, dst_dir_fd=target)
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=source))


def _mode(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _starts_right(folder: int, last: str) -> bool:
    try:
        with _opened(last, _READ, folder) as file:
            regular = stat.S_ISREG(os.fstat(file).st_mode)
            return regular and os.pread(file, len(FIRST_LINE), 0) == FIRST_LINE
    except OSError:
        return False


def _final(name: str) -> str:
    """Return the name that a temporary file will get: ``.NAME.123abc.partial`` becomes ``NAME``."""
    parent, _, last = name.rpartition("/")
    return f"{parent}/{last[1:].rsplit('.', 2)[0]}"


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
        strangers = CourierFolder(path).strangers()
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
