"""Hashes of rows by integer arithmetic: exact, and independent of the position of the row."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["GOLDEN", "Hasher", "mixed"]

#: Increment of the splitmix64 generator.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
#: The two multipliers of splitmix64.
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
#: Half the bits of a 64-bit word.
_HALF_WORD = np.uint64(32)


def mixed(x: np.ndarray) -> np.ndarray:
    """The last step of splitmix64 (Steele, Lea & Flood 2014): one to one; each bit depends on all bits."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return np.asarray(x ^ (x >> np.uint64(31)))


class Hasher:
    """Hashes of rows of ``n_dims`` values of type float32 or float64, for up to ``max_rows`` rows at a time.

    Equal rows have equal hashes. Zeros of different sign are equal.
    """

    def __init__(self, n_dims: int, dtype: np.dtype[Any], max_rows: int, seed: int = 0) -> None:
        self._n_dims = n_dims
        # Rows fill whole 64-bit words: two float32 values make one. The buffers are reused, since
        # allocating memory takes longer than hashing.
        padded = n_dims + n_dims % 2 if dtype.itemsize == 4 else n_dims
        self._values = np.zeros((max_rows, padded), dtype)
        words = self._values.view(np.uint64).shape
        self._buffer = np.empty((2, *words), np.uint64)
        # Integer arithmetic: the numbers of a random generator may change with the version of numpy.
        self._first = mixed(np.array([seed % 2**64], np.uint64))
        steps = np.arange(1, words[1] + 1, dtype=np.uint64)
        self._factors = mixed(self._first + GOLDEN * steps) | np.uint64(1)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """(n,) unsigned numbers."""
        values = self._values[: len(rows)]
        np.add(rows, rows.dtype.type(0), out=values[:, : self._n_dims])  # adding 0 turns -0 into 0
        words = values.view(np.uint64)
        # The low bits of numbers with few digits are zero, and products drop the high bits: mix them.
        spread, high = self._buffer[:, : len(rows)]
        np.multiply(words, _FIRST, out=spread)
        spread ^= np.right_shift(spread, _HALF_WORD, out=high)
        return mixed(self._first + np.einsum("ij,j->i", spread, self._factors))
