"""What the consensus says of batches: how much of each has partners elsewhere. For diagnoses and advice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core.fit import Fit
from ..core.moments import Moments
from ..core.problem import Weights
from ..core.target import Cells
from ..kernels.arrays import Floats, Ints
from ..targets.population.registration import Consensus, matches
from ..targets.population.target import PopulationTarget

__all__ = ["MATCHED", "Evidence", "evidence", "evidence_of"]

#: A population further than this from all centres of other batches, in units of the spacing, has no partner.
REACH = 1.5
#: A batch with partners for less than this part of its cells is unmatched: nothing is known of it.
MATCHED = 0.25


@dataclass(frozen=True, eq=False)
class Evidence:
    """Populations where they have been registered, and what they find there.

    Attributes
    ----------
    populations
        Moments of the populations of all batches.
    moved
        (R, d) where their means are after registration.
    centre
        (R,) the nearest centre of the consensus' first seeding.
    matched
        (B,) the part of a batch's cells whose population has a partner: a centre of other batches nearby.
    by_mean
        (B,) whether a batch lay apart from all others and was brought to them by its mean.
    consensus
        What they were registered to.
    """

    populations: Moments
    moved: Floats
    centre: Ints
    matched: Floats
    by_mean: np.ndarray
    consensus: Consensus


def evidence(fit: Fit, some: Cells, seed: int = 0) -> Evidence:
    """What the consensus of a fit says of its batches.

    A fit without one (the moment target) has populations found in ``some`` of its cells, and registered
    quickly: with one seeding.
    """
    if fit.consensus is not None and fit.method.strength > 0:
        return evidence_of(fit, fit.moments, fit.reference.batches)
    rule = PopulationTarget(seed=seed)
    rule = replace(rule, settings=replace(rule.settings, seedings=1))
    populations = rule.describe(some) if fit.moments.anchors is None else fit.moments
    return _of(populations, *rule.registered(populations, Weights(), rule.default_rounds))


def evidence_of(fit: Fit, populations: Moments, inside: Any) -> Evidence:
    """What the consensus of a fit says of batches that its adapter knows; ``inside`` had a part in it."""
    adapter = fit.adapter
    rows = adapter.rows_of(populations.batches)
    if adapter.one_each:  # one row for all populations of a batch
        rows = rows[populations.batch]
    scale, shift, mean = adapter.scale[rows], adapter.shift[rows], populations.mean
    displacement = ((scale - 1.0) * mean + shift) / fit.method.strength
    return _of(populations, displacement, fit.consensus, np.isin(populations.batches, inside))


def _of(
    populations: Moments,
    displacement: Floats,
    consensus: Consensus,
    inside: np.ndarray | None = None,
) -> Evidence:
    mean, n, start = populations.mean, populations.n, populations.start
    inside = np.ones(populations.batches.size, bool) if inside is None else inside
    found = matches(consensus, mean, n, start, displacement, inside)
    near = found.distance <= REACH
    matched = np.add.reduceat(near * n, start[:-1]) / np.add.reduceat(n, start[:-1])
    by_mean = (found.fit < consensus.settings.lonely) & (matched >= MATCHED)
    return Evidence(populations, mean + displacement, found.centre, matched, by_mean, consensus)
