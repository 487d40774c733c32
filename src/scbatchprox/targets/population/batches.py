"""The populations of many batches, as stacks of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...core.checks import overflow_error
from ...kernels.arrays import Floats, Ints
from .meeting import Stack

__all__ = ["Batches", "Everyone"]

#: Squared distances over the variance within populations, at most, so that no sum of them overflows.
LARGEST = 1e150
#: Batches in a stack, at most: this limits the memory of its arrays.
STACK_SIZE = 64
#: With at least this many populations, runs are on threads. Below, Python's global lock prevents a gain.
MANY_POPULATIONS = 1500


class Everyone(NamedTuple):
    """Numbers of cells and batches everywhere, and the variance within populations, per coordinate."""

    n_cells: float
    n_batches: float
    variance: float


class Batches:
    """Populations of batches in stacks. The batches of a stack have similar numbers of populations.

    Attributes
    ----------
    everyone
        Of all batches everywhere, if these are some of them.
    n_cells
        (B,) cells of each batch.
    stacks, members, rows
        The stacks; for each stack, (b,) which batches it holds, and (b, P) the populations of these
        batches, -1 where a batch has fewer than P.
    """

    def __init__(self, X: Floats, n: Ints, start: Ints, everyone: Everyone) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.einsum("ij,ij->", X, X) < LARGEST:
                raise overflow_error()
        sizes = np.diff(start)
        self.everyone, self.n_rows = everyone, len(X)
        self.n_cells = np.add.reduceat(n, start[:-1]).astype(float)
        self.rows: list[np.ndarray] = []
        self.stacks: list[Stack] = []
        self.members: list[np.ndarray] = []
        bucket = np.ceil(np.log2(sizes)).astype(int)
        for size in np.unique(bucket):
            similar = np.flatnonzero(bucket == size)
            for lo in range(0, similar.size, STACK_SIZE):
                members = similar[lo : lo + STACK_SIZE]
                index = start[members][:, None] + np.arange(sizes[members].max())
                exists = index < start[members + 1][:, None]
                rows = np.where(exists, index, -1)
                x = np.where(exists[:, :, None], X[rows], 0.0)
                cells = np.where(exists, n[rows], 0.0)
                self.members.append(members)
                self.rows.append(rows)
                self.stacks.append(Stack(x, cells, everyone.variance))

    @property
    def many(self) -> bool:
        """Whether there are so many populations that it takes less time on threads."""
        return self.n_rows >= MANY_POPULATIONS

    def by_population(self, parts: list[Any]) -> Any:
        """Values of all populations, in order, from the values of each stack."""
        out: np.ndarray = np.zeros((self.n_rows, *parts[0].shape[2:]), parts[0].dtype)
        for rows, part in zip(self.rows, parts, strict=True):
            out[rows[rows >= 0]] = part[rows >= 0]
        return out

    def by_batch(self, parts: list[np.ndarray]) -> Floats:
        """Values of all batches, in order, from the values of each stack."""
        out: np.ndarray = np.zeros((self.n_cells.size, *parts[0].shape[1:]), parts[0].dtype)
        for members, part in zip(self.members, parts, strict=True):
            out[members] = part
        return out

    def in_stacks(self, values: np.ndarray) -> list[np.ndarray]:
        """Values of batches, split into those of each stack."""
        return [values[members] for members in self.members]

    def means(self) -> Floats:
        """(B, d) means of the batches."""
        return self.by_batch([stack.means() for stack in self.stacks])
