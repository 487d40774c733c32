"""The cells of a file, read a few chunks at a time: in this process, or on a Dask cluster.

On a cluster each worker reads its own rows, and one process writes the result in order.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..core.adapter import Adapter
from ..core.checks import nonfinite_error
from ..core.labels import Labels
from ..core.moments import Anchors, Moments
from ..core.sampling import Drawing, Sample
from ..errors import BadValue, MissingExtra, NotFinite
from ..io.formats import kind_of, open_cells
from ..kernels.arrays import Ints
from ..kernels.blocks import native
from ..kernels.threads import get_num_threads
from ..progress import Progress
from . import dask as lazy
from .file import Job
from .memory import MemoryCells, Sampled

__all__ = ["ClusterCells", "LocalCells", "connection", "source_of"]

#: Blocks per worker that are computed ahead of the one being written.
BLOCKS_AHEAD = 2
#: Kinds of files of which several processes can read rows.
ON_WORKERS = (".h5ad", ".zarr", ".npy")


@dataclass(frozen=True)
class LocalCells(Sampled):
    """Cells that this process reads and maps, a few chunks at a time.

    ``sample_sizes`` asks for a sample that is drawn in the same pass as the moments.
    """

    job: Job
    progress: Progress
    sample_sizes: Ints | None = None

    @property
    def labels(self) -> Labels:
        """The batch of each row."""
        return self.job.labels

    def _drawn(self, most: Ints, seed: int) -> Sample:
        """Draw in one pass over the file."""
        drawing = Drawing(self.labels, most, seed)
        for lo, block in self.chunks():
            drawing.add(lo, block)
            self._show("sample", lo, block)
        return drawing.sample(self.take)

    def take(self, rows: Ints) -> np.ndarray:
        """Read some rows, given in increasing order, in one pass over the file."""
        found = []
        for lo, block in self.chunks():
            first, last = np.searchsorted(rows, (lo, lo + block.shape[0]))
            found.append(native(block[rows[first:last] - lo]).copy())
            self._show("sample", lo, block)
        return np.concatenate(found)

    def moments(self, by: Labels | Anchors | None = None) -> Moments:
        """Moments of all rows, merged chunk by chunk."""
        total: Moments | None = None
        sizes = None if self._samples else self.sample_sizes
        drawing = None if sizes is None else Drawing(self.labels, sizes)
        for lo, block in self.chunks():
            if drawing is not None:
                drawing.add(lo, block)
            part = self._part(self.job.labels, lo, block)
            groups = self._part(by, lo, block) if isinstance(by, Labels) else by
            try:
                more = MemoryCells(block, part).moments(groups)
            except NotFinite:
                raise nonfinite_error(block, lo) from None
            total = more if total is None else total.merge(more)
            self._show("moments", lo, block)
        if drawing is not None:
            self._samples[drawing.most.tobytes(), drawing.seed] = drawing.sample(self.take)
        assert total is not None  # open_job refuses an embedding without rows
        return total

    def mapped(
        self, adapter: Adapter, verb: str, labels: Labels
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the rows mapped by ``adapter.apply`` or ``adapter.inverse``, chunk by chunk."""
        for lo, block in self.chunks():
            try:
                mapped = getattr(adapter, verb)(block, self._part(labels, lo, block))
            except NotFinite:
                raise nonfinite_error(block, lo) from None
            del block  # so that it is gone while the result is written
            yield lo, mapped
            del mapped  # and this while the next one is made, as in Job.write

    def chunks(self) -> Iterator[tuple[int, Any]]:
        """Yield chunks of rows, with the number of their first row; the next one is read ahead."""
        n, step = self.job.rows.shape[0], self.job.step

        def read(lo: int) -> Any:
            return self.job.rows[lo : min(n, lo + step)]

        with ThreadPoolExecutor(1, thread_name_prefix="scbatchprox-read") as reader:
            next_block = reader.submit(read, 0)
            for lo in range(0, n, step):
                ready = [next_block.result()]
                if lo + step < n:
                    next_block = reader.submit(read, lo + step)
                yield lo, ready.pop()  # given away: it is gone when the caller has done with it

    def in_memory(self) -> np.ndarray:
        """Read the whole embedding."""
        blocks = [block for _, block in self.chunks()]
        return np.concatenate([b.toarray() if hasattr(b, "toarray") else b for b in blocks])

    def _show(self, stage: str, lo: int, block: Any) -> None:
        self.progress(stage, lo + block.shape[0], self.job.rows.shape[0])

    @staticmethod
    def _part(labels: Labels, lo: int, block: Any) -> Labels:
        return labels.at(slice(lo, lo + block.shape[0]))


@dataclass(frozen=True, eq=False)
class ClusterCells(lazy.DaskCells):
    """Cells that the workers of a Dask cluster read and map."""

    client: Any
    progress: Progress

    def moments(self, by: Labels | Anchors | None = None) -> Moments:
        """Moments of all rows, merged along a tree."""
        total = super().moments(by)
        self.progress("moments", total.n_cells, total.n_cells)
        return total

    def mapped(
        self, adapter: Adapter, verb: str, labels: Labels
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the mapped rows, chunk by chunk and in order; a few are computed ahead."""
        result = getattr(lazy.LazyAdapter(adapter), verb)(self.Z, labels)
        starts = np.concatenate([[0], np.cumsum(result.chunks[0])])
        waiting = deque(zip(starts, result.to_delayed().ravel(), strict=False))
        running: deque[tuple[int, Any]] = deque()
        most = BLOCKS_AHEAD * max(1, len(self.client.ncores()))
        while waiting or running:
            while waiting and len(running) < most:
                lo, block = waiting.popleft()
                running.append((int(lo), self.client.compute(block)))
            lo, future = running.popleft()
            yield lo, future.result()


@contextmanager
def connection(cluster: str | None) -> Iterator[Any]:
    """Yield a client of the cluster at an address, or of one started on this machine (``"local"``).

    ``None`` is to work in this process.
    """
    if cluster is None:
        yield None
        return
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


def source_of(
    job: Job, client: Any, progress: Progress, sample_sizes: Ints | None = None
) -> LocalCells | ClusterCells:
    """Return the cells of a job, read in this process or by the workers of a client."""
    if client is None:
        return LocalCells(job, progress, sample_sizes)
    if isinstance(job.rows, np.ndarray) or sp.issparse(job.rows):
        raise BadValue(
            f"Expected an embedding that can be read in parts on a cluster, found one in "
            f"{job.file.path.name} that must be read as a whole."
        )
    return ClusterCells(_lazy_rows(job), job.labels, client, progress)


def _lazy_rows(job: Job) -> Any:
    """Return the embedding of a job as a Dask array; each worker reads its own blocks."""
    path, dtype, step = job.file.path, job.rows.dtype, job.step
    if kind_of(path) not in ON_WORKERS:
        raise BadValue(
            f"Expected a file that can be read in parts on a cluster (.h5ad, .zarr or .npy), found "
            f"{path.name}."
        )
    n, d = job.rows.shape
    starts = range(0, n, step)
    sizes = tuple(min(step, n - lo) for lo in starts)
    first_rows = _module("dask.array").from_array(np.array(starts)[:, None], chunks=(1, 1))
    return first_rows.map_blocks(
        _read, str(path.resolve()), job.use_rep, step, dtype=dtype, chunks=(sizes, (d,)),
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
