"""Rounds of registration: batches exchange sums at centres, and update their displacements.

Every ``exchange`` adds up sums over all batches everywhere: see :mod:`scbatchprox.core.target`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...core.target import Exchange, Trace, itself
from ...kernels.arrays import Floats
from ...kernels.threads import parallel_map
from .agreement import (
    Agreement,
    Strengths,
    most_agreement,
    shift_agreement,
    smooth_agreement,
    smooth_field,
    without_contraction,
)
from .copies import Support, Turning, principal_axes, supported
from .meeting import NONE, Batches, Goals, Met, Stack, Sums, added, composition, spacing
from .settings import PopulationSettings

__all__ = ["FixedConsensus", "Look", "Run", "fall"]

#: Steps of k-means after the centres are seeded.
STEPS = 2
#: Fewest centres, even if batches have fewer populations: these may differ between batches.
FEWEST_CENTRES = 8
#: Part of the rounds in which batches shift while the temperature falls. In the others it is the last one,
#: and a batch moves only if its centres agree.
FALLING = 0.6
#: Part of the largest agreement that a batch can reach, which is enough if it has very few centres.
NEARLY = 0.9
#: Copies of each of many batches.
FEW_COPIES = 3
#: Weights of copies that are computed at a time, so that they stay in the cache.
CACHED = 1 << 18
#: Temperatures of the search of a batch and its turned copies: so many that fall, and the last once more.
SEARCH = 5


class FixedConsensus(NamedTuple):
    """A consensus that does not change."""

    sums: Sums
    cells: Floats  # (K,) of all batches, nearest to each centre
    turning: Turning


class Look(NamedTuple):
    """What a look at the batches found."""

    turning: Turning
    support: Support  # (B,)
    smooth: Agreement  # (B,)
    composition: Floats  # (B,)


class _AtCentres(NamedTuple):
    """Batches at the centres, and sums: before an exchange those of own batches, then those of all."""

    positions: list[Floats]
    met: list[Met]
    unit: float  # squared spacing of the centres
    sums: Sums
    more: list[Floats]  # other sums


class Run:
    """The state of a registration, and its rounds.

    Batches are registered to each other, or one batch to ``fixed`` sums.

    Attributes
    ----------
    exchange
        Adds up sums over all batches.
    active
        (B,) batches that take part in the consensus. Others do not move.
    held
        (B,) batches that take part, but have no shift.
    start, shift
        (B, d) displacements of whole batches: where the identity term pulls them to, and now.
    fields
        For each stack, (b, P, d) what its populations move beyond that; (b, 1, d) zeros until they do.
    matched, agreement
        (B,) part of each batch that met others in the last round, and the agreement of its centres.
    rounds
        For each round, sums over batches: their number, matched, agreement, squared movement.
    """

    def __init__(
        self,
        batches: Batches,
        settings: PopulationSettings,
        strengths: Strengths,
        exchange: Exchange = itself,
        fixed: FixedConsensus | None = None,
        shift: Floats | None = None,
    ) -> None:
        self.batches, self.settings, self.strengths = batches, settings, strengths
        self.exchange, self.fixed = exchange, fixed
        B, d = batches.n_cells.size, batches.stacks[0].x.shape[2]
        self.active, self.held = np.ones(B, bool), np.zeros(B, bool)
        self.shift = np.zeros((B, d)) if shift is None else shift.copy()
        # The identity term shortens a start once, by the evidence of all cells of the batch. If it pulled a
        # distant batch to zero in every round, the batch would lose the others again.
        n = batches.n_cells[:, None]
        self.start = self.shift * (n / (n + strengths.prior))
        self.fields = [np.zeros((len(stack.x), 1, d)) for stack in batches.stacks]
        self.matched, self.agreement = np.zeros(B), np.zeros(B)
        self.rounds: list[Floats] = []
        self._untold = False

    @property
    def displacements(self) -> list[Floats]:
        """For each stack, (b, P, d) displacements of populations, or (b, 1, d) of all of a batch."""
        parts = zip(self.batches.in_stacks(self.shift), self.fields, strict=True)
        return [shift[:, None] + v for shift, v in parts]

    @property
    def positions(self) -> list[Floats]:
        """For each stack, (b, P, d) displaced populations."""
        parts = zip(self.batches.stacks, self.displacements, strict=True)
        return [stack.x + moved for stack, moved in parts]

    @property
    def bent(self) -> np.ndarray:
        """(B,) whether populations of a batch move beyond its shift."""
        return self.batches.by_batch([np.asarray(field.any((1, 2))) for field in self.fields])

    @property
    def displacement(self) -> Floats:
        """(P, d) displacements of all populations."""
        parts = zip(self.displacements, self.batches.stacks, strict=True)
        full = [np.broadcast_to(moved, stack.x.shape) for moved, stack in parts]
        return np.asarray(self.batches.by_population(full))

    def trace(self, size: float) -> Trace:
        """The rounds so far; ``size`` is the unit of lengths."""
        start = np.array([0.0, 0.0, 0.0, 0.0])
        number, matched, agreement, squared = np.array([start, *self.rounds]).T
        number[0] = np.nan
        movement = size * np.sqrt(squared / self.batches.everyone.n_cells)
        with np.errstate(invalid="ignore", divide="ignore"):
            return Trace.of(matched / number, movement, agreement / number)

    def follow(self, begin: Run) -> None:
        """Go on where another run ended."""
        self.start, self.shift = begin.start, begin.shift
        self.matched, self.agreement = begin.matched, begin.agreement
        self.rounds, self._untold = begin.rounds, begin._untold

    def settle(self, rounds: int) -> None:
        """Rounds in which a batch moves only if its centres agree."""
        centres = self._seeded()
        for _ in range(max(1, rounds - _falling(rounds))):
            temperature, limit = self.settings.temperature, self.settings.agreement
            found, centres = self._round(centres, temperature)
            self._move(found, temperature, limit)

    def look(self) -> Look:
        """Compare every batch with the others, and with turned copies of itself."""
        centres = self._seeded()
        counts = self._counts(centres)
        more = [self._active(counts)]
        if self.fixed is None:
            more += [self._weighted_shift().sum(0), *self._covariances(centres)]
        here = self._own(centres, self.settings.temperature)._replace(more=more)
        (found,) = _exchanged([self], [here])
        everyone, *other = found.more
        if self.fixed is None:
            all_shifts, *covariances = other
            turning = Turning.of(*covariances)
            turning = turning.signed(self.exchange(self._skew(found.positions, turning)))
            unmoved = self._unmoved(all_shifts)
        else:
            everyone, turning, unmoved = (
                everyone + self.fixed.cells, self.fixed.turning, self._unmoved(),
            )  # fmt: skip
        last, n_copies = self.settings.temperature, self._n_copies()
        temperatures = np.append(np.geomspace(self.settings.hot, last, SEARCH), last)

        def support(item: tuple[int, slice]) -> Support:
            s, some = item
            stack, own = self.batches.stacks[s], found.met[s].own
            return supported(
                found.positions[s][some],
                unmoved[s][some],
                stack.cells[some],
                found.sums.without(Sums(own.mass[some], own.total[some])),
                turning,
                n_copies,
                temperatures,
                found.unit,
            )

        each = parallel_map(support, self._few_at_a_time(n_copies * len(centres)))
        members = np.argsort(np.concatenate(self.batches.members))
        supports = Support(*(np.concatenate(part)[members] for part in zip(*each, strict=True)))
        parts = [smooth_agreement(goals, found.unit) for goals in self._goals(found, found.unit)]
        total, spread = (self.batches.by_batch(list(part)) for part in zip(*parts, strict=True))
        compositions = [
            composition(own, everyone - own * part[:, None], stack.cells)
            for own, part, stack in zip(counts, self._parts(), self.batches.stacks, strict=True)
        ]
        return Look(
            turning, supports, Agreement(total, spread), self.batches.by_batch(compositions),
        )  # fmt: skip

    def smooth(self, rounds: int, moving: np.ndarray) -> None:
        """Rounds in which the populations of some batches (B,) move by a smooth field beyond the shift."""
        temperatures, centres = self._temperatures(rounds), np.zeros((0, 0))
        parts = self.batches.in_stacks(moving)
        for count, temperature in enumerate(temperatures):
            if count in (0, len(temperatures) // 2):
                centres = self._seeded()
            found, centres = self._round(centres, temperature)
            width = found.unit * temperature / self.settings.temperature
            self._measure(self._goals(found, width))
            for s, part in enumerate(parts):
                if part.any():
                    v = smooth_field(
                        self.batches.stacks[s], self.fields[s], found.met[s], found.sums,
                        found.unit, width, self.strengths,
                    )  # fmt: skip
                    if count == len(temperatures) - 1:
                        v = without_contraction(self.batches.stacks[s], v, found.unit)
                    # A field that is rounding only is none.
                    part = part & (np.abs(v).max((1, 2)) > NONE)
                    self.fields[s] = np.where(part[:, None, None], v, 0.0)

    def final(self) -> tuple[Sums, Floats]:
        """Sums of all batches, moved or not, at new centres, and the cells nearest to each of them.

        Later batches are registered to these.
        """
        self.active = np.ones_like(self.active)
        if not self._untold:  # batches without evidence went back after the last round
            del self.rounds[-1:]
            self._untold = True
        centres = self._seeded()
        counts = self._active(self._counts(centres))
        here = self._own(centres, self.settings.temperature)._replace(more=[counts])
        (found,) = _exchanged([self], [here])
        sums, there = found.sums, found.sums.mass > NONE
        return Sums(sums.mass[there], sums.total[there]), found.more[0][there]

    def _weighted_shift(self) -> Floats:
        """(B, 1 + d) cells of the batches that take part, and the sum of their shifts."""
        n = (self.batches.n_cells * self.active)[:, None]
        return np.concatenate([n, n * self.shift], axis=1)

    def _unmoved(self, all_shifts: Floats | None = None) -> list[Floats]:
        """For each stack, (b, P, d) where populations would be if their batch had only moved like the others.

        ``all_shifts`` (1 + d) is the sum over batches of :meth:`_weighted_shift`. A consensus does not move.
        """
        moved = np.zeros_like(self.shift)
        if all_shifts is not None:
            rest = all_shifts - self._weighted_shift()
            moved = rest[:, 1:] / np.maximum(rest[:, :1], NONE)
        parts = zip(self.batches.stacks, self.batches.in_stacks(moved), strict=True)
        return [stack.x + own[:, None] for stack, own in parts]

    def _few_at_a_time(self, n_weights: int) -> list[tuple[int, slice]]:
        """Parts of stacks with about as many weights as stay in the cache, for so many of a population."""
        return [
            (s, slice(first, first + step))
            for s, stack in enumerate(self.batches.stacks)
            for step in [max(1, CACHED // (n_weights * stack.x.shape[1]))]
            for first in range(0, len(stack.x), step)
        ]

    def _n_copies(self) -> int:
        """Copies of each batch: fewer among many batches, which have evidence together."""
        most = self.settings.copies
        if self.fixed is not None:
            return most
        return int(np.clip(4 * most / self.batches.everyone.n_batches, min(FEW_COPIES, most), most))

    def _skew(self, positions: list[Floats], turning: Turning) -> Floats:
        """(q,) sums of third powers in each direction of the space of turns."""
        found = np.zeros(turning.into.shape[1])
        for stack, y, part in zip(self.batches.stacks, positions, self._parts(), strict=True):
            about = y - np.einsum("bp,bpd->bd", stack.share, y)[:, None]
            found += np.einsum(
                "bp,bpq->q", stack.cells * part[:, None], (about @ turning.into) ** 3
            )
        return found

    def _counts(self, centres: Floats) -> list[Floats]:
        """For each stack, (b, K) cells nearest to each centre."""
        parts = zip(self.batches.stacks, self.positions, strict=True)
        return [stack.counts(y, centres) for stack, y in parts]

    def _active(self, counts: list[Floats]) -> Floats:
        """(K,) sums over batches that take part."""
        parts = zip(counts, self._parts(), strict=True)
        return np.asarray(sum(count[part].sum(0) for count, part in parts))

    def _temperatures(self, rounds: int) -> Floats:
        if rounds < 2:
            return np.full(rounds, self.settings.temperature)
        return np.geomspace(self.settings.hot, self.settings.temperature, rounds)

    def _move(self, found: _AtCentres, temperature: float, limit: float = 0.0) -> None:
        """Shift the batches to the centres they met, if they agree by more than a limit."""
        goals = self._goals(found, found.unit * temperature / self.settings.temperature)
        self._measure(goals)
        parts = [shift_agreement(part) for part in goals]
        goal = self.batches.by_batch([shift for shift, _ in parts])
        self.agreement = self.batches.by_batch([agreement.z for _, agreement in parts])
        # The shift of a batch has the evidence of all its matched cells, a field that of each population.
        weight = self.batches.by_batch([part.weight.sum(1) for part in goals])
        needed = self._needed(limit, goals)
        start = self.start
        new = start + self.strengths.shrunk(weight[:, None], goal - start, self.shift - start)
        moving = self.active & ~self.held & (self.agreement > needed)
        self.shift = np.where(moving[:, None], new, 0.0)

    def _needed(self, limit: float, goals: list[Goals]) -> float | Floats:
        """The agreement that a batch needs: more among many batches, unless they have it together.

        A batch with very few centres cannot reach the limit: for it, nearly all that it can reach is enough.
        """
        if not limit:
            return limit
        if self.fixed is None:
            known = self.agreement[self.active]
            total, number = self.exchange(np.array([known.sum(), float(known.size)])).tolist()
            if total <= limit * math.sqrt(number):
                return math.sqrt(limit**2 + 2.0 * math.log(max(number - 1.0, 1.0)))
        most = self.batches.by_batch([most_agreement(part) for part in goals])
        return np.minimum(limit, NEARLY * most)

    def _goals(self, found: _AtCentres, width: float) -> list[Goals]:
        parts = zip(
            self.batches.stacks, found.positions, found.met, self.displacements, strict=True
        )
        return [
            stack.goals(y, met, found.sums, width, moved if moved.shape[1] == 1 else None)
            for stack, y, met, moved in parts
        ]

    def _measure(self, goals: list[Goals]) -> None:
        """Remember how much of each batch is matched."""
        n = self.batches.n_cells
        others = np.maximum(1.0 - n / self.batches.everyone.n_cells, NONE)
        self.matched = self.batches.by_batch([part.weight.sum(1) for part in goals]) / (n * others)
        self._untold = True

    def _round(self, centres: Floats, temperature: float) -> tuple[_AtCentres, Floats]:
        """The batches at the centres, and the centres of the next round."""
        ((found, after),) = _round([self], [centres], temperature)
        return found, after

    def _parts(self) -> list[np.ndarray]:
        return self.batches.in_stacks(self.active)

    def _each(self) -> list[tuple[Stack, Floats, np.ndarray]]:
        """Each stack, its positions, and which of its batches take part."""
        return list(zip(self.batches.stacks, self.positions, self._parts(), strict=True))

    def _own(self, centres: Floats, temperature: float, step: bool = False) -> _AtCentres:
        """Batches at the centres, and their sums there.

        With ``step``, also the sums of the populations nearest to each centre: a step of k-means.
        """
        unit, each = spacing(centres), self._each()
        met = [stack.meet(y, centres, unit * temperature, part) for stack, y, part in each]
        sums = added(Sums(part.own.mass.sum(0), part.own.total.sum(0)) for part in met)
        more: list[Floats] = []
        if step:
            nearest = (
                stack.by_group(y, found.nearest, len(centres), part)
                for (stack, y, part), found in zip(each, met, strict=True)
            )
            more = list(added(nearest))
        return _AtCentres([y for _, y, _ in each], met, unit, sums, more)

    def _told(self) -> Floats:
        """Numbers of the last round, for the trace: they travel with the sums of the next exchange."""
        if not self._untold:
            return np.zeros(0)
        squared = sum(
            float((stack.cells * np.einsum("bpd,bpd->bp", moved, moved)).sum())
            for stack, moved in zip(self.batches.stacks, self.displacements, strict=True)
        )
        return np.array([self.active.size, self.matched.sum(), self.agreement.sum(), squared])

    def _seeded(self) -> Floats:
        """(K, d) new centres for the current positions of populations."""
        (centres,) = _seeded([self])
        return centres

    def _about(self) -> list[Floats]:
        """Sums that axes and the number of centres follow from: of positions, and numbers of populations."""
        each = self._each()
        moments = [stack.second_moments(y, part) for stack, y, part in each]
        sizes = np.array([
            sum(float((stack.cells[part] > 0).sum()) for stack, _, part in each),
            float(self.active.sum()),
        ])  # fmt: skip
        return [*(np.array(sum(part[i] for part in moments), float) for i in range(3)), sizes]

    def _divided(self, totals: list[Floats]) -> tuple[int, Sums]:
        """The number of centres, and own sums in each region, from the sums :meth:`_about` of all batches."""
        n, total, squares, (populations, batches) = totals
        settings, n_cells = self.settings, max(float(n), 1.0)
        wanted = n_cells / settings.centre_cells
        K = int(np.clip(wanted, settings.few_centres, settings.most_centres))
        # With more centres than populations in a batch, batches would have centres of their own.
        K = min(K, max(FEWEST_CENTRES, round(populations / max(batches, 1.0))))
        mean = total / n_cells
        covariance = squares / n_cells
        axes = principal_axes(covariance)[1][:, : min(math.ceil(math.log2(K)) + 1, total.size)]
        spread = math.sqrt(max(float(np.trace(covariance)), 0.0))
        return K, added(
            stack.divided(y, mean, axes, spread, part) for stack, y, part in self._each()
        )

    def _nearest(self, centres: Floats) -> list[Floats]:
        """Sums of the populations nearest to each centre."""
        return list(added(stack.nearest(y, centres, part) for stack, y, part in self._each()))

    def _covariances(self, centres: Floats) -> list[Floats]:
        """(d, d) sums of squares: about the nearest centre, and about the means of batches."""
        d = self.shift.shape[1]
        within, spread = np.zeros((2, d, d))
        cells = 0.0
        for stack, y, part in self._each():
            parts = stack.covariances(y, centres, part)
            within, spread, cells = within + parts[0], spread + parts[1], cells + parts[2]
        inside = self.batches.everyone.variance * cells * np.eye(d)
        return [within + inside, spread + inside]


def _falling(rounds: int) -> int:
    """Rounds with a falling temperature, of all rounds in which batches shift."""
    return max(1, round(FALLING * rounds))


def fall(runs: Sequence[Run], rounds: int) -> None:
    """Rounds in which batches shift at a falling temperature.

    Several runs go side by side. Their sums are exchanged at once, so that sites wait half as often for two.
    """
    temperatures = runs[0]._temperatures(_falling(rounds))
    centres: Sequence[Floats] = []
    for count, temperature in enumerate(temperatures):
        if count in (0, len(temperatures) - 2):
            centres = _seeded(runs)
        found, centres = zip(*_round(runs, centres, temperature), strict=True)
        _for_each(partial(Run._move, temperature=temperature), runs, found)


def _round(
    runs: Sequence[Run], centres: Sequence[Floats], temperature: float
) -> list[tuple[_AtCentres, Floats]]:
    """For each run, the batches at the centres, and the centres of the next round.

    Unless the consensus is fixed, these are a step of k-means, with the same exchange.
    """
    step = runs[0].fixed is None
    own = _for_each(partial(Run._own, temperature=temperature, step=step), runs, centres)
    found = _exchanged(runs, own)
    if not step:
        return list(zip(found, centres, strict=True))
    return [(one, Sums(*one.more).centres()) for one in found]


def _exchanged(runs: Sequence[Run], own: Sequence[_AtCentres]) -> list[_AtCentres]:
    """For each run, the batches at the centres with the sums of all batches: all that batches exchange."""
    given = [[*one.sums, *one.more, run._told()] for run, one in zip(runs, own, strict=True)]
    found = []
    for run, one, totals in zip(runs, own, _summed(given, runs[0].exchange), strict=True):
        mass, total, *more, told = totals
        if run._untold:
            run.rounds.append(told)
            run._untold = False
        sums = Sums(mass, total)
        if run.fixed is not None:
            sums = added([run.fixed.sums, sums])
        found.append(one._replace(sums=sums, more=more))
    return found


def _seeded(runs: Sequence[Run]) -> list[Floats]:
    """For each run, (K, d) new centres for the current positions of populations, from sums alone.

    Planes through the mean, orthogonal to the leading principal axes, divide space into regions. The means of
    the largest regions are the start of a few steps of k-means. So centres turn with the data.
    """
    fixed, exchange = runs[0].fixed, runs[0].exchange
    if fixed is not None:
        return [fixed.sums.mean for _ in runs]
    about = _summed(_for_each(Run._about, runs), exchange)
    numbers, regions = zip(*_for_each(Run._divided, runs, about), strict=True)
    totals = _summed([list(sums) for sums in regions], exchange)
    centres = [Sums(*sums).centres(K) for sums, K in zip(totals, numbers, strict=True)]
    for _ in range(STEPS):
        totals = _summed(_for_each(Run._nearest, runs, centres), exchange)
        centres = [Sums(*sums).centres() for sums in totals]
    return centres


def _for_each(work: Callable[..., Any], runs: Sequence[Run], *given: Sequence[Any]) -> list[Any]:
    """Work of each run with what is given for it: on threads, if that takes less time."""
    items = list(zip(runs, *given, strict=True))
    if not runs[0].batches.many:
        return [work(*item) for item in items]
    return parallel_map(lambda item: work(*item), items)


def _summed(several: Sequence[list[Floats]], exchange: Exchange) -> list[list[Any]]:
    """Sums of lists of arrays over all batches everywhere, in one exchange."""
    flat = [np.ravel(part) for arrays in several for part in arrays]
    totals = exchange(np.concatenate(flat))
    parts = iter(np.split(totals, np.cumsum([part.size for part in flat])[:-1]))
    return [[next(parts).reshape(np.shape(old)) for old in arrays] for arrays in several]
