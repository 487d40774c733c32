"""Files on a Dask cluster: every worker reads its own rows, one process writes the result in order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadValue, MissingExtra
from ..io.formats import kind_of, open_cells
from ..kernels.threads import get_num_threads

__all__ = ["blocks_in_order", "connected", "lazy_rows"]

#: Blocks that are computed ahead of the one being written, for each worker.
AHEAD = 2


@contextmanager
def connected(cluster: str) -> Iterator[Any]:
    """Offer a client of the cluster at an address, or of one on this machine (``"local"``)."""
    distributed = _module("distributed")
    if cluster == "local":
        # A process a core: reading HDF5 holds a lock that threads would wait for.
        with (
            distributed.LocalCluster(
                n_workers=get_num_threads(),
                threads_per_worker=1,
                env={"NUMBA_NUM_THREADS": "1"},
                dashboard_address=":0",
                silence_logs=logging.CRITICAL,  # what fails on a worker is raised here as well
            ) as local,
            distributed.Client(local) as client,
        ):
            yield client
        return
    try:
        client = distributed.Client(cluster, timeout=10)
    except (OSError, ValueError) as error:
        raise BadValue(
            f"Expected a Dask scheduler at {cluster}, found none that answers ({error})."
        ) from None
    with client:
        yield client


def lazy_rows(
    path: Path, use_rep: str | None, shape: tuple[int, ...], dtype: Any, step: int
) -> Any:
    """Return an embedding in a file as a Dask array of which workers read their own blocks."""
    if kind_of(path) not in (".h5ad", ".zarr", ".npy"):
        raise BadValue(
            f"Expected a file that can be read in parts on a cluster (.h5ad, .zarr or .npy), found "
            f"{path.name}."
        )
    n, d = shape
    starts = range(0, n, step)
    sizes = tuple(min(step, n - lo) for lo in starts)
    where = _module("dask.array").from_array(np.array(starts)[:, None], chunks=(1, 1))
    return where.map_blocks(
        _read, str(path.resolve()), use_rep, step, dtype=dtype, chunks=(sizes, (d,)),
        meta=np.empty((0, 0), dtype),
    )  # fmt: skip


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise MissingExtra("dask and distributed to work on a cluster", "dask") from None


def _read(start: np.ndarray, path: str, use_rep: str | None, step: int) -> Any:
    lo = int(start[0, 0])
    with open_cells(path, worker=True) as file:
        return file.embedding(use_rep)[lo : lo + step]


def blocks_in_order(client: Any, result: Any) -> Iterator[tuple[int, np.ndarray]]:
    """Compute a Dask array block by block, a few ahead, and yield each with its first row's number."""
    starts = np.concatenate([[0], np.cumsum(result.chunks[0])])
    todo = deque(zip(starts, result.to_delayed().ravel(), strict=False))
    under_way: deque[tuple[int, Any]] = deque()
    most = AHEAD * max(1, len(client.ncores()))
    while todo or under_way:
        while todo and len(under_way) < most:
            lo, block = todo.popleft()
            under_way.append((int(lo), client.compute(block)))
        lo, future = under_way.popleft()
        yield lo, future.result()
