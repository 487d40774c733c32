"""What the consensus says of batches: how much of each has partners elsewhere. For diagnoses and advice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..api.estimator import BatchProx
from ..cells.dask import LabelledCells
from ..core.adapter import Adapter
from ..core.populations import Populations
from ..core.problem import Weights
from ..kernels.arrays import Floats, Ints
from ..targets.population.registration import Consensus, matches
from ..targets.population.target import PopulationTarget

__all__ = ["ALONE", "Evidence", "evidence", "evidence_of"]

#: A population further than this from all centres of other batches, in units of the spacing, has no partner.
REACH = 1.5
#: A batch with partners for less than this part of its cells is alone: matching says nothing of it.
ALONE = 0.25


@dataclass(frozen=True, eq=False)
class Evidence:
    """Populations where they have been registered, and what they find there.

    Attributes
    ----------
    populations
        Of all batches.
    moved
        (P, d) where their means are after registration.
    centre
        (P,) the nearest centre of the consensus' first seeding.
    partnered
        (B,) the part of a batch's cells whose population has a partner: a centre of other batches nearby.
    by_mean
        (B,) whether a batch lay apart from all others and was brought to them by its mean.
    consensus
        What they were registered to.
    """

    populations: Populations
    moved: Floats
    centre: Ints
    partnered: Floats
    by_mean: np.ndarray
    consensus: Consensus


def evidence(model: BatchProx, some: LabelledCells, seed: int = 0) -> Evidence:
    """What the consensus of a fitted model says of its batches.

    A model without one (the moment target) has populations found in ``some`` of its cells, and registered
    quickly: with one seeding.
    """
    summary, consensus = model.seen_.moments, model.seen_.consensus
    if consensus is not None and model.strength > 0:
        return evidence_of(model, summary, model.seen_.reference.batches)
    rule = PopulationTarget(seed=seed)
    rule = replace(rule, settings=replace(rule.settings, seedings=1))
    populations = summary if isinstance(summary, Populations) else rule.describe(some)
    return _of(populations, *rule.registered(populations, Weights(), rule.default_rounds))


def evidence_of(model: BatchProx, summary: Populations, inside: Any) -> Evidence:
    """What the consensus of a model says of batches that its adapter knows; ``inside`` had a part in it."""
    adapter, batch = model.adapter_, summary.anchors.batch
    at = np.flatnonzero(np.isin(adapter.batches, summary.batches))
    # Rows of populations, or of the batches that they are in.
    rows = at[batch] if isinstance(adapter, Adapter) else np.isin(adapter.anchors.batch, at)
    scale, shift = adapter.scale[rows], adapter.shift[rows]
    mean = summary.rows.mean
    move = ((scale - 1.0) * mean + shift) / model.strength
    return _of(summary, move, model.seen_.consensus, np.isin(summary.batches, inside))


def _of(
    populations: Populations, move: Floats, consensus: Consensus, inside: np.ndarray | None = None
) -> Evidence:
    rows, start = populations.rows, populations.anchors.start
    inside = np.ones(populations.batches.size, bool) if inside is None else inside
    found = matches(consensus, rows.mean, rows.n, start, move, inside)
    near = found.distance <= REACH
    n = np.add.reduceat(rows.n, start[:-1])
    partnered = np.add.reduceat(near * rows.n, start[:-1]) / n
    by_mean = (found.fit < consensus.settings.lonely) & (partnered >= ALONE)
    return Evidence(populations, rows.mean + move, found.centre, partnered, by_mean, consensus)
