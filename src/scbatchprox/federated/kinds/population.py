r"""The population target at several sites: every sum of the registration is a round.

A site finds the populations of its own batches. A round adds, for each of S seedings and K centres, the
weight of the populations at the centre and their weighted positions: :math:`S K (d + 1)` numbers, and two
more for the trace. A centre with one population shows its mean to all who can read the sums: see
:mod:`scbatchprox.federated.disclosure`.

Positions are relative to the mean of all cells, in units of about the spacing of populations. A site's
numbers are exact to :math:`2^{-72}`, and must be below :math:`2^{39}`, about 5e11: for a site with 1,000
populations that is an error only if they lie 5e8 spacings from the mean of all cells.
"""

from __future__ import annotations

from typing import TypeVar

from ...core.exchange import Rounds
from ...targets.population.settings import FEDERATED
from ...targets.population.target import PopulationTarget
from ..fixed import Fixed
from ..rounds import Addends, Kind

__all__ = ["FEDERATED_TARGET", "ROUND", "in_addends"]

T = TypeVar("T")

#: The format of the sums of a registration.
ROUND = Fixed(128, 72)
#: The population target with few rounds, and with populations that a site may share sums of.
FEDERATED_TARGET = PopulationTarget(settings=FEDERATED)


def in_addends(rounds: Rounds[T]) -> Kind[T]:
    """The same computation, whose sums are added as fixed-point numbers: to the bit the same at all sites."""
    try:
        own = next(rounds)
        while True:
            totals = yield Addends(own, ROUND)
            own = rounds.send(totals.floats())
    except StopIteration as end:
        result: T = end.value
        return result
