"""Rows in pieces: blocks that the compiled loops can read, without a second copy of the matrix, and runs.

A run has rows of a single batch, so that a thread can work on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp

from .arrays import Ints
from .threads import one_numpy_thread, parallel_map

__all__ = [
    "BLOCK_BYTES",
    "BLOCK_ROWS",
    "RowNumbers",
    "blocks",
    "is_native",
    "map_runs",
    "native",
    "native_blocks",
    "output_dtype",
    "sorted_rows",
    "split",
]


#: Bytes of a block of rows. Work in blocks avoids temporary arrays as large as the matrix.
BLOCK_BYTES = 1 << 21


def output_dtype(Z: Any) -> np.dtype[Any]:
    """Return float32 for float32 and half precision, and float64 for everything else."""
    small = Z.dtype.kind == "f" and Z.dtype.itemsize <= 4
    return np.dtype(np.float32 if small else np.float64)


def is_native(Z: Any) -> bool:
    """Whether the loops can read ``Z`` without a copy."""
    return (
        isinstance(Z, np.ndarray)
        and Z.dtype in (np.float32, np.float64)
        and Z.dtype.isnative
        and bool(Z.flags.c_contiguous)
        and bool(Z.flags.aligned)
    )


def native(Z: Any) -> np.ndarray:
    """``Z`` itself if the loops can read it, else a converted copy (float32 or float64)."""
    if is_native(Z):
        return Z  # type: ignore[no-any-return]
    dense = Z.toarray() if sp.issparse(Z) else Z
    return np.require(dense, output_dtype(Z), ["C", "A"])


def native_blocks(Z: Any, lo: int, hi: int) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield rows ``lo`` to ``hi`` as native pieces: one view if possible, else small copies."""
    if is_native(Z):
        yield lo, hi, Z[lo:hi]
        return
    rows = max(1, BLOCK_BYTES // (8 * Z.shape[1]))
    for start in range(lo, hi, rows):
        stop = min(hi, start + rows)
        yield start, stop, native(Z[start:stop])


def split(n_rows: int, parts: int) -> list[tuple[int, int]]:
    """Cut rows into contiguous parts of nearly equal size."""
    edges = [n_rows * k // parts for k in range(parts + 1)]
    return [(lo, hi) for lo, hi in pairwise(edges) if hi > lo]


R = TypeVar("R")

#: Rows: a slice, or row numbers.
RowNumbers = slice | Ints
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
    work: Callable[[int, RowNumbers], R], codes: np.ndarray, n_batches: int
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


def _runs(codes: np.ndarray, n_batches: int, first: int) -> list[tuple[int, RowNumbers]]:
    order, start = sorted_rows(codes, n_batches)
    order += first
    edges = start.tolist()
    cuts = [
        (b, order[lo : min(lo + RUN_ROWS, edges[b + 1])])
        for b in range(n_batches)
        for lo in range(edges[b], edges[b + 1], RUN_ROWS)
    ]
    return [(b, _slice_if_contiguous(rows)) for b, rows in cuts]


def _slice_if_contiguous(rows: Ints) -> RowNumbers:
    """Consecutive rows as a slice, which selects without a copy."""
    lo, hi = int(rows[0]), int(rows[-1]) + 1
    return slice(lo, hi) if hi - lo == rows.size else rows


def blocks(rows: RowNumbers) -> Iterator[RowNumbers]:
    """Yield blocks of a run."""
    if isinstance(rows, slice):
        for lo in range(rows.start, rows.stop, BLOCK_ROWS):
            yield slice(lo, min(rows.stop, lo + BLOCK_ROWS))
    else:
        for lo in range(0, rows.size, BLOCK_ROWS):
            yield rows[lo : lo + BLOCK_ROWS]
