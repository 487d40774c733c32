"""The process before the program starts: its standard streams, and its address space (``ulimit -v``).

Streams may be closed, or nobody may read them any more: the work goes on without them.

OpenBLAS, which numpy and scipy bring, reserves memory and starts threads when it is loaded. Where that fails
it interrupts the process as Ctrl-C would, ends it, or tries again for ever, and Python cannot say why. The
compiler of numba is loaded later, and says that its file cannot be found. So there is a look at the address
space before libraries are loaded.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

from ..errors import BadValue

__all__ = ["check_address_space", "open_streams"]

_OUT, _ERR = 1, 2


def open_streams() -> None:
    """Open the streams that were closed, and write to the others only as long as somebody reads them."""
    # The next file would get the number of a closed stream, and what libraries print would go into it.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _ERR:
        os.set_inheritable(handle, True)
    os.close(handle)
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115 - for the rest of the process
    sys.stdout, sys.stderr = _watched(sys.stdout, _OUT), _watched(sys.stderr, _ERR)


def _watched(stream: TextIO | None, number: int) -> TextIO:
    if stream is not None and (stream.isatty() or not isinstance(stream, io.TextIOWrapper)):
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(_Watched(number, "w", closefd=False)),
        "utf-8" if stream is None else stream.encoding,
        "replace" if stream is None else stream.errors,
        line_buffering=number == _ERR,
    )


class _Watched(io.FileIO):
    """A stream that ends with the first error; Python would report it again when it flushes at the end."""

    _ended = False

    def write(self, data: Any) -> int:
        """Write, or drop what nobody reads: the reader of a pipe, such as ``head``, may have closed it."""
        if not self._ended:
            try:
                return super().write(data)
            except OSError as error:
                self._ended = True
                # Nothing can be said of stderr. A full disk loses the result on stdout.
                if not (isinstance(error, BrokenPipeError) or self.fileno() == _ERR):
                    raise
        return memoryview(data).nbytes


#: Bytes that the libraries take with one thread of OpenBLAS, and with each one more: a stack and a buffer in
#: both numpy and scipy.
NEEDED, PER_THREAD = 960 << 20, 80 << 20


def check_address_space() -> None:
    """Raise an error if there is too little to load libraries; with little, OpenBLAS gets one thread."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY or "numpy" in sys.modules:
        return
    if limit < NEEDED:
        raise BadValue(
            f"Expected an address space of at least {NEEDED >> 20} MB (ulimit -v), found {limit >> 20} MB."
        )
    if limit < NEEDED + PER_THREAD * ((os.cpu_count() or 1) - 1):
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
