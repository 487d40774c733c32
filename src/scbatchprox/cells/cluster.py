"""Files on a Dask cluster: each worker reads its own rows, and one process writes the result in order."""

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

#: Blocks per worker that are computed ahead of the one being written.
BLOCKS_AHEAD = 2


@contextmanager
def connected(cluster: str) -> Iterator[Any]:
    """Yield a client of the cluster at an address, or of one started on this machine (``"local"``)."""
    distributed = _module("distributed")
    if cluster == "local":
        # One process per core, not threads: reading HDF5 holds a lock that other threads wait for.
        with (
            distributed.LocalCluster(
                n_workers=get_num_threads(),
                threads_per_worker=1,
                env={"NUMBA_NUM_THREADS": "1"},
                dashboard_address=":0",
                silence_logs=logging.CRITICAL,  # errors on a worker are raised here as well
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
    """Return an embedding in a file as a Dask array; each worker reads its own blocks."""
    if kind_of(path) not in (".h5ad", ".zarr", ".npy"):
        raise BadValue(
            f"Expected a file that can be read in parts on a cluster (.h5ad, .zarr or .npy), found "
            f"{path.name}."
        )
    n, d = shape
    starts = range(0, n, step)
    sizes = tuple(min(step, n - lo) for lo in starts)
    first_rows = _module("dask.array").from_array(np.array(starts)[:, None], chunks=(1, 1))
    return first_rows.map_blocks(
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
    """Compute a Dask array block by block, a few ahead; yield the first row of each block, and the block."""
    starts = np.concatenate([[0], np.cumsum(result.chunks[0])])
    waiting = deque(zip(starts, result.to_delayed().ravel(), strict=False))
    running: deque[tuple[int, Any]] = deque()
    most = BLOCKS_AHEAD * max(1, len(client.ncores()))
    while waiting or running:
        while waiting and len(running) < most:
            lo, block = waiting.popleft()
            running.append((int(lo), client.compute(block)))
        lo, future = running.popleft()
        yield lo, future.result()
