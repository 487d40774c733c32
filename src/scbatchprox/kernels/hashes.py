"""Hashes of rows, independent of the position of the row: of their content (exact), or first of their norm.

A turn of the coordinates changes the content of every row but no norm, apart from rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["CONTENT_BITS", "GOLDEN", "Hasher", "mixed"]

#: Increment of the splitmix64 generator.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
#: The two multipliers of splitmix64.
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
#: Half the bits of a 64-bit word.
_HALF_WORD = np.uint64(32)
#: Lower bits of a key, which depend on the content: so many that only copies have equal keys.
CONTENT_BITS = np.uint64(40)
#: Binary digits of a squared norm that count, by the bytes of a value. The rounding of a turn changes them
#: for none of 200,000 rows of float64, but for 1 of 25 to 70 of float32: with fewer digits, too many large
#: batches would have equal norms.
_KEPT_DIGITS = {4: 20, 8: 32}
#: Binary digits of a float64 after the first one.
_DIGITS = 52


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
        self._dropped = _DIGITS - _KEPT_DIGITS[dtype.itemsize]

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

    def squares(self, rows: np.ndarray) -> np.ndarray:
        """(n,) squared norms, in double precision: the order of coordinates changes the last digits only."""
        if rows.dtype.itemsize == 4:
            doubles = self._buffer.reshape(-1).view(np.float64)[: rows.size].reshape(rows.shape)
            doubles[:] = rows
            rows = doubles
        return np.asarray(np.einsum("ij,ij->i", rows, rows))

    def keys(self, rows: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """(n,) unsigned numbers: the upper bits depend on the squared norm, the lower on the content."""
        # Rounded, not cut: numbers such as 1 are often just below it.
        half = np.uint64(1 << (self._dropped - 1))
        digits = (squares.view(np.uint64) + half) >> np.uint64(self._dropped)
        upper = (mixed(self._first + GOLDEN * digits) >> CONTENT_BITS) << CONTENT_BITS
        return np.asarray(upper | (self(rows) >> (np.uint64(64) - CONTENT_BITS)))
