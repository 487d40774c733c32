"""Runs: rows of a single batch, in pieces that threads can work on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np

from .arrays import Ints
from .threads import one_numpy_thread, parallel_map

__all__ = ["BLOCK_ROWS", "Rows", "blocks", "map_runs", "sorted_rows"]

R = TypeVar("R")

#: Rows: a slice, or row numbers.
Rows = slice | Ints
#: Rows that are sorted by batch at once. Their row numbers take far less memory than the rows.
PART_ROWS = 1 << 18
#: With many batches more rows are sorted at once: this many for each batch.
ROWS_PER_BATCH = 512
#: Rows of one batch that a thread works on.
RUN_ROWS = 1 << 14
#: Rows in a block: few enough that their distances to all centres stay in the cache.
BLOCK_ROWS = 1 << 11
#: Runs whose results are held in memory at once.
RUNS = 64


def sorted_rows(codes: np.ndarray, n_batches: int) -> tuple[Ints, Ints]:
    """Row numbers sorted by batch, ascending within each, and where each batch begins (B + 1,)."""
    # Small integers are sorted by radix in one or two passes: 5 ms instead of 55 for a million.
    small = codes.astype(np.min_scalar_type(max(n_batches - 1, 0)), copy=False)
    start = np.zeros(n_batches + 1, np.int64)
    np.cumsum(np.bincount(codes, minlength=n_batches), out=start[1:])
    return np.argsort(small, kind="stable"), start


def map_runs(
    work: Callable[[int, Rows], R], codes: np.ndarray, n_batches: int
) -> Iterator[tuple[int, R]]:
    """Call ``work(batch, rows)`` for runs of rows of one batch, on threads; yield (batch, result) in order.

    The codes alone determine the runs, never the number of threads. Matrix products in ``work`` use one
    thread each.
    """
    step = max(PART_ROWS, ROWS_PER_BATCH * n_batches)
    for lo in range(0, codes.size, step):
        runs = _runs(codes[lo : lo + step], n_batches, lo)
        for k in range(0, len(runs), RUNS):
            some = runs[k : k + RUNS]
            with one_numpy_thread():
                found = parallel_map(lambda run: work(*run), some)
            yield from ((b, result) for (b, _), result in zip(some, found, strict=True))


def _runs(codes: np.ndarray, n_batches: int, first: int) -> list[tuple[int, Rows]]:
    order, start = sorted_rows(codes, n_batches)
    order += first
    edges = start.tolist()
    cuts = [
        (b, order[lo : min(lo + RUN_ROWS, edges[b + 1])])
        for b in range(n_batches)
        for lo in range(edges[b], edges[b + 1], RUN_ROWS)
    ]
    return [(b, _slice_if_contiguous(rows)) for b, rows in cuts]


def _slice_if_contiguous(rows: Ints) -> Rows:
    """Consecutive rows as a slice, which selects without a copy."""
    lo, hi = int(rows[0]), int(rows[-1]) + 1
    return slice(lo, hi) if hi - lo == rows.size else rows


def blocks(rows: Rows) -> Iterator[Rows]:
    """Yield blocks of a run."""
    if isinstance(rows, slice):
        for lo in range(rows.start, rows.stop, BLOCK_ROWS):
            yield slice(lo, min(rows.stop, lo + BLOCK_ROWS))
    else:
        for lo in range(0, rows.size, BLOCK_ROWS):
            yield rows[lo : lo + BLOCK_ROWS]
