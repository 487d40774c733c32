r"""The paper's target: :math:`t_i = \hat\mu + r_b (z_i - \hat\mu_b)` for cell i of batch b."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..core.checks import check_number
from ..core.labels import Labels
from ..core.moments import Moments, Pooled
from ..core.shown import Changed
from ..core.target import Aim, Cells, Exchange, Target, Weights, itself
from ..errors import BadType, BadValue, Parameter

__all__ = ["MomentTarget"]


@dataclass(frozen=True, repr=False)
class MomentTarget(Changed):
    r"""Moves every batch to the mean, and the standard deviation, of all cells.

    :math:`r_b = (\hat s + \epsilon) / (\hat s_b + \epsilon)` with variance matching, else 1.

    Parameters
    ----------
    variance_matching
        Match standard deviations as well as means; ``False`` is "mean-only" in the paper.
    eps
        Added to standard deviations before the division.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [2.0], [5.0], [7.0]] * 10)
    >>> batch = ["a", "a", "b", "b"] * 10
    >>> from scbatchprox import BatchProx, MomentTarget
    >>> model = BatchProx(target=MomentTarget(variance_matching=False), rounds=None, lambda_id=0)
    >>> model.fit_transform(Z, batch=batch)[:4].round(1).ravel().tolist()
    [2.5, 4.5, 2.5, 4.5]
    """

    variance_matching: bool = True
    eps: float = 1e-6
    default_rounds: ClassVar[int | None] = 3
    registers: ClassVar[bool] = False
    bandwidth: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        check_number("eps", self.eps)
        if not isinstance(self.variance_matching, bool | np.bool_):
            raise BadType(
                f"Expected variance_matching to be True or False, found {self.variance_matching!r}."
            )

    def describe(
        self, cells: Cells, known: Moments | None = None, population: Labels | None = None
    ) -> Moments:
        """Return the moments of batches, which are all that this target needs."""
        if population is not None:
            raise BadValue(
                "Expected populations only with ", Parameter("target='population'"), ", found ",
                Parameter("target='moment'"), ".",
            )  # fmt: skip
        return cells.moments()

    def check(self, moments: Moments) -> None:
        """Raise an error if moments are not those of whole batches."""
        if not moments.one_each:
            raise BadType(
                "Expected moments of whole batches for ", Parameter("target='moment'"),
                f", found {moments.n_rows} populations of {moments.batches.size} batches; `by_batch` has "
                f"those of batches.",
            )  # fmt: skip

    def rows(self, moments: Moments) -> Moments:
        """Return the moments that the rows of the target belong to: whole batches."""
        return moments.by_batch

    def __call__(self, moments: Moments, pooled: Pooled | None = None) -> Target:
        """Return the target of every batch: the moments of these batches together, or ``pooled``."""
        pooled = moments.pooled() if pooled is None else pooled
        center = np.broadcast_to(pooled.mean, moments.mean.shape)
        scale = np.ones_like(moments.mean)
        if self.variance_matching:
            wanted, own = pooled.std + self.eps, moments.std + self.eps
            # With eps = 0 no scale matches a constant coordinate: its scale is 1.
            np.divide(wanted, own, out=scale, where=own > 0)
        return Target(moments.mean, center, scale)

    def aim(
        self,
        moments: Moments,
        weights: Weights | None = None,
        rounds: int | None = None,
        pooled: Pooled | None = None,
        exchange: Exchange = itself,
    ) -> Aim:
        """Return the target of batches that are fitted together; the solver uses weights and rounds.

        ``pooled`` has all sums that it needs: nothing is exchanged.
        """
        return Aim(self(moments, pooled))

    def join(
        self,
        moments: Moments,
        pooled: Pooled,
        consensus: Any = None,
        weights: Weights | None = None,
        rounds: int | None = None,
    ) -> Aim:
        """Return the target of new batches: the moments of the reference."""
        return Aim(self(moments, pooled))
