"""Which part of each batch has partners in other batches, according to the consensus of a fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core.exchange import alone
from ..core.fit import Fit
from ..core.moments import Moments
from ..core.problem import Weights
from ..core.target import Cells
from ..kernels.arrays import Floats, Ints
from ..targets.population.registration import Consensus, matches
from ..targets.population.target import PopulationTarget
from .limits import MIN_MATCHED, PARTNER_DISTANCE

__all__ = ["Evidence", "evidence", "evidence_of"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """Registered populations and their partners.

    Attributes
    ----------
    populations
        Moments of the populations of all batches.
    moved
        (R, d) means of the populations after registration.
    centre
        (R,) index of the nearest centre, among those of the consensus' first seeding.
    matched
        (B,) part of the cells of a batch whose population has a partner: a centre of other batches nearby.
    by_mean
        (B,) whether a batch lay apart from all others and was aligned with them by its mean.
    consensus
        The consensus that the populations were registered to.
    """

    populations: Moments
    moved: Floats
    centre: Ints
    matched: Floats
    by_mean: np.ndarray
    consensus: Consensus

    @property
    def partners(self) -> Floats:
        """(B,) ``matched``, but NaN for a batch that was aligned by its mean.

        It was moved onto the others first, so that populations lie near its own now says nothing.
        """
        return np.where(self.by_mean, np.nan, self.matched)


def evidence(fit: Fit, some: Cells, seed: int = 0) -> Evidence:
    """Return the evidence on the batches of a fit.

    A fit of the moment target has no consensus. Then populations are found in ``some`` of its cells, and
    registered with one seeding only, which is quick.
    """
    if fit.consensus is not None and fit.method.strength > 0:
        return evidence_of(fit, fit.moments, fit.reference.batches)
    rule = PopulationTarget(seed=seed)
    rule = replace(rule, settings=replace(rule.settings, seedings=1))
    populations = rule.describe(some) if fit.moments.anchors is None else fit.moments
    found = alone(rule.registered(populations, Weights(), rule.default_rounds))
    return _evidence(populations, *found)


def evidence_of(fit: Fit, populations: Moments, inside: Any) -> Evidence:
    """Return the evidence on batches that an adapter knows; ``inside`` are those in its consensus."""
    adapter = fit.adapter
    rows = adapter.rows_of(populations.batches)
    if adapter.one_each:  # one row for all populations of a batch
        rows = rows[populations.batch]
    scale, shift, mean = adapter.scale[rows], adapter.shift[rows], populations.mean
    displacement = ((scale - 1.0) * mean + shift) / fit.method.strength
    return _evidence(populations, displacement, fit.consensus, np.isin(populations.batches, inside))


def _evidence(
    populations: Moments,
    displacement: Floats,
    consensus: Consensus,
    inside: np.ndarray | None = None,
) -> Evidence:
    mean, n, start = populations.mean, populations.n, populations.start
    inside = np.ones(populations.batches.size, bool) if inside is None else inside
    found = matches(consensus, mean, n, start, displacement, inside)
    near = found.distance <= PARTNER_DISTANCE
    matched = np.add.reduceat(near * n, start[:-1]) / np.add.reduceat(n, start[:-1])
    if populations.batches.size < 2 and bool(inside.all()):
        matched = np.full(matched.shape, np.nan)  # there is no other batch to match
    by_mean = (found.fit < consensus.settings.lonely) & (matched >= MIN_MATCHED)
    return Evidence(populations, mean + displacement, found.centre, matched, by_mean, consensus)
