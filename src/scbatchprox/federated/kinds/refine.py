"""A federated fit: the rows of a site's own batches, equal to those of a fit to the cells of all sites."""

from __future__ import annotations

from ...api.estimator import BatchProx
from ...core.moments import Moments
from ...targets.population.dissolve import dissolved
from ..plan import MIN_CELLS
from ..rounds import AddUp
from .moments import pooled_moments
from .population import exchange_by

__all__ = ["refine"]


def refine(
    own: Moments, model: BatchProx, add_up: AddUp, *, min_cells: int = MIN_CELLS
) -> BatchProx:
    """Fit a model to the batches of this site, given sums over those of all sites.

    Populations with fewer than ``min_cells`` cells are dissolved first.
    """
    own = dissolved(own, min_cells)
    return model.fit_pooled(own, pooled_moments(own, add_up), exchange_by(add_up))
