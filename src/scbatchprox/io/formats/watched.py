"""Files that HDF5 writes through Python, so that no failed write is lost.

HDF5 writes when it likes, also where it or h5py ignores errors, and it may crash after one. So it is never
told of an error: it goes on as if all were well, and :meth:`WatchedFile.check` raises the error.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["WatchedFile"]


class WatchedFile:
    """A file object for h5py that remembers the first error of the system; then nothing more is written.

    Use it within ``deferred_signals``.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115 - closed by close()
        self._end = os.fstat(self._file.fileno()).st_size
        self._at = 0
        #: Most likely a full disk.
        self.failure: OSError | None = None

    # --- called by h5py ---------------------------------------------------------------------------

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer, as HDF5 expects it: with zeros where nothing was written yet."""
        view = memoryview(buffer).cast("B")
        try:
            got = self._fill(view, self._at)
        except OSError as error:
            self.failure, got = self.failure or error, 0
        view[got:] = bytes(len(view) - got)
        self._at += len(view)
        return len(view)

    def read(self, size: int = -1) -> bytes:
        """Read some bytes."""
        size = max(self._end - self._at, 0) if size < 0 else size
        buffer = bytearray(size)
        self.readinto(memoryview(buffer))
        return bytes(buffer)

    def write(self, data: bytes | memoryview) -> int:
        """Write all of the data."""
        view = memoryview(data).cast("B")
        if self.failure is None:
            try:
                self._put(view, self._at)
            except OSError as error:
                self.failure = error
        self._at += len(view)
        self._end = max(self._end, self._at)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the end of the content."""
        self._end = self._at if size is None else size
        return self._end

    def flush(self) -> None:
        """Do nothing: the content counts only after :meth:`commit`."""

    # --- called by us -----------------------------------------------------------------------------

    def check(self) -> None:
        """Raise the first error, if there was one."""
        if self.failure is not None:
            raise self.failure

    def commit(self) -> None:
        """End the file where HDF5 does; raise if anything has failed."""
        self.check()
        self._file.truncate(self._end)

    def discard(self) -> None:
        """Do nothing: who made the file removes it."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    # The system may read and write in parts.

    def _fill(self, view: memoryview, at: int) -> int:
        """Read from a position; return how much there is."""
        self._file.seek(at)
        got = 0
        while n := self._file.readinto(view[got:]):
            got += n
        return got

    def _put(self, view: memoryview, at: int) -> None:
        self._file.seek(at)
        while view:
            view = view[self._file.write(view) :]
