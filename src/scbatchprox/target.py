r"""Moments become a Target: where each batch should go, as an affine map per batch.

The paper's target for cell :math:`i` of batch :math:`b` is
:math:`t_i = \hat\mu + r_b (z_i - \hat\mu_b)`, affine in :math:`z_i`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ._types import Floats
from ._validate import check_number
from .errors import BadType
from .moments import Moments

__all__ = ["MomentTarget", "Target", "TargetRule"]


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
    """

    mean: Floats
    center: Floats
    scale: Floats

    @property
    def shift(self) -> Floats:
        """(B, d) :math:`c_b`, so that ``t = scale * z + shift``."""
        return self.center - self.scale * self.mean


class TargetRule(Protocol):
    """Anything that turns moments into a target."""

    def __call__(self, moments: Moments, reference: Moments | None = None) -> Target:
        """Return the target of every batch in ``moments``, among themselves or to a reference."""
        ...


@dataclass(frozen=True)
class MomentTarget:
    r"""The paper's target: every batch to the mean, and the spread, of all cells.

    :math:`r_b = (\hat s + \epsilon) / (\hat s_b + \epsilon)` with variance matching, else 1.
    """

    variance_matching: bool = True
    eps: float = 1e-6

    def __post_init__(self) -> None:
        check_number("eps", self.eps)
        if not isinstance(self.variance_matching, bool | np.bool_):
            raise BadType(
                f"Expected variance_matching to be True or False, found {self.variance_matching!r}."
            )

    def __call__(self, moments: Moments, reference: Moments | None = None) -> Target:
        """Return the target of every batch in ``moments``, among themselves or to a reference."""
        pooled = (moments if reference is None else reference).pooled()
        center = np.broadcast_to(pooled.mean, moments.mean.shape)
        scale = np.ones_like(moments.mean)
        if self.variance_matching:
            wide, own = pooled.std + self.eps, moments.std + self.eps
            # eps = 0 leaves a constant coordinate without a scale that would match: keep it as it is.
            np.divide(wide, own, out=scale, where=own > 0)
        return Target(moments.mean, center, scale)
