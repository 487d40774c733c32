"""All constants of the population target and their meaning; saved with each model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any

from ...core.shown import Changed
from ...errors import BadValue

__all__ = ["FEDERATED", "PopulationSettings"]

#: Settings that are divided by, or without which nothing is found.
_POSITIVE = frozenset(
    ["cells", "small", "most", "seedings", "coarse", "temperature", "renew", "length"]
)


@dataclass(frozen=True, repr=False)
class PopulationSettings(Changed):
    """How populations are found and registered, apart from the weights that users choose.

    ``docs/results/sensitivity.md`` shows the effect of halving and doubling each setting. A model keeps the
    settings that it was fitted with, so that later batches are treated like the first ones.

    Attributes
    ----------
    cells
        Cells per population.
    small, enough
        Small batches have fewer cells per population, but at least ``small``, until they have ``enough``
        populations. Cell types in the same population cannot be distinguished.
    fewest, most
        Smallest and largest number of populations in a batch.
    sample, find
        Cells per population in the sample that k-means clusters, and its rounds.
    bandwidth
        Bandwidth with which a cell mixes the displacements of the populations of its batch, in units of the
        variance within populations.
    wide, tight
        Bounds of the squared spacing of populations: at most ``wide`` times the variance within populations,
        but at least ``tight`` times its actual value. So it is also useful if all cells of a population
        are equal, or if each cell type is one population.
    centres, few_centres
        Number of centres of the consensus: ``centres`` times the mean number of populations in a batch, but
        at least ``few_centres``, rounded up to a power of two.
    seedings
        Number of independent sets of centres. Displacements are averages over them, which reduces chance
        effects of a single set.
    coarse
        Temperatures of the first rounds, in which batches only shift.
    rounds
        Number of the following rounds, in which the field also has a smooth part.
    temperature
        Temperature of the softmax over squared distances in these rounds, in units of the squared spacing.
    renew, steps
        Rounds between two seedings of the centres, and steps of k-means after each seeding.
    recentre
        Whether the planes that seed the centres go through the mean of all populations, which takes one more
        sum. If not, they go through the mean of all cells before the registration.
    power
        Decrease of a pull with its length: its weight is (1 + squared length) to the power of minus this.
    length
        Squared length scale of the smooth part, in units of the squared spacing.
    prior, damping
        Weights of the identity term and of the proximal term relative to the evidence, for the default
        values of the paper's weights.
    apart, neighbours
        Part of the squared distance between neighbours in a batch that the field must preserve, and the
        number of neighbours of each population.
    better
        A batch starts from the common mean instead of its own position only if its fit is this many times
        better.
    lonely
        A batch with a fit (0 to 2) below this at its own position is distant from all others.
    mirrors, clear, good
        A distant batch starts from the common mean only if its fit there is better than that of this many
        mirror images of itself, and ``clear`` times better unless it is above ``good``.

    Examples
    --------
    >>> from scbatchprox import PopulationSettings, PopulationTarget
    >>> target = PopulationTarget(settings=PopulationSettings(rounds=5))
    >>> target.default_rounds
    5
    """

    cells: int = 10
    small: int = 5
    enough: int = 20
    fewest: int = 2
    most: int = 60
    sample: int = 50
    find: int = 8
    bandwidth: float = 0.3
    wide: float = 1.5
    tight: float = 0.0625
    centres: float = 0.7
    few_centres: int = 64
    seedings: int = 5
    coarse: tuple[float, ...] = (1.0, 0.6, 0.3)
    rounds: int = 10
    temperature: float = 0.3
    renew: int = 5
    steps: int = 3
    recentre: bool = True
    power: float = 2.0
    length: float = 4.0
    prior: float = 0.2
    damping: float = 0.05
    apart: float = 0.85
    neighbours: int = 3
    better: float = 2.0
    lonely: float = 0.1
    mirrors: int = 100
    clear: float = 1.5
    good: float = 0.3

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "bool":
                good = isinstance(value, bool)
            else:
                kind = Integral if field.type == "int" else Real
                several = value if field.name == "coarse" else (value,)
                good = isinstance(several, tuple) and all(
                    isinstance(number, kind)
                    and 0 <= float(number) < math.inf
                    and (float(number) > 0 or field.name not in _POSITIVE)
                    for number in several
                )
            if not good:
                raise BadValue(
                    f"Expected the setting {field.name} to be a number{' > 0' * (field.name in _POSITIVE)} "
                    f"as in PopulationSettings(), found {value!r}."
                )

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON types."""
        return {**asdict(self), "coarse": list(self.coarse)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> PopulationSettings:
        """Settings from the result of :meth:`to_json`."""
        return cls(**{**stored, "coarse": tuple(stored["coarse"])})


#: For sites that exchange sums: few rounds, and populations of 20 cells or more. Fits of few populations are
#: less certain, so a start from the common mean needs more evidence. The costs of these settings are in
#: ``docs/results/federated_rounds.md``.
FEDERATED = PopulationSettings(
    cells=20,
    small=20,
    renew=999,
    recentre=False,
    steps=0,
    rounds=5,
    coarse=(1.0, 0.4),
    better=4.0,
)
