"""The trace of a registration: two numbers that are added to the sums that batches exchange anyway."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.evidence import Trace
from ...core.exchange import Rounds
from ...kernels.arrays import Floats
from .batches import Batches
from .run import Run

__all__ = ["mean_displacement", "mean_matched", "traced"]


def traced(together: Rounds[Any], runs: list[Run], batches: Batches) -> Rounds[Trace]:
    """Run rounds, and return their trace, in the unit of the batches; ``runs`` hold the result.

    The numbers of a round travel with the sums of the next one, the last with the final sums.
    """
    share = [
        stack.share * part[:, None]
        for stack, part in zip(batches.stacks, batches.in_stacks(batches.share), strict=True)
    ]
    weight = batches.by_population(share)
    numbers: dict[int, Floats] = {}
    own = next(together)
    while True:
        squares = (mean_displacement(runs) ** 2).sum(1)
        here = np.array([mean_matched(runs).sum() / batches.everyone.n_batches, weight @ squares])
        totals = yield np.concatenate([own, here])
        numbers[runs[0].done] = totals[-here.size :]
        try:
            own = together.send(totals[: -here.size])
        except StopIteration:
            break
    matched, squared = np.array([numbers[done] for done in sorted(numbers)]).T
    matched[0] = np.nan  # nothing has met yet
    return Trace.of(matched, np.sqrt(squared))


def mean_displacement(runs: list[Run]) -> Floats:
    """(P, d) displacements of populations so far, mean over seedings."""
    return np.asarray(np.mean(np.concatenate([run.displacement for run in runs]), axis=0))


def mean_matched(runs: list[Run]) -> Floats:
    """(B,) part of each batch that met others in the last round, mean over seedings."""
    return np.asarray(np.mean(np.concatenate([run.matched for run in runs], axis=1), axis=1))
