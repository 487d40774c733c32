"""A number for the content of a row: exact whole-number arithmetic, the same wherever the row stands."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["GOLDEN", "Hasher", "mixed"]

#: The step of the splitmix64 generator, and its two multipliers.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
#: Numbers of few digits leave the low bits of a word empty, where products would lose what is above.
_FOLD = np.uint64(41)


def mixed(x: np.ndarray) -> np.ndarray:
    """The finish of splitmix64 (Steele, Lea & Flood 2014): one to one, and every bit depends on all."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return np.asarray(x ^ (x >> np.uint64(31)))


class Hasher:
    """Hashes of rows of ``width`` values of one type, float32 or float64, up to ``most`` at a time.

    Equal rows have equal ones; two zeros of different sign are equal, as they are elsewhere.
    """

    def __init__(self, width: int, dtype: np.dtype[Any], most: int, seed: int = 0) -> None:
        self._width = width
        # Whole 64-bit words: two values of four bytes make one. Memory that is used again, since fresh
        # memory costs more than the hashes.
        padded = width + width % 2 if dtype.itemsize == 4 else width
        self._values = np.zeros((most, padded), dtype)
        self._shifted = np.empty_like(self._values).view(np.uint64)
        # Made by whole numbers alone: a generator may give others in a later version of numpy.
        first = mixed(np.array([seed % 2**64], np.uint64))
        steps = np.arange(1, self._shifted.shape[1] + 1, dtype=np.uint64)
        self._factors = mixed(first + GOLDEN * steps) | np.uint64(1)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """(n,) unsigned numbers."""
        n = len(rows)
        values, bits = self._values[:n], self._shifted[:n]
        np.add(rows, rows.dtype.type(0), out=values[:, : self._width])
        words = values.view(np.uint64)
        np.right_shift(words, _FOLD, out=bits)
        bits ^= words
        return mixed(np.einsum("ij,j->i", bits, self._factors))
