"""The address space of the process (``ulimit -v``), looked at before libraries are loaded.

OpenBLAS, which numpy and scipy bring, reserves memory and starts threads when it is loaded. Where that fails
it interrupts the process as Ctrl-C would, ends it, or tries again for ever, and Python cannot say why. The
compiler of numba is loaded later, and says that its file cannot be found.
"""

from __future__ import annotations

import os
import sys

from ..errors import BadValue

__all__ = ["check_address_space"]

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
