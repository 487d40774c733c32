"""Rounds of sums over sites: what a site gives, what it receives, and all sites in one process."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import TypeVar

from ..errors import BadValue
from ..kernels.arrays import Floats
from .fixed import Fixed, Limbs

__all__ = ["Addends", "Kind", "Totals", "in_process"]

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


#: A kind of sum: yields what a site adds in each round, is sent the sums, and returns its result.
Kind = Generator[Addends, Totals, T]


def in_process(sites: Sequence[Kind[T]]) -> list[T]:
    """Run all sites together in this process, without masks; return the result of each."""
    results: dict[int, T] = {}
    answers: list[Totals | None] = [None] * len(sites)
    while True:
        given: list[Addends] = []
        for i, site in enumerate(sites):
            try:
                answer = answers[i]
                given.append(next(site) if answer is None else site.send(answer))
            except StopIteration as stop:
                results[i] = stop.value
        if len(results) == len(sites):
            return [results[i] for i in range(len(sites))]
        if results or len({(part.fixed, len(part.values)) for part in given}) > 1:
            raise BadValue("Expected all sites in the same round, found some in another.")
        fixed = given[0].fixed
        total = Totals(fixed, reduce(fixed.added, (part.limbs for part in given)))
        answers = [total] * len(sites)
