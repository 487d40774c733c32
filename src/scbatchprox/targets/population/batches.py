"""The populations of many batches, as stacks of arrays."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...core.checks import overflow_error
from ...kernels.arrays import Floats, Ints
from ...kernels.distances import squared_distances
from .consensus import Stack
from .settings import PopulationSettings

__all__ = ["Batches", "Everyone", "spacing", "spacing_sums"]

#: Squared distances in the unit of squared lengths, at most, so that no sum of them overflows.
LARGEST = 1e150
#: Batches in a stack, at most: this limits the memory of its arrays.
STACK_SIZE = 64
#: With at least this many populations, runs are on threads. Below, Python's global lock prevents a gain.
MANY_POPULATIONS = 1500


class Everyone(NamedTuple):
    """Numbers of cells, batches and populations over all batches everywhere."""

    n_cells: float
    n_batches: float
    n_populations: float

    @property
    def mean_size(self) -> float:
        """Mean number of populations in a batch."""
        return self.n_populations / self.n_batches


class Batches:
    """Populations of batches in stacks. The batches of a stack have similar numbers of populations.

    Attributes
    ----------
    n_rows
        Number of populations.
    everyone
        Of all batches everywhere, if these are some of them.
    sizes
        (B,) populations of each batch.
    share
        (B,) part of all cells that each batch has.
    stacks, members, rows
        The stacks; for each stack, (b,) which batches it holds, and (b, P) the populations of these
        batches, -1 where a batch has fewer than P.
    """

    def __init__(
        self,
        X: Floats,
        n: Ints,
        start: Ints,
        unit: float,
        settings: PopulationSettings,
        everyone: Everyone | None = None,
    ) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.einsum("ij,ij->", X, X) / unit < LARGEST:
                raise overflow_error()
        sizes = np.diff(start)
        self.everyone = everyone or Everyone(float(n.sum()), float(sizes.size), float(len(X)))
        self.n_rows, self.settings = len(X), settings
        self.sizes = sizes
        self.share = np.add.reduceat(n, start[:-1]) / self.everyone.n_cells
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
                weight = np.where(exists, n[rows], 0.0)
                # The weight of a batch is its number of populations, not its number of cells.
                weight *= exists.sum(1, keepdims=True) / weight.sum(1, keepdims=True)
                x = np.where(exists[:, :, None], X[rows], 0.0)
                self.members.append(members)
                self.rows.append(rows)
                self.stacks.append(Stack.of(x, weight, unit, settings))

    @property
    def many(self) -> bool:
        """Whether there are so many populations that it takes less time on threads."""
        return self.everyone.n_populations >= MANY_POPULATIONS

    def by_population(self, parts: list[Any]) -> Any:
        """Values of all populations, in order, from the values of each stack."""
        out: np.ndarray = np.zeros((self.n_rows, *parts[0].shape[2:]), parts[0].dtype)
        for rows, part in zip(self.rows, parts, strict=True):
            out[rows[rows >= 0]] = part[rows >= 0]
        return out

    def by_batch(self, parts: list[np.ndarray]) -> Floats:
        """Values of all batches, in order, from the values of each stack."""
        out: np.ndarray = np.zeros((self.sizes.size, *parts[0].shape[1:]), parts[0].dtype)
        for members, part in zip(self.members, parts, strict=True):
            out[members] = part
        return out

    def in_stacks(self, values: np.ndarray) -> list[np.ndarray]:
        """Values of batches, split into those of each stack."""
        return [values[members] for members in self.members]

    def means(self) -> Floats:
        """(B, d) means of the batches."""
        return self.by_batch([stack.means() for stack in self.stacks])


def spacing_sums(X: Floats, n: Ints, start: Ints) -> tuple[float, float]:
    """Sum over cells of the squared distance of their population to the nearest one of its batch.

    And the number of these cells: those in batches with two or more populations.
    """
    squares = cells = 0.0
    for lo, hi in pairwise(start.tolist()):
        if hi - lo > 1:
            part = X[lo:hi] - X[lo:hi].mean(0)
            D = squared_distances(part, part)
            np.fill_diagonal(D, np.inf)
            squares += float(D.min(1) @ n[lo:hi])
            cells += float(n[lo:hi].sum())
    return squares, cells


def spacing(squares: float, cells: float, variance: float, settings: PopulationSettings) -> float:
    """Mean squared distance of a population to the nearest one of its batch, within bounds.

    ``squares`` and ``cells`` are those of :func:`spacing_sums`. The bounds depend on the ``variance``
    within populations. The result is 1 if no batch has two populations and the variance is zero.
    """
    found = squares / cells if cells else 0.0
    bound = max(settings.wide * variance, settings.tight * found)
    return min(found, bound) if found > 0 else bound or 1.0
