"""A federated fit: the rows of a site's own batches, equal to those of a fit to the cells of all sites."""

from __future__ import annotations

from ...api.estimator import BatchProx
from ...core.moments import Moments
from ...targets.population.dissolve import dissolved
from ..plan import MIN_CELLS
from ..rounds import Kind
from .moments import pooled_moments
from .population import in_addends

__all__ = ["refine"]


def refine(own: Moments, model: BatchProx, min_cells: int = MIN_CELLS) -> Kind[BatchProx]:
    """Fit a model to the batches of this site, given sums over those of all sites.

    Populations with fewer than ``min_cells`` cells are dissolved first.
    """
    own = dissolved(own, min_cells)
    pooled = yield from pooled_moments(own)
    return (yield from in_addends(model.fit_in_rounds(own, pooled)))
