"""How many threads the loops over cells use.

The loops release the GIL and run on a Python thread pool. numba's parallel back ends abort the process
when two Python threads call them at once (workqueue) or after a fork (OpenMP). Dask workers and data
loaders do both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Event
from typing import Any, TypeVar

import numpy  # noqa: F401 - threadpoolctl only finds libraries that are loaded
from threadpoolctl import (  # type: ignore[import-untyped]
    ThreadpoolController,
    threadpool_limits,
)

from ..errors import BadValue

__all__ = [
    "get_num_threads",
    "one_blas_thread",
    "one_numpy_thread",
    "parallel_map",
    "set_num_threads",
]

T = TypeVar("T")
R = TypeVar("R")

_chosen: int | None = None


def set_num_threads(n: int | None) -> None:
    """Use ``n`` threads from now on; ``None`` goes back to the default. Results never depend on it.

    Examples
    --------
    >>> from scbatchprox import get_num_threads, set_num_threads
    >>> set_num_threads(2)
    >>> get_num_threads()
    2
    >>> set_num_threads(None)
    """
    global _chosen
    if n is not None and (not isinstance(n, int) or n < 1):
        raise BadValue(f"Expected a whole number of threads >= 1, or None, found {n!r}.")
    _chosen = n


def get_num_threads() -> int:
    """Threads in use: the number set, or ``NUMBA_NUM_THREADS``, or the cores this process may use.

    Examples
    --------
    >>> from scbatchprox import get_num_threads
    >>> get_num_threads() >= 1
    True
    """
    if _chosen is not None:
        return _chosen
    variable = os.environ.get("NUMBA_NUM_THREADS", "")
    if variable.isdigit() and int(variable) > 0:
        return int(variable)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity
        return os.cpu_count() or 1


def parallel_map(work: Callable[[T], R], items: Iterable[T], stop: Event | None = None) -> list[R]:
    """``list(map(work, items))`` on threads, results in the order of the items.

    A new pool per call costs about 0.1 ms, and no threads remain that a fork could break. After Ctrl-C or an
    error, items that have begun are waited for; if they take long, they can look at ``stop``, which is set.
    """
    items = list(items)
    threads = min(get_num_threads(), len(items))
    if threads <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="scbatchprox") as pool:
        try:
            return list(pool.map(work, items))
        except BaseException:
            if stop is not None:
                stop.set()
            raise


def one_blas_thread() -> Any:
    """Return a context in which linear algebra uses one thread.

    For many small products a second thread saves no time. While idle it spins and takes a core from other
    work: a fit took 213 ms instead of 146, and a logistic regression on a busy machine 29 s instead of
    0.4. Threads may enter and leave this context in any order.
    """
    return threadpool_limits(limits=1, user_api="blas")


def one_numpy_thread() -> Any:
    """Return a context in which numpy's matrix products use one thread.

    For products of blocks of cells, which already run on several threads. :func:`one_blas_thread` searches
    for libraries each time, which takes a millisecond, as long as the products of a small batch. This
    function searches once.
    """
    return _numpy_blas().limit(limits=1, user_api="blas")


@lru_cache(maxsize=1)
def _numpy_blas() -> Any:
    return ThreadpoolController().select(user_api="blas")
