r"""Moments become a Target: where each batch should go, as an affine map per batch.

The paper's target for cell :math:`i` of batch :math:`b` is
:math:`t_i = \hat\mu + r_b (z_i - \hat\mu_b)`, affine in :math:`z_i`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ._types import Floats, Ints
from ._validate import check_number
from .anchors import Anchors
from .errors import BadType, BadValue
from .labels import Labels
from .moments import Moments
from .populations import Populations
from .sampling import Sample

__all__ = ["Aim", "Cells", "MomentTarget", "Summary", "Target", "TargetRule"]

#: What is known of cells: of whole batches, or of their populations.
Summary = Moments | Populations


@dataclass(frozen=True, eq=False)
class Target:
    r"""An affine map per batch, written about the batch's mean: ``t = center + scale * (z - mean)``.

    Keeping :math:`\hat\mu_b` and its image apart, rather than their difference in ``shift``, is what
    lets the solvers work on embeddings far from the origin without cancellation.

    Attributes
    ----------
    mean
        (B, d) where each batch's mean is, :math:`\hat\mu_b`.
    center
        (B, d) where it should go; :math:`\hat\mu` in every row for the paper's target.
    scale
        (B, d) :math:`r_b`.
    settled
        (B,) rows that have been held back already, since their target is where a run has ended. A fit
        that goes all the way takes them there and does not hold them back again. ``None`` for no row.
    """

    mean: Floats
    center: Floats
    scale: Floats
    settled: np.ndarray | None = None

    @property
    def shift(self) -> Floats:
        """(B, d) :math:`c_b`, so that ``t = scale * z + shift``."""
        return self.center - self.scale * self.mean


class Cells(Protocol):
    """Labelled cells, wherever they are: in memory, in a Dask array, in a file."""

    @property
    def labels(self) -> Labels:
        """The batch of each."""
        ...

    def sample(self, most: Ints, seed: int = 0) -> Sample:
        """Up to ``most`` (B,) of each batch, chosen by their content; they must be finite."""
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

    #: Whether adapter rows belong to populations rather than to whole batches.
    @property
    def conditioned(self) -> bool: ...  # noqa: D102

    #: Whether weights and rounds are used to find the target; otherwise a solver uses them to get there.
    @property
    def registers(self) -> bool: ...  # noqa: D102

    #: Rounds to run unless someone says otherwise; ``None`` is the fixed point.
    @property
    def default_rounds(self) -> int | None: ...  # noqa: D102

    def describe(
        self, cells: Cells, known: Summary | None = None, population: Labels | None = None
    ) -> Any:
        """Look at cells; those of batches in ``known`` are described as they were then."""
        ...

    def rows(self, summary: Any) -> Moments:
        """Return the moments that the rows of the target belong to."""
        ...

    def aim(self, summary: Any, weights: Any, rounds: int | None) -> Aim:
        """Return the target of every row, among themselves."""
        ...

    def join(
        self, summary: Any, reference: Any, consensus: Any, weights: Any, rounds: int | None
    ) -> Target:
        """Return the target of every row of newcomers, to a reference that stays as it is."""
        ...


@dataclass(frozen=True)
class MomentTarget:
    r"""The paper's target: every batch to the mean, and the spread, of all cells.

    :math:`r_b = (\hat s + \epsilon) / (\hat s_b + \epsilon)` with variance matching, else 1.
    """

    variance_matching: bool = True
    eps: float = 1e-6
    conditioned: ClassVar[bool] = False
    registers: ClassVar[bool] = False
    default_rounds: ClassVar[int | None] = 3

    def __post_init__(self) -> None:
        check_number("eps", self.eps)
        if not isinstance(self.variance_matching, bool | np.bool_):
            raise BadType(
                f"Expected variance_matching to be True or False, found {self.variance_matching!r}."
            )

    def describe(
        self, cells: Cells, known: Summary | None = None, population: Labels | None = None
    ) -> Moments:
        """Look at cells: this target needs the moments of batches."""
        if population is not None:
            raise BadValue(
                "Expected populations only with target='population', found target='moment'."
            )
        return cells.moments()

    def rows(self, summary: Moments) -> Moments:
        """Return the moments that the rows of the target belong to: whole batches."""
        return summary

    def __call__(self, summary: Moments, reference: Moments | None = None) -> Target:
        """Return the target of every batch, among themselves or to a reference."""
        pooled = (summary if reference is None else reference).pooled()
        center = np.broadcast_to(pooled.mean, summary.mean.shape)
        scale = np.ones_like(summary.mean)
        if self.variance_matching:
            wide, own = pooled.std + self.eps, summary.std + self.eps
            # eps = 0 leaves a constant coordinate without a scale that would match: keep it as it is.
            np.divide(wide, own, out=scale, where=own > 0)
        return Target(summary.mean, center, scale)

    def aim(self, summary: Moments, weights: Any = None, rounds: int | None = None) -> Aim:
        """Return the target of every batch, among themselves; weights and rounds are the solver's."""
        return Aim(self(summary), None)

    def join(
        self,
        summary: Moments,
        reference: Moments,
        consensus: Any = None,
        weights: Any = None,
        rounds: int | None = None,
    ) -> Target:
        """Return the target of every batch, to a reference."""
        return self(summary, reference)
