"""Every constant of the population target, with its meaning; saved with each model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["PopulationSettings"]


@dataclass(frozen=True)
class PopulationSettings:
    """How populations are found and registered, apart from the weights that users choose.

    ``docs/results/sensitivity.md`` shows what half and double of each does. A model keeps the settings that
    it was fitted with, so that batches which arrive later are treated as the first ones were.

    Attributes
    ----------
    cells
        Cells of a batch for each of its populations.
    small, enough
        A small batch has populations of fewer cells, down to ``small``, until it has ``enough`` of them:
        types that share a population cannot be told apart.
    fewest, most
        Populations of a batch at least and at most.
    sample, find
        Cells that are looked at for each population, and rounds of the k-means that finds them.
    bandwidth
        How far a cell sees the populations of its batch, in units of the variance within these.
    wide, tight
        The squared spacing of populations counts as at most ``wide`` times the variance within them, and as
        at least the part ``tight`` of itself: populations may be points, or one for each type.
    centres, few_centres
        Centres of the consensus: this part of the populations that a batch has on average, and at least so
        many; then the next power of two.
    seedings
        Sets of centres. Each has seeds of its own, and displacements are averaged over them: what only one
        of them sees is mostly chance.
    coarse
        Temperatures of the first rounds, in which batches only shift.
    rounds
        Rounds after these, in which the field has a smooth part too.
    temperature
        How sharply the nearest is told from the next, in units of the squared spacing.
    renew, steps
        Rounds after which centres are seeded anew, and steps of k-means after each seeding.
    power
        How fast a pull fades with its length: its weight is (1 + squared length) to minus this.
    length
        Squared length scale of the smooth part, in units of the squared spacing.
    prior, damping
        Weights of the identity and of the proximal term against the evidence, when the paper's weights have
        their default values.
    apart, neighbours
        Part of the squared distance between neighbours in a batch that its field must leave, and how many
        neighbours of each population are looked at for that.
    better
        A batch starts from the common mean, not from where it is, only if it fits this many times better.
    lonely
        A batch whose fit (0 to 2) is worse than this where it is lies apart from all others.
    mirrors, clear, good
        Such a batch goes by its mean only if it then fits better than so many mirror images of itself, and
        ``clear`` times better unless its fit is ``good``.
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

    def to_json(self) -> dict[str, Any]:
        """The settings in types that JSON has."""
        return {**asdict(self), "coarse": list(self.coarse)}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> PopulationSettings:
        """Settings from what :meth:`to_json` made of them."""
        return cls(**{**stored, "coarse": tuple(stored["coarse"])})
