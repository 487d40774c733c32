"""Cells in a file: read a few chunks at a time, here or on a cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..core.adapter import Adapter
from ..core.anchors import Anchors
from ..core.checks import check_embedding, nonfinite_error
from ..core.labels import Labels, population_labels
from ..core.moments import Moments
from ..core.sampling import Drawing, Sample
from ..errors import BadValue, NotFinite
from ..io.formats import CellFile, Rows, kind_of, open_cells
from ..io.formats.arrays import npy_writer
from ..kernels.arrays import Ints
from ..kernels.blocks import native, output_dtype
from ..progress import Progress, silent
from . import cluster as on_cluster
from . import dask as lazy
from .keys import as_keys, batch_labels
from .memory import MemoryCells

__all__ = ["Here", "Job", "connection", "open_job", "source_of"]

log = logging.getLogger(__name__)

#: Bytes of cells read at a time. A few of these are in memory at once.
CHUNK_BYTES = 1 << 25

#: Text tables become each other: only the separator and the packing differ.
TEXT = {".csv", ".tsv", ".csv.gz", ".tsv.gz"}


@dataclass(frozen=True)
class Job:
    """A file to read from, checked against what is asked, and where its result goes."""

    file: CellFile
    use_rep: str | None
    rows: Rows
    labels: Labels
    key: str
    out: Path | None
    population: Labels | None = None

    @property
    def step(self) -> int:
        """Rows to read at a time."""
        step = max(1, CHUNK_BYTES // (self.rows.shape[1] * self.rows.dtype.itemsize))
        return max(self.file.row_step, step // self.file.row_step * self.file.row_step)

    def in_memory(self) -> np.ndarray:
        """Return the whole embedding."""
        blocks = [block for _, block in Here(self, silent).chunks()]
        return np.concatenate([b.toarray() if hasattr(b, "toarray") else b for b in blocks])

    def write(
        self, mapped: Iterator[tuple[int, np.ndarray]], record: dict[str, Any], progress: Progress
    ) -> None:
        """Write the result as it comes, then the record of it."""
        n, d = self.rows.shape
        writer_of = self.file.writer
        if self.out is not None and kind_of(self.out) == ".npy":
            writer_of = npy_writer  # the refined cells alone, whatever they came in
        with writer_of(self.out, self.key, (n, d), output_dtype(self.rows)) as writer:
            for lo, block in mapped:
                writer.write(lo, block)
                progress("refine", lo + len(block), n)
            writer.finish(record)


@contextmanager
def open_job(
    path: str | Path,
    batch_key: str | Sequence[str],
    use_rep: str | None,
    key_added: str | None,
    out: str | Path | None,
    labels: str | Path | None,
    population_key: str | None = None,
) -> Iterator[Job]:
    """Open a file and check everything that can be before any cell is read."""
    keys = as_keys(batch_key)
    with open_cells(path, labels) as file:
        for name, given, fits in (
            ("use_rep", use_rep, file.named),
            ("key_added", key_added, file.keyed),
        ):
            if given is not None and not fits:
                raise BadValue(
                    f"Expected {name} only for files that hold several embeddings, found {given!r} "
                    f"for {file.path.name}."
                )
        also = [] if population_key is None or population_key in keys else [population_key]
        obs = file.obs(keys + also)
        rows = file.embedding(use_rep)
        check_embedding(rows[0:1])
        found = Labels.of(batch_labels(obs, keys), rows.shape[0])
        key = file.default_key(use_rep) if key_added is None else key_added
        if key in ("", ".", "..") or "/" in key:
            raise BadValue(f"Expected a plain name for the result, found {key!r}.")
        if file.keyed and key == (use_rep or file.default_rep):
            raise BadValue(
                f"Expected another name for the result than that of the input, found {key!r}."
            )
        population = (
            None
            if population_key is None
            else population_labels(obs[population_key], rows.shape[0])
        )
        job = Job(file, use_rep, rows, found, key, _checked_out(out, file), population)
        log.info(
            "%s: %d cells x %d coordinates (%s) in %d batches, %d rows at a time; result %r",
            file.path.name, *rows.shape, rows.dtype, found.batches.size, job.step, key,
        )  # fmt: skip
        yield job


def _checked_out(out: str | Path | None, file: CellFile) -> Path | None:
    if out is None or Path(out).resolve() == file.path.resolve():
        return None
    kinds = kind_of(file.path), kind_of(out)
    if kinds[0] != kinds[1] and not (kinds[1] == ".npy" or set(kinds) <= TEXT):
        raise BadValue(
            f"Expected an output of the same kind as the input ({kinds[0]}), or .npy for the refined "
            f"cells alone, found {Path(out).name!r}."
        )
    if Path(out).is_dir() != (kinds[1] == ".zarr") and Path(out).exists():
        raise BadValue(f"Expected a place for a {kinds[1]} file, found another thing at {out}.")
    if file.path.resolve() in Path(out).resolve().parents:
        raise BadValue(f"Expected a place outside of the input for the output, found {out}.")
    if not Path(out).resolve().parent.is_dir():
        raise BadValue(f"Expected a folder to write to, found none at {Path(out).parent}.")
    return Path(out)


@dataclass(frozen=True)
class Here:
    """Cells read and mapped in this process."""

    job: Job
    progress: Progress
    watched: Ints | None = None
    _drawn: dict[tuple[bytes, int], Sample] = field(default_factory=dict)

    @property
    def labels(self) -> Labels:
        """The batch of each row."""
        return self.job.labels

    def sample(self, most: Ints, seed: int = 0) -> Sample:
        """Up to ``most`` rows of each batch, from one pass over all, or from one before.

        What is ``watched`` for is drawn on the way when moments are taken.
        """
        key = most.tobytes(), seed
        if key not in self._drawn:
            drawing = Drawing(self.labels, most, seed)
            for lo, block in self.chunks():
                drawing.add(lo, block)
                self.progress("sample", lo + block.shape[0], self.job.rows.shape[0])
            self._drawn[key] = drawing.sample(self._take)
        return self._drawn[key]

    def small_sample(self, most: Ints, seed: int = 0) -> Sample:
        """As :meth:`sample`."""
        return self.sample(most, seed)

    def _take(self, rows: Ints) -> np.ndarray:
        """Some rows, from one pass over all."""
        found = []
        for lo, block in self.chunks():
            first, last = np.searchsorted(rows, (lo, lo + block.shape[0]))
            found.append(native(block[rows[first:last] - lo]).copy())
            self.progress("sample", lo + block.shape[0], self.job.rows.shape[0])
        return np.concatenate(found)

    def moments(self, by: Labels | Anchors | None = None) -> Moments:
        """Moments of all rows, merged a chunk at a time."""
        total: Moments | None = None
        watch = self.watched if not self._drawn else None
        drawing = None if watch is None else Drawing(self.labels, watch)
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
            self.progress("moments", lo + block.shape[0], self.job.rows.shape[0])
        if drawing is not None:
            self._drawn[drawing.most.tobytes(), drawing.seed] = drawing.sample(self._take)
        assert total is not None  # an embedding without rows was refused before
        return total

    def mapped(
        self, adapter: Adapter, verb: str, labels: Labels
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Rows after the adapter's verb, a chunk at a time."""
        for lo, block in self.chunks():
            try:
                mapped = getattr(adapter, verb)(block, self._part(labels, lo, block))
            except NotFinite:
                raise nonfinite_error(block, lo) from None
            yield lo, mapped

    def chunks(self) -> Iterator[tuple[int, Any]]:
        """Stretches of rows; the next one is read while one is worked on."""
        n, step = self.job.rows.shape[0], self.job.step

        def read(lo: int) -> Any:
            return self.job.rows[lo : min(n, lo + step)]

        with ThreadPoolExecutor(1, thread_name_prefix="scbatchprox-read") as reader:
            coming = reader.submit(read, 0)
            for lo in range(0, n, step):
                block = coming.result()
                if lo + step < n:
                    coming = reader.submit(read, lo + step)
                yield lo, block

    @staticmethod
    def _part(labels: Labels, lo: int, block: Any) -> Labels:
        return labels.at(slice(lo, lo + block.shape[0]))


@dataclass(frozen=True)
class _There:
    """Cells read and mapped by the workers of a cluster."""

    job: Job
    client: Any
    cells: Any
    progress: Progress

    @property
    def labels(self) -> Labels:
        """The batch of each row."""
        return self.job.labels

    def sample(self, most: Ints, seed: int = 0) -> Sample:
        """Up to ``most`` rows of each batch, drawn by the workers."""
        return lazy.DaskCells(self.cells, self.labels).sample(most, seed)

    def small_sample(self, most: Ints, seed: int = 0) -> Sample:
        """As :meth:`sample`."""
        return self.sample(most, seed)

    def moments(self, by: Labels | Anchors | None = None) -> Moments:
        """Moments of all rows, merged along a tree."""
        total = lazy.moments(self.cells, self.labels, by)
        self.progress("moments", total.n_cells, total.n_cells)
        return total

    def mapped(
        self, adapter: Adapter, verb: str, labels: Labels
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Rows after the adapter's verb, a chunk at a time and in order."""
        result = getattr(lazy.LazyAdapter(adapter), verb)(self.cells, labels)
        return on_cluster.blocks_in_order(self.client, result)


def connection(cluster: str | None) -> AbstractContextManager[Any]:
    """Offer a client of a Dask cluster, or ``None`` to work in this process."""
    return nullcontext() if cluster is None else on_cluster.connected(cluster)


def source_of(
    job: Job, client: Any, progress: Progress, watched: Ints | None = None
) -> Here | _There:
    """Return the cells of a job, read here or by the workers of a client."""
    if client is None:
        return Here(job, progress, watched)
    whole = isinstance(job.rows, np.ndarray) and not isinstance(job.rows, np.memmap)
    if whole or sp.issparse(job.rows):
        raise BadValue(
            f"Expected an embedding that can be read in parts on a cluster, found one in "
            f"{job.file.path.name} that must be read as a whole."
        )
    cells = on_cluster.lazy_rows(
        job.file.path, job.use_rep, job.rows.shape, job.rows.dtype, job.step
    )
    return _There(job, client, cells, progress)
