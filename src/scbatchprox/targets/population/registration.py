"""Registration of batches to a consensus: all batches together, or one batch to a fixed consensus."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...kernels.arrays import Floats, Ints
from ...kernels.threads import one_numpy_thread, parallel_map
from .batches import Batches, spacing
from .consensus import Strengths
from .run import Run
from .settings import PopulationSettings
from .start import starting_shifts
from .sums import Sums

__all__ = ["Consensus", "Matches", "matches", "register", "register_to"]

#: With at least this many populations, seedings run on threads. Below, Python's global lock prevents a gain.
MANY_POPULATIONS = 1500


@dataclass(frozen=True, eq=False)
class Consensus:
    """The centres that batches were registered to: all that a later batch needs of them.

    Attributes
    ----------
    settings
        Of the registration.
    origin
        (d,) the mean of all cells, which positions are relative to.
    unit
        Squared spacing of populations, the unit of squared lengths.
    mass, total
        (S, K) and (S, K, d) for each of S seedings: the weight of all populations at each centre, and
        their weighted positions. Centres without weight are padding.
    one_each
        Whether every batch was one population. Such batches are fitted by their means only.
    """

    settings: PopulationSettings
    origin: Floats
    unit: float
    mass: Floats
    total: Floats
    one_each: bool = False

    @property
    def sums(self) -> Sums:
        """The centres."""
        return Sums(self.mass, self.total)

    @property
    def first(self) -> Sums:
        """The centres of the first seeding."""
        return Sums(self.mass[:1], self.total[:1])


class Matches(NamedTuple):
    """The centres near displaced populations."""

    distance: Floats  # (P,) to the nearest centre that other batches have, in units of the spacing
    centre: Ints  # (P,) the nearest centre, of the first seeding
    fit: Floats  # (B,) how well each batch fits the others without its displacement, 0 to 2


def register(
    X: Floats,
    n: Ints,
    start: Ints,
    variance: float,
    settings: PopulationSettings,
    strengths: Strengths,
    rounds: int,
    seed: int = 0,
) -> tuple[Floats, Consensus]:
    """Register batches to each other: displacements (P, d) of their populations, and the consensus.

    Parameters
    ----------
    X, n
        (P, d) means and (P,) cells of populations.
    start
        (B + 1,) the populations of batch b are ``start[b]`` to ``start[b + 1]``.
    variance
        Variance within populations, over all coordinates.
    settings, strengths, rounds, seed
        Constants, weights of the terms, rounds with a smooth part, seed of the centres.
    """
    origin = np.average(X, axis=0, weights=n)
    unit = spacing(X, n, start, variance, settings)
    batches = Batches(X - origin, n, start, unit, settings)
    seeds = np.arange(seed, seed + settings.seedings)
    parts = np.split(seeds, len(seeds) if len(X) >= MANY_POPULATIONS else 1)
    with one_numpy_thread():
        begin = starting_shifts(batches, strengths, seed)
        runs = parallel_map(
            lambda part: Run(batches, begin, strengths, part).iterate(rounds), parts
        )
    displacement = np.mean(np.concatenate([run.displacement for run in runs]), axis=0)
    K = max(run.all_sums.mass.shape[1] for run in runs)
    found = [run.all_sums.padded(K) for run in runs]
    mass, total = (np.concatenate(part) for part in zip(*found, strict=True))
    one_each = len(X) == len(start) - 1
    return displacement, Consensus(settings, origin, unit, mass, total, one_each)


def register_to(
    consensus: Consensus, X: Floats, n: Ints, strengths: Strengths, rounds: int
) -> Floats:
    """Displacements (P, d) of one batch with populations at ``X``, to a fixed consensus."""
    edges = np.array([0, len(X)])
    batches = Batches(X - consensus.origin, n, edges, consensus.unit, consensus.settings)
    with one_numpy_thread():
        begin = starting_shifts(batches, strengths, 0, consensus.first)
        seeds = np.arange(len(consensus.mass))
        run = Run(batches, begin, strengths, seeds, consensus.sums).iterate(rounds)
    return np.asarray(run.displacement.mean(0))


def matches(
    consensus: Consensus, X: Floats, n: Ints, start: Ints, displacement: Floats, inside: np.ndarray
) -> Matches:
    """The centres of a consensus near populations that have moved by ``displacement``.

    Batches that are ``inside`` (B,) contributed to the consensus. Their sums are subtracted before they are
    compared with it.
    """
    batches = Batches(X - consensus.origin, n, start, consensus.unit, consensus.settings)
    first = consensus.first
    all_sums = Sums(first.mass[:, None], first.total[:, None])
    distance, centre, fits = [], [], []
    with one_numpy_thread():
        for rows, members, stack in zip(batches.rows, batches.members, batches.stacks, strict=True):
            v = displacement[rows][None]
            own = stack.assigned(v, first, consensus.settings.temperature).own
            part = inside[members].astype(float)[:, None]
            rest = first.without(Sums(own.mass * part, own.total * part[..., None]))
            distance.append(stack.nearest(v, rest)[0][0])
            centre.append(stack.nearest(v, all_sums)[1][0])
            fits.append(stack.fit(rest)[0])
    return Matches(
        batches.by_population(distance), batches.by_population(centre), batches.by_batch(fits)
    )
