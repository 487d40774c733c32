"""A number for the content of a row: exact whole-number arithmetic, the same wherever the row stands."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["GOLDEN", "Hasher", "mixed"]

#: The step of the splitmix64 generator, and its two multipliers.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
#: Half a word.
_HALF = np.uint64(32)


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
        words = self._values.view(np.uint64).shape
        self._room = np.empty((2, *words), np.uint64)
        # Made by whole numbers alone: a generator may give others in a later version of numpy.
        self._first = mixed(np.array([seed % 2**64], np.uint64))
        steps = np.arange(1, words[1] + 1, dtype=np.uint64)
        self._factors = mixed(self._first + GOLDEN * steps) | np.uint64(1)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """(n,) unsigned numbers."""
        values = self._values[: len(rows)]
        np.add(rows, rows.dtype.type(0), out=values[:, : self._width])
        words = values.view(np.uint64)
        # Numbers of few digits leave the low bits empty, and products lose what is in the high ones.
        spread, high = self._room[:, : len(rows)]
        np.multiply(words, _FIRST, out=spread)
        spread ^= np.right_shift(spread, _HALF, out=high)
        return mixed(self._first + np.einsum("ij,j->i", spread, self._factors))
