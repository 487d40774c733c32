"""Rounds of sums over sites: what a site gives, and what it receives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from ..kernels.arrays import Floats
from .fixed import Fixed, Limbs

__all__ = ["AddUp", "Addends", "Kind", "Totals"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Addends:
    """Numbers of one site, to be added to those of all others.

    Attributes
    ----------
    values
        Doubles, which are rounded to the format, or exact numbers.
    fixed
        The format. It must not depend on the site's data.
    """

    values: Floats | Sequence[Fraction | int]
    fixed: Fixed

    @property
    def limbs(self) -> Limbs:
        """The numbers in their format."""
        return self.fixed.encoded(self.values)


@dataclass(frozen=True, eq=False)
class Totals:
    """Exact sums over all sites."""

    fixed: Fixed
    limbs: Limbs

    def floats(self) -> Floats:
        """(n,) the sums in double precision."""
        return self.fixed.floats(self.limbs)

    def fractions(self) -> list[Fraction]:
        """The exact sums."""
        return self.fixed.fractions(self.limbs)


#: Takes what a site adds in a round, and returns the sums over all sites; it may raise to stop.
AddUp = Callable[[Addends], Totals]
#: A kind of sum: a computation of a site whose rounds are added up.
Kind = Callable[[AddUp], T]
