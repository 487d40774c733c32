"""Registration of batches to a consensus: all batches together, or one batch to a fixed consensus.

Every ``exchange`` adds up sums over all batches everywhere: see :mod:`scbatchprox.core.target`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...core.checks import overflow_error
from ...core.moments import Pooled
from ...core.target import Decision, Exchange, Trace, itself, one_thread_between
from ...errors import BadValue, Parameter
from ...kernels.arrays import Floats, Ints
from ...kernels.threads import one_numpy_thread
from .agreement import Strengths
from .copies import Turning
from .meeting import NONE, Batches, Everyone, Sums
from .run import FixedConsensus, Look, Run, fall
from .settings import PopulationSettings

__all__ = ["Consensus", "Registered", "register", "register_to"]

#: Batches without evidence leave, and the others are looked at again, at most this many times.
LOOKS = 4
#: Evidence is clear if it is this many times what is needed; below, it is weak. Of the planted sets of the
#: choosing half that were moved and harmed, more than half had less; of the others, a sixth.
CLEAR = 2.0
#: Cells of a population are equal if their variance is at most this part of that between populations. In
#: units of a larger one, sums of squares of all cells stay in the range that sites can add.
EQUAL = 1e-18


@dataclass(frozen=True, eq=False)
class Consensus:
    """The centres that batches were registered to: all that a later batch needs of them.

    Attributes
    ----------
    settings
        Of the registration.
    origin
        (d,) the mean of all cells, which positions are relative to.
    variance
        Within populations, per coordinate.
    mass, total
        (K,) and (K, d): the matched cells of all batches at each centre, and the sum of their positions.
    cells
        (K,) all cells nearest to each centre.
    turning
        The space in which copies of a batch are turned.
    together
        Whether the batches have evidence on average: then a later batch needs less.
    smooth
        Whether batches differ by more than shifts.
    """

    settings: PopulationSettings
    origin: Floats
    variance: float
    mass: Floats
    total: Floats
    cells: Floats
    turning: Turning
    together: bool
    smooth: bool

    def __post_init__(self) -> None:
        arrays = (self.origin, self.mass, self.total, self.cells, *self.turning)
        if not all(np.isfinite(part).all() for part in arrays):
            raise BadValue("Expected a finite consensus, found NaN or infinity.")
        if not 0 < self.variance < math.inf:
            raise BadValue(f"Expected a consensus with a variance > 0, found {self.variance!r}.")
        if not (self.mass.size and (self.mass > 0).all() and (self.cells >= 0).all()):
            raise BadValue("Expected a consensus with cells at its centres, found none at some.")


class Registered(NamedTuple):
    """Batches that are registered to each other, or to a consensus."""

    displacement: Floats  # (P, d) of populations
    numbers: dict[str, Floats]  # of the evidence, (B,) each
    decision: Ints  # (B,)
    trace: Trace
    consensus: Consensus | None


def register(
    X: Floats,
    n: Ints,
    start: Ints,
    within: float,
    settings: PopulationSettings,
    strengths: Strengths,
    rounds: int,
    force: bool = False,
    pooled: Pooled | None = None,
    exchange: Exchange = itself,
) -> Registered:
    """Register batches to each other.

    Parameters
    ----------
    X, n
        (P, d) means and (P,) cells of populations.
    start
        (B + 1,) the populations of batch b are ``start[b]`` to ``start[b + 1]``.
    within
        Sum of squared deviations from the means of populations, over all coordinates.
    settings, strengths, rounds, force
        Constants, weights of the terms, rounds, and whether batches move without evidence of geometry.
    pooled
        Moments of all cells, if other sites hold some of the batches.
    exchange
        Adds up sums over all batches.
    """
    everyone, origin, size = _frame(X, n, start, within, pooled, exchange)
    # Exchanged positions have the size of numbers near 1, whatever the unit of the data. A power of two
    # changes no bit of the result.
    batches = Batches((X - origin) / size, n, start, everyone)
    with one_thread_between(exchange) as between:
        run = Run(batches, settings, strengths, between)
        found = _registered(run, rounds, force)
        sums, cells = run.final()
    consensus = Consensus(
        settings,
        origin,
        everyone.variance * size**2,
        sums.mass,
        size * sums.total,
        cells,
        found.look.turning,
        found.together,
        found.smooth,
    )
    return _result(run, found, size, consensus)


def register_to(
    consensus: Consensus,
    X: Floats,
    n: Ints,
    strengths: Strengths,
    rounds: int,
    force: bool = False,
) -> Registered:
    """Register one batch with populations at ``X`` to a fixed consensus."""
    size = _power_of_two(math.sqrt(consensus.variance))
    everyone = Everyone(float(n.sum() + consensus.mass.sum()), 2.0, consensus.variance / size**2)
    batches = Batches((X - consensus.origin) / size, n, np.array([0, len(X)]), everyone)
    sums = Sums(consensus.mass, consensus.total / size)
    fixed = FixedConsensus(sums, consensus.cells, consensus.turning)
    run = Run(batches, consensus.settings, strengths, itself, fixed)
    with one_numpy_thread():
        found = _registered(run, rounds, force, consensus)
    return _result(run, found, size, consensus)


def _frame(
    X: Floats, n: Ints, start: Ints, within: float, pooled: Pooled | None, exchange: Exchange
) -> tuple[Everyone, Floats, float]:
    """What all batches have in common: numbers, the origin, and the unit of lengths. The first sum."""
    with np.errstate(over="ignore", invalid="ignore"):
        about, size = n @ X / n.sum(), 1.0
        if pooled is not None:  # then sums have the size of numbers of cells
            about, size = pooled.mean, _power_of_two(math.sqrt(pooled.var.mean()))
        offset = ((X - about) * n[:, None]).sum(0)
        squared = float((n @ (X - about) ** 2).sum())
    if not (np.isfinite(offset).all() and math.isfinite(squared)):
        raise overflow_error()
    scaled = [within / size**2, squared / size**2]
    sums = exchange(np.array([n.sum(), len(start) - 1, *scaled, *(offset / size)]))
    n_cells, n_batches = sums[:2].tolist()
    if pooled is not None and (n_cells, n_batches) != (pooled.n_cells, pooled.n_batches):
        raise BadValue(
            "Expected the populations of all batches for ", Parameter("target='population'"),
            f" ({pooled.n_cells:,} cells in {pooled.n_batches:,} batches), found {n_cells:,.0f} in "
            f"{n_batches:,.0f}.",
        )  # fmt: skip
    d = X.shape[1]
    inner, all_squares = (size**2 * sums[2:4] / (n_cells * d)).tolist()
    origin = about + size * sums[4:] / n_cells
    # Populations of equal cells have no variance, or that of rounding: a unit in which all is far apart.
    variance = (inner if inner > EQUAL * all_squares else all_squares) or 1.0
    unit = _power_of_two(math.sqrt(variance))
    return Everyone(n_cells, n_batches, variance / unit**2), origin, unit


def _power_of_two(x: float) -> float:
    """A power of two of about this size; 1 for zero."""
    return math.ldexp(1.0, math.frexp(x)[1]) if x > 0 else 1.0


@dataclass(frozen=True, eq=False)
class _Found:
    """What a registration found out about batches."""

    look: Look
    evidence: Floats  # (B,)
    gain: Floats  # (B,) NaN for batches that had no shift
    alone: np.ndarray  # (B,) batches without evidence
    enough: float  # the evidence that they needed
    together: bool
    smooth: bool


def _registered(run: Run, rounds: int, force: bool, consensus: Consensus | None = None) -> _Found:
    """Shift batches, look whether there is evidence, and add a smooth part where there is."""
    B = run.active.size
    evidence, gain, alone_ = np.full(B, np.nan), np.full(B, np.nan), np.zeros(B, bool)
    begin = _start(run, rounds)
    run.follow(begin)
    for _ in range(LOOKS):
        run.shift = np.where((run.active & ~run.held)[:, None], begin.shift, 0.0)
        run.settle(rounds)
        look = run.look()
        found, gained, together = _compared(run, look, consensus)
        shifted = run.active & (run.shift != 0).any(1)
        evidence = np.where(run.active, found, evidence)
        gain = np.where(shifted, gained, gain)
        enough = run.settings.enough(together)
        # Whoever is helped by the others must still fit them better than turned copies do.
        no_better = look.support.support <= look.support.chance
        refused = run.active & ((found <= enough) | (no_better & together)) & (not force)
        held = shifted & ~refused & (gained <= run.settings.better) & (not force)
        n_refused, n_held = run.exchange(np.array([float(refused.sum()), float(held.sum())]))
        if not n_refused + n_held:
            break
        alone_ |= refused
        run.active, run.held = run.active & ~refused, run.held | held
        run.shift = np.where((run.active & ~run.held)[:, None], run.shift, 0.0)
        (left,) = run.exchange(np.array([float(run.active.sum())]))
        if left < (1 if consensus else 2):
            alone_ |= run.active
            run.active, run.shift = np.zeros(B, bool), np.zeros_like(run.shift)
            break
    total, variance = (
        look.smooth.total[run.active].sum(),
        (look.smooth.spread[run.active] ** 2).sum(),
    )
    smooth = consensus.smooth if consensus else False
    if consensus is None:
        total, variance = run.exchange(np.array([total, variance])).tolist()
        # What is below NONE may be the rounding of one of the sites.
        smooth = total > max(run.settings.agreement * math.sqrt(variance), NONE)
    moving = run.active & (look.smooth.z > 0) & smooth
    if smooth:
        run.smooth(rounds, moving)
    return _Found(look, evidence, gain, alone_, enough, together, smooth)


def _start(run: Run, rounds: int) -> Run:
    """The better of two runs: from the given positions, and from a common mean.

    The default weights decide which: a strong identity term must not make a batch start from elsewhere.
    """
    batches, fixed, settings = run.batches, run.fixed, run.settings
    usual = Strengths(settings.prior, settings.prior)
    common = fixed.sums.total.sum(0) / fixed.sums.mass.sum() if fixed else 0.0
    to_mean = common - batches.means()
    in_place = Run(batches, settings, usual, run.exchange, fixed)
    centred = Run(batches, settings, usual, run.exchange, fixed, to_mean)
    fall([in_place, centred], rounds)
    matched = run.exchange(np.array([in_place.matched.sum(), centred.matched.sum()]))
    by_mean = bool(matched[1] > settings.better * matched[0])
    if run.strengths == usual:
        return centred if by_mean else in_place
    start = to_mean if by_mean else None
    begin = Run(batches, settings, run.strengths, run.exchange, fixed, start)
    fall([begin], rounds)
    return begin


def _compared(run: Run, look: Look, consensus: Consensus | None) -> tuple[Floats, Floats, bool]:
    """The evidence on each batch, its gain, and whether all have evidence together: in the geometric mean.

    Two batches have one geometry to compare, so they have the same evidence and the same gain.
    """
    each = look.support.evidence, look.support.gain
    if consensus is not None:
        return *each, consensus.together
    logs = [np.log(part[run.active]).sum() for part in each]
    *totals, number = run.exchange(np.array([*logs, float(run.active.sum())])).tolist()
    evidence, gain = np.exp(np.array(totals) / max(number, 1.0)).tolist()
    if number == 2:
        return np.full_like(each[0], evidence), np.full_like(each[1], gain), False
    return *each, evidence > run.settings.evidence


def _result(run: Run, found: _Found, size: float, consensus: Consensus) -> Registered:
    moved = (run.shift != 0).any(1) | run.bent
    weak = found.evidence <= CLEAR * found.enough
    decision = np.where(moved, np.where(weak, Decision.WEAK, Decision.REMOVED), Decision.NO_EFFECT)
    decision = np.where(found.alone, Decision.ALONE, decision)
    support, chance, _ = found.look.support
    numbers = {
        "matched": run.matched,
        "agreement": run.agreement,
        "smooth": found.look.smooth.z,
        "evidence": found.evidence,
        "support": support,
        "chance": chance,
        "gain": found.gain,
        "composition": found.look.composition,
    }
    return Registered(
        size * run.displacement, numbers, decision.astype(np.int64), run.trace(size), consensus
    )
