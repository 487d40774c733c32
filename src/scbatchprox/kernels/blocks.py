"""Convert any matrix to rows that the compiled loops can read, without a second copy of the matrix."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

__all__ = ["BLOCK_BYTES", "is_native", "native", "native_blocks", "output_dtype", "split"]


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
