"""Registration of batches to a consensus: all batches together, or one batch to a fixed consensus."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...core.checks import overflow_error
from ...core.evidence import Trace
from ...core.exchange import Rounds, alone, joined, on_one_blas_thread
from ...core.moments import Pooled
from ...errors import BadValue
from ...kernels.arrays import Floats, Ints
from ...kernels.threads import one_numpy_thread
from .batches import Batches, Everyone, spacing, spacing_sums
from .consensus import Strengths
from .run import Run
from .settings import PopulationSettings
from .start import starting_shifts
from .sums import Sums
from .traced import mean_displacement, mean_matched, traced

__all__ = ["Consensus", "Matches", "Registered", "matches", "register", "register_to"]


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

    def __post_init__(self) -> None:
        if not 0 < self.unit < math.inf:
            raise BadValue(f"Expected a consensus with a unit > 0, found {self.unit!r}.")
        if not all(np.isfinite(part).all() for part in (self.origin, self.mass, self.total)):
            raise BadValue("Expected a finite consensus, found NaN or infinity.")

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


class Registered(NamedTuple):
    """Batches that are registered to each other."""

    displacement: Floats  # (P, d) of populations
    consensus: Consensus
    matched: Floats  # (B,) part of each batch that met other batches in the last round
    trace: Trace


class _Frame(NamedTuple):
    """What all batches have in common: their numbers, the origin, and the unit of squared lengths."""

    everyone: Everyone
    origin: Floats
    unit: float


def register(
    X: Floats,
    n: Ints,
    start: Ints,
    within: float,
    settings: PopulationSettings,
    strengths: Strengths,
    rounds: int,
    seed: int = 0,
    pooled: Pooled | None = None,
) -> Rounds[Registered]:
    """Register batches to each other.

    Every sum over batches is yielded, so that batches at other sites can be added to it.

    Parameters
    ----------
    X, n
        (P, d) means and (P,) cells of populations.
    start
        (B + 1,) the populations of batch b are ``start[b]`` to ``start[b + 1]``.
    within
        Sum of squared deviations from the means of populations, over all coordinates.
    settings, strengths, rounds, seed
        Constants, weights of the terms, rounds with a smooth part, seed of the centres.
    pooled
        Moments of all cells, if other sites hold some of the batches.
    """
    everyone, origin, unit = yield from _frame(X, n, start, within, settings, pooled)
    # Yielded positions have the size of numbers near 1, whatever the unit of the data. A power of two
    # changes no bit of the result.
    size = _power_of_two(math.sqrt(unit))
    batches = Batches((X - origin) / size, n, start, unit / size**2, settings, everyone)
    runs, trace = yield from on_one_blas_thread(_runs(batches, strengths, rounds, seed))
    K = max(run.all_sums.mass.shape[1] for run in runs)
    found = [run.all_sums.padded(K) for run in runs]
    mass, total = (np.concatenate(part) for part in zip(*found, strict=True))
    one_each = everyone.n_populations == everyone.n_batches
    return Registered(
        size * mean_displacement(runs),
        Consensus(settings, origin, unit, mass, size * total, one_each),
        mean_matched(runs),
        replace(trace, movement=size * trace.movement),
    )


def _frame(
    X: Floats,
    n: Ints,
    start: Ints,
    within: float,
    settings: PopulationSettings,
    pooled: Pooled | None,
) -> Rounds[_Frame]:
    """The origin and unit of all batches: the first sum."""
    about, size = np.zeros(X.shape[1]), 1.0
    if pooled is not None:  # then nothing cancels, and sums have the size of numbers of cells
        about, size = pooled.mean, _power_of_two(math.sqrt(pooled.var.mean()))
    squares, cells = spacing_sums(X, n, start)
    counts = [n.sum(), len(start) - 1, len(X), cells]
    with np.errstate(over="ignore", invalid="ignore"):
        offset = ((X - about) * n[:, None]).sum(0)
    if not np.isfinite(offset).all():
        raise overflow_error()
    sums = yield np.array([*counts, squares / size**2, within / size**2, *(offset / size)])
    everyone, cells = Everyone(*sums[:3].tolist()), float(sums[3])
    if pooled is not None and everyone[:2] != (pooled.n_cells, pooled.n_batches):
        raise BadValue(
            f"Expected the populations of all batches for target='population' ({pooled.n_cells:,} cells "
            f"in {pooled.n_batches:,} batches), found {everyone.n_cells:,.0f} in {everyone.n_batches:,.0f}."
        )
    origin = about + size * sums[6:] / everyone.n_cells
    variance = size**2 * float(sums[5]) / everyone.n_cells
    unit = spacing(size**2 * float(sums[4]), cells, variance, settings)
    return _Frame(everyone, origin, unit)


def _runs(
    batches: Batches, strengths: Strengths, rounds: int, seed: int
) -> Rounds[tuple[list[Run], Trace]]:
    seeds = np.arange(seed, seed + batches.settings.seedings)
    begin = yield from starting_shifts(batches, strengths, seed)
    runs = [
        Run(batches, begin, strengths, part)
        for part in np.split(seeds, len(seeds) if batches.many else 1)
    ]
    together = joined([run.iterate(rounds) for run in runs], on_threads=batches.many)
    return runs, (yield from traced(together, runs, batches))


def _power_of_two(x: float) -> float:
    """A power of two of about this size; 1 for zero."""
    return math.ldexp(1.0, math.frexp(x)[1]) if x > 0 else 1.0


def register_to(
    consensus: Consensus, X: Floats, n: Ints, strengths: Strengths, rounds: int
) -> tuple[Floats, Floats]:
    """Displacements (P, d) of one batch with populations at ``X``, to a fixed consensus.

    And the part (1,) of the batch that met the consensus.
    """
    edges = np.array([0, len(X)])
    batches = Batches(X - consensus.origin, n, edges, consensus.unit, consensus.settings)
    with one_numpy_thread():
        begin = alone(starting_shifts(batches, strengths, 0, consensus.first))
        seeds = np.arange(len(consensus.mass))
        run = alone(Run(batches, begin, strengths, seeds, consensus.sums).iterate(rounds))
    return mean_displacement([run]), mean_matched([run])


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
