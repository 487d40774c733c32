"""How many threads the loops over cells use.

They release the GIL and run on a plain Python thread pool. numba's own parallel back ends
abort the process when two Python threads call them at once (workqueue) or after a fork (OpenMP);
a library that is called from Dask workers and data loaders cannot afford either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

import numpy  # noqa: F401 - its linear algebra must be there to be found
from threadpoolctl import (  # type: ignore[import-untyped]
    ThreadpoolController,
    threadpool_limits,
)

from ..errors import BadValue

__all__ = [
    "get_num_threads",
    "one_blas_thread",
    "one_numpy_thread",
    "one_thread",
    "parallel_map",
    "set_num_threads",
]

T = TypeVar("T")
R = TypeVar("R")

_chosen: int | None = None


def set_num_threads(n: int | None) -> None:
    """Use ``n`` threads from now on; ``None`` goes back to the default. Results never depend on it."""
    global _chosen
    if n is not None and (not isinstance(n, int) or n < 1):
        raise BadValue(f"Expected a whole number of threads >= 1, or None, found {n!r}.")
    _chosen = n


def get_num_threads() -> int:
    """Threads in use: as set, or ``NUMBA_NUM_THREADS``, or the cores this process may run on."""
    if _chosen is not None:
        return _chosen
    named = os.environ.get("NUMBA_NUM_THREADS", "")
    if named.isdigit() and int(named) > 0:
        return int(named)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity
        return os.cpu_count() or 1


def parallel_map(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """``list(map(work, items))`` on threads, results in the order of the items.

    A pool per call costs about 0.1 ms and leaves nothing behind that a fork could break.
    """
    items = list(items)
    threads = min(get_num_threads(), len(items))
    if threads <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="scbatchprox") as pool:
        return list(pool.map(work, items))


def one_blas_thread() -> Any:
    """Return a context in which linear algebra uses one thread.

    For many small products a second thread is no gain, and when it has nothing to do it spins and takes
    a core from whoever could use it: a fit of 146 ms took 213, and a logistic regression on a busy
    machine 29 s instead of 0.4. Threads may enter and leave in any order: threadpoolctl lets the first
    of them decide.
    """
    return threadpool_limits(limits=1, user_api="blas")


def one_thread() -> Any:
    """Return a context in which scikit-learn's loops use one thread too, not linear algebra alone.

    For many searches among a few hundred cells: on a busy machine the neighbours of 400 cells took 37 ms
    with two threads, and 2 ms with one.
    """
    return threadpool_limits(limits=1)


def one_numpy_thread() -> Any:
    """:func:`one_blas_thread` for numpy's products alone.

    Around the products of blocks of cells, which run on threads of their own. Finding the libraries takes
    a millisecond, as long as the products of a small batch: this is done once, when numpy's is there.
    """
    return _numpy_blas().limit(limits=1, user_api="blas")


@lru_cache(maxsize=1)
def _numpy_blas() -> Any:
    return ThreadpoolController().select(user_api="blas")
