r"""The population target at several sites: every sum of the registration is a round.

A site finds the populations of its own batches, with the settings of a fit in one place. Those with few cells
are dissolved. What is added over sites:

- to seed centres, cells, positions and their squares, :math:`1 + d + d^2` numbers; then for each region of
  space, and twice for each of K centres, the cells of its populations and the sum of their positions;
- in a round, for each centre, the weight of the populations there and their weighted positions, once for
  weights and once for the nearest centre, :math:`2 K (d + 1)` numbers, and four for the trace;
- to look for evidence, the cells at each centre, the shifts of batches, and squares within regions and
  within batches, :math:`K + 1 + d + 2 d^2` numbers, then up to d sums of third powers;
- a few scalars, by which all sites decide the same.

A region or centre with one population shows its mean to all who can read the sums: see
:mod:`scbatchprox.federated.disclosure`.

Positions are relative to the mean of all cells, in units of about the spread within populations, or of that
of all cells if it is a billion times larger. The largest numbers are sums of squares over cells: up to 1e18
times the number of cells and coordinates. A site's numbers are exact to :math:`2^{-80}`, and larger ones than
:math:`2^{95}`, about 4e28, are an error.
"""

from __future__ import annotations

from ...core.exchange import Exchange
from ...kernels.arrays import Floats
from ..fixed import Fixed
from ..rounds import Addends, AddUp

__all__ = ["ROUND", "exchange_by"]

#: The format of the sums of a registration.
ROUND = Fixed(192, 80)


def exchange_by(add_up: AddUp) -> Exchange:
    """An exchange of sums that are added as fixed-point numbers: to the bit the same at all sites."""

    def exchange(own: Floats) -> Floats:
        return add_up(Addends(own, ROUND)).floats()

    return exchange
