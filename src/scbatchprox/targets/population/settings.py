"""All constants of the population target and their meaning; saved with each model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any

from ...core.shown import Changed
from ...errors import BadValue

__all__ = ["PopulationSettings"]


@dataclass(frozen=True, repr=False)
class PopulationSettings(Changed):
    """How populations are found, matched and judged, apart from the weights that users choose.

    The page of results on sensitivity shows the effect of halving and doubling each setting. A model keeps
    the settings that it was fitted with, so that later batches are treated like the first ones.

    Attributes
    ----------
    cells, most
        Cells per population, and the largest number of populations in a batch. Batches with few cells have
        populations of half as many cells, until they have a third of ``most``.
    sample
        Cells per population in the sample that k-means clusters.
    bandwidth
        Bandwidth with which a cell mixes the displacements of the populations of its batch, in units of the
        variance within populations.
    centre_cells, few_centres, most_centres
        Cells per centre of the consensus, and the smallest and largest number of centres.
    hot, temperature
        First and last temperature at which populations are matched to centres, in units of the squared
        spacing of centres. The first is so high that a batch sees more than its nearest centres.
    better
        To leave a batch where it is is the default. It keeps a shift only if it then meets the others this
        many times better, and batches start from a common mean only if this many times more of their cells
        are matched from there.
    agreement
        How many times its chance spread the agreement of the centres must be, for a shift or a smooth part.
    evidence
        What the geometry of a batch must show: its support times the square root of its support, over that
        of turned copies. Half of it is enough if the batches of a study have it on average. Less than twice
        what is enough is weak evidence: the batch moves, and its verdict says so.
    copies
        Number of turned copies of each batch.
    prior
        Weight of the identity term, and of the proximal term, relative to one fully matched population, for
        the default values of the paper's weights.

    Examples
    --------
    >>> from scbatchprox import PopulationSettings, PopulationTarget
    >>> PopulationTarget(settings=PopulationSettings(copies=16))
    PopulationTarget(settings=PopulationSettings(copies=16))
    """

    cells: int = 10
    most: int = 60
    sample: int = 50
    bandwidth: float = 0.3
    centre_cells: int = 40
    few_centres: int = 16
    most_centres: int = 64
    hot: float = 2.0
    temperature: float = 0.3
    better: float = 1.25
    agreement: float = 2.5
    evidence: float = 1.3
    copies: int = 32
    prior: float = 0.2

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            kind, may_be_zero = (
                Integral if field.type == "int" else Real,
                field.name in _MAY_BE_ZERO,
            )
            if (
                isinstance(value, bool)
                or not isinstance(value, kind)
                or not 0 <= float(value) < math.inf
                or not (may_be_zero or float(value) > 0)
            ):
                what = "whole number" if field.type == "int" else "number"
                raise BadValue(
                    f"Expected the setting {field.name} to be a {what} {'>=' if may_be_zero else '>'} 0, "
                    f"found {value!r}."
                )

    def enough(self, together: bool) -> float:
        """The evidence that a batch needs: half, if the batches have it together."""
        return self.evidence / 2.0 if together else self.evidence

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON types."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> PopulationSettings:
        """Settings from the result of :meth:`to_json`; those of version 0.2.0 had another meaning."""
        return cls() if "seedings" in stored else cls(**stored)


#: Settings that may be zero: without a limit, or without a pull to the identity.
_MAY_BE_ZERO = frozenset(["bandwidth", "better", "agreement", "evidence", "prior"])
