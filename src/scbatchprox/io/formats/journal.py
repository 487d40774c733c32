"""HDF5 files changed in place, so that a killed process loses nothing.

HDF5 has no transactions: a file that is being written to when its process dies may be unreadable. Here
the library writes through a file object that lets it append past the end of the old content, where no
reader looks, but keeps every change to the old content (group tables, a few kilobytes) in memory. At
the end these are written in one go, with their old bytes in a journal beside the file for as long as
that takes. Killed before: old content, and dead bytes at the end that the next write reuses. Killed in
that last millisecond: the journal is there, and the next opening puts the old content back.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import BadValue
from ..atomic import replacing, sync_folder
from ..locks import lock, unlock

__all__ = ["JournaledFile", "journal_of", "recover"]

PAGE = 4096
MAGIC = b"scbatchprox journal 1\n"
SIGNATURE = b"\x89HDF\r\n\x1a\n"


def journal_of(path: Path) -> Path:
    """Where the journal of a file lies while it is being committed: beside the file, not a link to it."""
    path = path.resolve()
    return path.parent / f".{path.name}.journal"


def recover(path: Path) -> None:
    """Put back the old content of a file whose process died while committing."""
    if journal_of(path).exists():
        fd = _locked(path)  # or it would undo a commit that is going on
        try:
            _undo(fd, path)
        finally:
            unlock(fd)


def _locked(path: Path) -> int:
    """Open a file for one writer alone."""
    if not hasattr(os, "preadv"):  # Windows
        raise BadValue(
            f"Expected Linux or macOS to change {path} in place, found {sys.platform}; write to another file."
        )
    return lock(path)


def _undo(fd: int, path: Path) -> None:
    """Restore what the journal of a locked file remembers, if there is one."""
    journal = journal_of(path)
    try:
        raw = journal.read_bytes()
    except FileNotFoundError:
        return
    if not raw.startswith(MAGIC):
        raise BadValue(f"Expected a journal of scbatchprox, found another file at {journal}.")
    entry = struct.Struct("<QI")
    at, pages = len(MAGIC), []
    while at < len(raw):
        offset, size = entry.unpack_from(raw, at)
        at += entry.size
        pages.append((offset, raw[at : at + size], raw[at + size : at + 2 * size]))
        at += 2 * size
    for offset, old, new in pages:
        if os.pread(fd, len(old), offset) not in (old, new):
            raise BadValue(
                f"Expected {path} as an interrupted run left it, found that it was changed since; "
                f"delete {journal} if the file is as it should be."
            )
    for offset, old, _ in pages:
        os.pwrite(fd, old, offset)
    os.fsync(fd)
    journal.unlink()
    sync_folder(journal.parent)


class JournaledFile:
    """A file object for h5py whose changes take effect at :meth:`commit`, or never."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = _locked(path)
        _undo(self._fd, path)
        #: Where the old content ends; HDF5 knows better than the file system after a killed run.
        self._old_end = _hdf5_end(self._fd)
        self._end = self._old_end
        self._old: dict[int, bytes] = {}
        self._new: dict[int, bytearray] = {}
        self._at = 0
        #: What went wrong while HDF5 was writing, a full disk most likely.
        self.failure: OSError | None = None

    # --- what h5py calls --------------------------------------------------------------------------

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readinto(self, buffer: memoryview) -> int:
        """Read what HDF5 believes is in the file."""
        view = memoryview(buffer).cast("B")
        got = 0
        while got < len(view):
            n = os.preadv(self._fd, [view[got:]], self._at + got)
            if n == 0:  # past the end, where HDF5 has allocated but not yet written
                view[got:] = bytes(len(view) - got)
                break
            got += n
        first, last = self._at // PAGE, (self._at + len(view) - 1) // PAGE
        for page in range(first, last + 1) if len(view) < 64 * PAGE else sorted(self._new):
            if page in self._new and first <= page <= last:
                lo = max(page * PAGE, self._at)
                hi = min(page * PAGE + len(self._new[page]), self._at + len(view))
                if lo < hi:
                    view[lo - self._at : hi - self._at] = self._new[page][
                        lo - page * PAGE : hi - page * PAGE
                    ]
        self._at += len(view)
        return len(view)

    def read(self, size: int = -1) -> bytes:
        """Read some bytes."""
        size = max(self._end - self._at, 0) if size < 0 else size
        buffer = bytearray(size)
        self.readinto(memoryview(buffer))
        return bytes(buffer)

    def write(self, data: bytes | memoryview) -> int:
        """Write to memory below the old end and to the file above it."""
        view = memoryview(data).cast("B")
        below = max(0, min(len(view), self._old_end - self._at))
        self._remember(self._at, view[:below])
        above, at = view[below:], self._at + below
        while above and self.failure is None:
            try:
                n = os.pwrite(self._fd, above, at)
            except OSError as error:
                # HDF5 cannot carry an exception: it goes on, in vain, and the commit raises.
                self.failure = error
                break
            above, at = above[n:], at + n
        self._at += len(view)
        self._end = max(self._end, self._at)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Note where the content ends; the old content is never cut."""
        self._end = max(self._old_end, self._at if size is None else size)
        return self._end

    def flush(self) -> None:
        """Do nothing: only :meth:`commit` changes the old content."""

    # --- what we call -----------------------------------------------------------------------------

    def commit(self) -> None:
        """Let the changes take effect, all of them."""
        if self.failure is not None:
            raise self.failure
        os.ftruncate(self._fd, self._end)
        os.fsync(self._fd)
        pages = [
            (page * PAGE, self._old[page], bytes(self._new[page])) for page in sorted(self._new)
        ]
        with _interrupts_later():
            with replacing(journal_of(self.path)) as beside:
                entries = [struct.pack("<QI", at, len(old)) + old + new for at, old, new in pages]
                beside.write_bytes(MAGIC + b"".join(entries))
            try:
                for offset, _, new in pages:
                    os.pwrite(self._fd, new, offset)
                os.fsync(self._fd)
            except BaseException:
                _undo(self._fd, self.path)
                raise
            self._old_end = self._end  # what was new is content from here on
            journal_of(self.path).unlink()
        sync_folder(self.path.parent)

    def discard(self) -> None:
        """Cut off what was appended and not committed."""
        os.ftruncate(self._fd, self._old_end)

    def close(self) -> None:
        """Let go of the file; what was not committed never happened."""
        if self._fd >= 0:
            unlock(self._fd)
            self._fd = -1

    def _remember(self, at: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            page, start = divmod(at + done, PAGE)
            if page not in self._new:
                size = min(PAGE, self._old_end - page * PAGE)
                self._old[page] = os.pread(self._fd, size, page * PAGE)
                self._new[page] = bytearray(self._old[page])
            n = min(len(self._new[page]) - start, len(view) - done)
            self._new[page][start : start + n] = view[done : done + n]
            done += n


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Let Ctrl-C and a polite kill wait for the end of a few milliseconds' work."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python raises them in the main thread alone
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


def _hdf5_end(fd: int) -> int:
    """The end of the content by the superblock of an HDF5 file, at most the size of the file."""
    size = os.fstat(fd).st_size
    at = 0  # a user block may stand in front: then the superblock is at 512, 1024, 2048, ...
    while at < size and os.pread(fd, 8, at) != SIGNATURE:
        at = max(512, 2 * at)
    head = os.pread(fd, 64, at)
    if len(head) < 64:
        return size
    field, width = {0: (40, head[13]), 1: (44, head[13])}.get(head[8], (28, head[9]))
    end = int.from_bytes(head[field : field + 8], "little")
    return min(size, end) if width == 8 else size
