"""Moments become a Target: what every target must be able to do."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..kernels.arrays import Ints
from .anchors import Anchors
from .labels import Labels
from .moments import Moments, Pooled
from .problem import Target, Weights
from .sampling import Sample

__all__ = ["Aim", "Cells", "Target", "TargetRule"]


class Cells(Protocol):
    """Labelled cells, wherever they are: in memory, in a Dask array, in a file."""

    @property
    def labels(self) -> Labels:
        """The batch of each."""
        ...

    def sample(self, most: Ints, seed: int = 0) -> Sample:
        """Up to ``most`` (B,) of each batch, chosen by their content; they must be finite."""
        ...

    def small_sample(self, most: Ints, seed: int = 0) -> Sample:
        """As :meth:`sample`, but it may be another one if that is faster; cells are known to be finite."""
        ...

    def moments(self, by: Labels | Anchors | None = None) -> Moments:
        """Moments of batches, of other groups, or of the cells around each of some anchors."""
        ...


class Aim(NamedTuple):
    """A target, and the consensus that batches were registered to, if they were."""

    target: Target
    consensus: Any


class TargetRule(Protocol):
    """Anything that says what must be known of cells, and turns that into a target."""

    #: Rounds to run unless the user says otherwise; ``None`` is the fixed point.
    @property
    def default_rounds(self) -> int | None: ...  # noqa: D102

    #: Whether weights and rounds are used to find the target; otherwise a solver uses them to reach it.
    @property
    def registers(self) -> bool: ...  # noqa: D102

    #: How far a cell sees, in units of the variance within rows; only for rows with anchors.
    @property
    def bandwidth(self) -> float: ...  # noqa: D102

    def describe(
        self, cells: Cells, known: Moments | None = None, population: Labels | None = None
    ) -> Moments:
        """Look at cells; those of batches in ``known`` are described by the same rows as there."""
        ...

    def check(self, moments: Moments) -> None:
        """Say if moments are not what :meth:`describe` returns."""
        ...

    def rows(self, moments: Moments) -> Moments:
        """Return the moments that the rows of the target belong to."""
        ...

    def aim(
        self, moments: Moments, weights: Weights, rounds: int | None, pooled: Pooled | None = None
    ) -> Aim:
        """Return the target of every row, among themselves.

        ``pooled`` holds all batches, where ``moments`` are only some of them.
        """
        ...

    def join(
        self,
        moments: Moments,
        pooled: Pooled,
        consensus: Any,
        weights: Weights,
        rounds: int | None,
    ) -> Target:
        """Return the target of every row of new batches, to a reference that stays as it is."""
        ...
