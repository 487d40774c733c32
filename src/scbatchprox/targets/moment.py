"""The paper's target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..core.checks import check_number
from ..core.labels import Labels
from ..core.moments import Moments
from ..errors import BadType, BadValue
from .base import Aim, Cells, Summary, Target

__all__ = ["MomentTarget"]


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
