"""The interface of targets, and of the cells that they describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..kernels.arrays import Ints
from .adapter import Adapter
from .anchors import Anchors
from .evidence import Evidence, Trace
from .exchange import Exchange, itself
from .labels import Labels
from .moments import Moments, Pooled
from .problem import Target, Weights
from .sampling import Sample

__all__ = ["Aim", "Cells", "Target", "TargetRule"]


class Cells(Protocol):
    """Labelled cells in memory, in a Dask array, or in a file."""

    @property
    def labels(self) -> Labels:
        """The batch of each cell."""
        ...

    def sample(self, most: Ints, seed: int = 0) -> Sample:
        """Up to ``most`` (B,) cells of each batch, chosen by hashes of the cells, which must be finite."""
        ...

    def small_sample(self, most: Ints, seed: int = 0) -> Sample:
        """Like :meth:`sample`, but possibly other cells if that is faster; cells are known to be finite."""
        ...

    def moments(self, by: Labels | Anchors | None = None) -> Moments:
        """Moments of batches, of other groups, or of the cells nearest to each anchor."""
        ...

    def mapped(
        self, adapter: Adapter, verb: str, labels: Labels
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the cells mapped by ``adapter.apply`` or ``adapter.inverse``, some rows at a time."""
        ...


class Aim(NamedTuple):
    """A target, and how it was found if batches were registered; otherwise the rest is ``None``.

    With ``evidence``, the rows of the adapter are those of the target: the weights and rounds have been used
    to find it, and no solver applies them again.
    """

    target: Target
    consensus: Any = None  # what batches were registered to
    evidence: Evidence | None = None  # on each batch
    trace: Trace | None = None  # of the rounds


class TargetRule(Protocol):
    """A rule that describes cells by moments and computes a target from these."""

    #: Rounds to run by default; ``None`` is the fixed point.
    @property
    def default_rounds(self) -> int | None: ...  # noqa: D102

    #: Whether finding the target uses the weights and rounds. Otherwise the solver uses them.
    @property
    def registers(self) -> bool: ...  # noqa: D102

    #: Bandwidth of the mixture of rows, in units of the variance within rows; only for rows with anchors.
    @property
    def bandwidth(self) -> float: ...  # noqa: D102

    def describe(
        self, cells: Cells, known: Moments | None = None, population: Labels | None = None
    ) -> Moments:
        """Return moments of cells; batches in ``known`` are described by the same rows as there."""
        ...

    def check(self, moments: Moments) -> None:
        """Raise an error if moments are not of the kind that :meth:`describe` returns."""
        ...

    def rows(self, moments: Moments) -> Moments:
        """Return the moments that the rows of the target belong to."""
        ...

    def aim(
        self,
        moments: Moments,
        weights: Weights,
        rounds: int | None,
        pooled: Pooled | None = None,
        exchange: Exchange = itself,
    ) -> Aim:
        """Return the target of every row of batches that are fitted together.

        ``pooled`` describes all batches, if ``moments`` are those of some of them. ``exchange`` adds up
        other sums over all batches that the target needs.
        """
        ...

    def join(
        self,
        moments: Moments,
        pooled: Pooled,
        consensus: Any,
        weights: Weights,
        rounds: int | None,
    ) -> Aim:
        """Return the target of every row of new batches, given a fixed reference, and evidence on them."""
        ...
