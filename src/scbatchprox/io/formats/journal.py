"""Changes to HDF5 files in place that survive a killed process.

HDF5 has no transactions: if a process dies while it writes to a file, the file may be unreadable. So HDF5
writes through the file object below. New data is appended after the end of the old content, where no
reader looks. Changes to the old content (group tables, a few kilobytes) are kept in memory. The commit
writes them at once, and a journal beside the file holds the old bytes while it does.

If the process is killed before the commit, the file has its old content, and unused bytes at its end that
the next write reuses. If it is killed during the commit, the journal exists, and the next time the file
is opened the old content is restored.

A journal is believed only if its checksum holds. It is written by a rename after a sync, so a journal that
is cut short or has a wrong checksum was damaged later, and nothing is restored from it. Nor is anything
restored from a journal of release 0.1.0, which has no checksum.

A journal must not be applied to another file that has taken the name since, or to one that another program
has changed. The number of the inode does not tell: a copy of a file and its journal should be restored
too, and a program that changes the file keeps the inode. The content does: the file must have the length
of the commit, and each byte of the journal's pages must be the old one or the new one. A power cut may
leave any mixture of these, in a page that was half written; but where old and new bytes are equal, which is
nearly everywhere, the file must have them. If all pages are old, there is nothing to restore, and the
journal is removed: someone may have put back a copy of the file, of any length.
"""

from __future__ import annotations

import hashlib
import io
import os
import signal
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import BadValue, InUse
from ..atomic import check_same, kind_at, replacing, sync_folder
from ..locks import lock, unlock

__all__ = ["JournaledFile", "WatchedFile", "deferred_signals", "journal_of", "recover"]


class WatchedFile(io.FileIO):
    """A file for h5py that remembers the first error of the system; then nothing more is written.

    Use it within ``deferred_signals``. h5py moves to a position before each of its calls.
    """

    #: Most likely a full disk.
    failure: OSError | None = None

    # --- called by h5py ---------------------------------------------------------------------------

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, as HDF5 expects it: with zeros where nothing was written yet."""
        view, got = memoryview(buffer).cast("B"), 0
        try:
            while n := super().readinto(view[got:]):  # the system may read in parts
                got += n
        except OSError as error:
            self.failure = self.failure or error
        view[got:] = bytes(len(view) - got)
        return len(view)

    def write(self, data: Any) -> int:
        """Write all of the data."""
        view = memoryview(data).cast("B")
        if self.failure is None:
            try:
                self._put(view, self.tell())
            except OSError as error:
                self.failure = error
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the end of the file."""
        end = self.tell() if size is None else size
        try:
            super().truncate(end)
        except OSError as error:
            self.failure = self.failure or error
        return end

    # --- called by us -----------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the first error, if there was one."""
        if self.failure is not None:
            raise self.failure

    def commit(self) -> None:
        """Make all changes take effect; raise if anything has failed."""
        self.check()

    def discard(self) -> None:
        """Do nothing: who made the file removes it."""

    def _put(self, view: memoryview, at: int) -> None:
        while view:
            view = view[super().write(view) :]


PAGE = 4096
MAGIC = b"scbatchprox journal 2\n"
MAGIC_1 = b"scbatchprox journal 1\n"

_HEAD = struct.Struct("<QQ")
_ENTRY = struct.Struct("<QI")


class Page(NamedTuple):
    """A page of a file, before and after a commit."""

    offset: int
    old: bytes
    new: bytes

    def fits(self, found: bytes) -> bool:
        """Whether a page of the file can be what an interrupted commit left, perhaps partly written."""
        return len(found) == len(self.old) and all(
            byte in pair for byte, *pair in zip(found, self.old, self.new, strict=True)
        )


def pack(pages: list[Page], length: int) -> bytes:
    """Return the bytes of a journal."""
    entries = (_ENTRY.pack(at, len(old)) + old + new for at, old, new in pages)
    body = MAGIC + _HEAD.pack(length, len(pages)) + b"".join(entries)
    return body + hashlib.sha256(body).digest()


def unpack(raw: bytes, path: Path, journal: Path) -> tuple[list[Page], int]:
    """Return the pages and the length of a file; raise unless all of its journal is as it was written."""
    if raw.startswith(MAGIC_1):
        raise BadValue(
            f"Expected a journal with a checksum to restore {path} from, found one of version 0.1.0 without "
            f"at {journal}; open the file once with that version, or put back a copy of the file and "
            f"delete the journal."
        )
    # A cut within the first line, or nothing at all, is damage and not another kind of file.
    if not raw.startswith(MAGIC) and not MAGIC.startswith(raw):
        raise _another(journal)
    body, digest = raw[:-32], raw[-32:]
    at, length, n_pages = len(MAGIC) + _HEAD.size, -1, 0
    pages: list[Page] = []
    if len(body) >= at and hashlib.sha256(body).digest() == digest:
        length, n_pages = _HEAD.unpack_from(body, len(MAGIC))
        while at + _ENTRY.size <= len(body) and len(pages) < n_pages:
            offset, size = _ENTRY.unpack_from(body, at)
            at += _ENTRY.size + 2 * size
            pages.append(Page(offset, body[at - 2 * size : at - size], body[at - size : at]))
    # As written: whole pages of the file in increasing order, and nothing after them.
    ends = [0, *(page.offset + PAGE for page in pages)]
    if (
        length < 0
        or at != len(body)
        or len(pages) != n_pages
        or any(
            page.offset % PAGE
            or page.offset < end
            or not 0 < len(page.old) <= PAGE
            or page.offset + len(page.old) > length
            for page, end in zip(pages, ends, strict=False)
        )
    ):
        raise BadValue(
            f"Expected a whole journal to restore {path} from, found a damaged one at {journal}; put back "
            f"a copy of the file, then delete the journal."
        )
    return pages, length


def _another(journal: Path) -> BadValue:
    return BadValue(f"Expected a journal of scbatchprox, found another file at {journal}.")


SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: Bytes after the content of a file that are put back if nothing is committed, at most.
KEPT_BYTES = 1 << 20


def journal_of(path: Path) -> Path:
    """Return the path of a file's journal during a commit: beside the file itself, not beside a link."""
    path = path.resolve()
    return path.parent / f".{path.name}.journal"


def recover(path: Path) -> None:
    """Restore the old content of a file if its process died during a commit.

    To be called when no commit is running.
    """
    if not journal_of(path).exists():
        return
    why = "to be restored, because an interrupted run left it half changed"
    try:
        fd = _locked(path)
    except InUse:
        raise InUse(
            f"Expected {path} to be free {why}, found it in use elsewhere; try again later."
        ) from None
    except OSError as error:  # no permission, or a disk that is read-only
        raise BadValue(
            f"Expected permission to write to {path}, which has {why}, found none ({error.strerror})."
        ) from None
    try:
        _undo(fd, path)
    finally:
        unlock(fd)


def _locked(path: Path) -> int:
    """Open and lock a file for writing."""
    if not hasattr(os, "preadv"):  # Windows
        raise BadValue(
            f"Expected Linux or macOS to change {path} in place, found {sys.platform}; write to another file."
        )
    return lock(path)


def _undo(fd: int, path: Path) -> None:
    """Restore the old content of a locked file from its journal, if there is one."""
    journal = journal_of(path)
    try:
        # A link is never ours: what is written there would go wherever a stranger wants.
        if journal.is_symlink() or kind_at(journal) not in (None, "file", "folder"):
            raise _another(journal)
        pages, length = unpack(journal.read_bytes(), path, journal)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BadValue(
            f"Expected to read the journal of an interrupted run at {journal}, found that this is not "
            f"possible ({error.strerror})."
        ) from None
    present = [os.pread(fd, len(page.old), page.offset) for page in pages]
    if present != [page.old for page in pages]:
        if length != os.fstat(fd).st_size or not all(map(Page.fits, pages, present)):
            raise BadValue(
                f"Expected {path} as an interrupted run left it, found that it was changed since; "
                f"delete {journal} if the file is correct."
            )
        for page in pages:
            _write_all(fd, page.old, page.offset)
    os.fsync(fd)  # also if all was old: perhaps another process was killed here, before its sync
    journal.unlink()
    sync_folder(journal.parent)


def _write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of the data; the system may take it in parts."""
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n


class JournaledFile(WatchedFile):
    """A file whose changes take effect at :meth:`commit`, or never.

    ``read`` is the state of the file when it was read; the changes are refused if it is another one by now.
    """

    _fd = -1  # of a file that could not be locked

    def __init__(self, path: Path, read: os.stat_result | None = None) -> None:
        self.path = path
        self._fd = _locked(path)
        try:
            if read is not None:
                check_same(path, read, os.fstat(self._fd))
            _undo(self._fd, path)
            super().__init__(self._fd, "r+", closefd=False)
            #: End of the old content. After a killed run the file itself is longer, so ask HDF5.
            self._old_end = _hdf5_end(self._fd)
            #: Bytes after it, of a killed run or of another program; a few are kept, to be put back.
            extra = os.fstat(self._fd).st_size - self._old_end
            self._rest = os.pread(self._fd, extra, self._old_end) if extra <= KEPT_BYTES else b""
            os.ftruncate(self._fd, self._old_end)
        except BaseException:
            self.close()
            raise
        self._old: dict[int, bytes] = {}
        self._new: dict[int, bytearray] = {}

    def readinto(self, buffer: Any) -> int:
        """Read the content with all changes."""
        view, at = memoryview(buffer).cast("B"), self.tell()
        super().readinto(view)
        for page in range(at // PAGE, -(-(at + len(view)) // PAGE)):
            start, new = page * PAGE, self._new.get(page, b"")
            lo, hi = max(start, at), min(start + len(new), at + len(view))
            if lo < hi:
                view[lo - at : hi - at] = new[lo - start : hi - start]
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the end of the content; the old content is never cut."""
        return super().truncate(max(self._old_end, self.tell() if size is None else size))

    def _put(self, view: memoryview, at: int) -> None:
        """Write to memory before the end of the old content, and to the file after it."""
        below = max(0, min(len(view), self._old_end - at))
        self._change_pages(at, view[:below])
        _write_all(self._fd, view[below:], at + below)

    def commit(self) -> None:
        """Make all changes take effect."""
        self.check()
        os.fsync(self._fd)
        end = os.fstat(self._fd).st_size
        pages = [
            Page(page * PAGE, self._old[page], bytes(self._new[page])) for page in sorted(self._new)
        ]
        with deferred_signals():
            with replacing(journal_of(self.path)) as temporary:
                temporary.write_bytes(pack(pages, end))
            try:
                for page in pages:
                    _write_all(self._fd, page.new, page.offset)
                os.fsync(self._fd)
            except BaseException:
                _undo(self._fd, self.path)
                raise
            self._old_end, self._rest = end, b""  # from here on the new data is content
            journal_of(self.path).unlink()
        sync_folder(self.path.parent)

    def discard(self) -> None:
        """Remove data that was appended but not committed."""
        # If even undoing failed, the journal is needed, and the file with the length that it tells.
        if not journal_of(self.path).exists():
            os.ftruncate(self._fd, self._old_end)
            os.pwrite(self._fd, self._rest, self._old_end)

    def close(self) -> None:
        """Close the file; changes that were not committed are lost."""
        # Not by Python, which would call flush() once more: a Ctrl-C there would come after the commit.
        if self._fd >= 0:
            unlock(self._fd)
            self._fd = -1

    def _change_pages(self, at: int, view: memoryview) -> None:
        """Change pages of the old content in memory; keep their old bytes."""
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
def deferred_signals() -> Iterator[None]:
    """Delay SIGINT (Ctrl-C) and SIGTERM until the end of a short block.

    For a commit, and for calls of h5py on a :class:`JournaledFile`. HDF5 calls the methods of the file
    object and may ignore that one has raised. The next one then runs with a KeyboardInterrupt pending,
    and Python makes a SystemError of it. A method cannot prevent this itself: the signal is often
    handled before its first line.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals only in the main thread
        return
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        # SIGINT last: its handler may raise at once, and nothing must remain to be restored.
        for number, handler in reversed(before.items()):
            signal.signal(number, handler)
    if received:
        signal.raise_signal(received[0])


def _hdf5_end(fd: int) -> int:
    """Return the end of the content as the superblock of an HDF5 file gives it, at most the file size."""
    size = os.fstat(fd).st_size
    at = 0  # after a user block the superblock is at 512, 1024, 2048, ...
    while at < size and os.pread(fd, 8, at) != SIGNATURE:
        at = max(512, 2 * at)
    head = os.pread(fd, 64, at)
    if len(head) < 64:
        return size
    field, n_bytes = {0: (40, head[13]), 1: (44, head[13])}.get(head[8], (28, head[9]))
    end = int.from_bytes(head[field : field + 8], "little")
    return min(size, end) if n_bytes == 8 else size
