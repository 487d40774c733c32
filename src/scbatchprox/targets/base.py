r"""Moments become a Target: where each batch should go, as an affine map per batch.

The paper's target for cell :math:`i` of batch :math:`b` is
:math:`t_i = \hat\mu + r_b (z_i - \hat\mu_b)`, affine in :math:`z_i`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..core.anchors import Anchors
from ..core.labels import Labels
from ..core.moments import Moments
from ..core.populations import Populations
from ..core.sampling import Sample
from ..kernels.arrays import Floats, Ints

__all__ = ["Aim", "Cells", "Summary", "Target", "TargetRule"]

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
