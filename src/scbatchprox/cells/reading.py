"""The cells of a file, read a few chunks at a time: in this process or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..core.adapter import Adapter
from ..core.anchors import Anchors
from ..core.checks import nonfinite_error
from ..core.labels import Labels
from ..core.moments import Moments
from ..core.sampling import Drawing, Sample
from ..errors import BadValue, NotFinite
from ..kernels.arrays import Ints
from ..kernels.blocks import native
from ..progress import Progress
from . import cluster as on_cluster
from . import dask as lazy
from .file import Job
from .memory import MemoryCells, Sampled

__all__ = ["ClusterCells", "LocalCells", "connection", "source_of"]


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
        """Yield the mapped rows, chunk by chunk and in order."""
        result = getattr(lazy.LazyAdapter(adapter), verb)(self.Z, labels)
        return on_cluster.blocks_in_order(self.client, result)


def connection(cluster: str | None) -> AbstractContextManager[Any]:
    """Open a client of a Dask cluster; ``None`` to work in this process."""
    return nullcontext() if cluster is None else on_cluster.connected(cluster)


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
    Z = on_cluster.lazy_rows(job.file.path, job.use_rep, job.rows.shape, job.rows.dtype, job.step)
    return ClusterCells(Z, job.labels, client, progress)
