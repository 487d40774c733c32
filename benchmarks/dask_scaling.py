"""A Dask cluster on this machine: what a second worker brings, and how the graph grows with the blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cloudpickle
import dask
import dask.array as da
import numpy as np
from distributed import Client, LocalCluster

from scbatchprox import BatchProx
from scbatchprox.cells.dask import moments_tree
from scbatchprox.core.labels import Labels

from .measure import Row, fastest

D, N_BATCHES = 50, 20


def run() -> Iterator[Row]:
    yield from scaling(4_000_000, rows=100_000)
    yield from graph(rows=1_000)


def scaling(n: int, rows: int) -> Iterator[Row]:
    batch = np.random.default_rng(0).integers(0, N_BATCHES, n)
    Z = generated(n, rows)

    def refine() -> None:
        # One row of each block comes back, so that the time is the workers', not the wire's.
        BatchProx().fit_transform(Z, batch=batch).map_blocks(first_row, chunks=(1, D)).compute()

    def generate() -> None:
        # Nothing is kept between the two passes, so refining makes the cells twice.
        for _ in range(2):
            Z.map_blocks(first_row, chunks=(1, D)).compute()

    times = {}
    for workers in (1, 2):
        with (
            LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                dashboard_address=None,
                # A worker of a cluster with many has a core; ours must not borrow another's.
                env={"NUMBA_NUM_THREADS": "1"},
            ) as cluster,
            Client(cluster),
        ):
            times[workers] = fastest(refine, generate, repeat=3)
    (one, made_by_one), (two, made_by_two) = times[1], times[2]
    size = f"{n:,} x {D} float32, {n // rows} blocks made on the workers"
    note = f"{one:.2f} s / {two:.2f} s"
    yield Row(f"fit_transform with 1 worker / 2 workers, {size}", one / two, least=1.5, note=note)
    note = f"{made_by_one:.2f} s / {made_by_two:.2f} s"
    yield Row("    making the cells alone", made_by_one / made_by_two, note=note)
    yield Row("    fit_transform / making the cells twice, 2 workers", two / made_by_two)


def graph(rows: int) -> Iterator[Row]:
    """Tasks and bytes that a block adds, beside those that the array came with."""
    bytes_per_block = {}
    for blocks in (10, 100, 1000):
        n = blocks * rows
        batch = np.arange(n) % N_BATCHES
        Z = generated(n, rows)
        labels = Labels.of(batch, n)
        model = BatchProx().fit(np.random.default_rng(0).normal(size=(200, D)), batch=batch[:200])
        source_tasks, source_bytes = graph_size(Z)
        for verb, lazy in (
            ("fit", moments_tree(Z, labels)),
            ("transform", model.transform(Z, batch=batch)),
        ):
            tasks, size = graph_size(lazy)
            bytes_per_block[verb, blocks] = (size - source_bytes) / blocks
            yield Row(
                f"{verb}: tasks added per block, {blocks} blocks",
                (tasks - source_tasks) / blocks,
                "",
                most=1.5,
                note=f"{tasks} tasks",
            )
            yield Row(
                f"    bytes added per block beside the codes of its {rows:,} rows (one byte each)",
                bytes_per_block[verb, blocks] - rows,
                "B",
            )
    for verb in ("fit", "transform"):
        yield Row(
            f"{verb}: bytes added per block, 1000 blocks / 100 blocks",
            bytes_per_block[verb, 1000] / bytes_per_block[verb, 100],
            most=1.1,
        )


def generated(n: int, rows: int) -> Any:
    """Cells from a generator seeded by their place: every worker can make every block."""

    def make(block_info: Any = None) -> np.ndarray:
        lo, hi = block_info[None]["array-location"][0]
        return np.random.default_rng(lo).standard_normal((hi - lo, D), dtype=np.float32)

    chunks = da.core.normalize_chunks((rows, D), shape=(n, D))
    return da.map_blocks(make, chunks=chunks, dtype="f4", meta=np.empty((0, 0), "f4"))


def first_row(block: np.ndarray) -> np.ndarray:
    return block[:1]


def graph_size(lazy: Any) -> tuple[int, int]:
    """Tasks of the graph as it would be run, and its bytes when sent."""
    (ready,) = dask.optimize(lazy)
    tasks = dict(ready.__dask_graph__())
    return len(tasks), len(cloudpickle.dumps(tasks))
