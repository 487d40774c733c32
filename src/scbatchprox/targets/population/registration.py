"""Batches brought to a consensus: all of them together, or each alone to one that is kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...kernels.arrays import Floats, Ints
from ...kernels.distances import squared_distances
from ...kernels.threads import one_numpy_thread, parallel_map
from .consensus import NONE, Stack, Strengths, Sums
from .settings import PopulationSettings

__all__ = ["Consensus", "Matches", "matches", "register", "register_to"]

#: Batches in one stack at most: their arrays stay small. Populations from which on seedings run in parallel.
STACK, MANY = 64, 1500


@dataclass(frozen=True, eq=False)
class Consensus:
    """What batches were registered to: all that a later batch needs of them.

    Attributes
    ----------
    settings
        Of the registration.
    origin
        (d,) the mean of all cells: positions are about it.
    unit
        Squared spacing of populations, the unit of squared lengths.
    mass, total
        (S, K) and (S, K, d) for each of S seedings: the weight of all populations at each centre, and
        their weighted positions. A centre without weight is none.
    one_each
        Whether every batch was one population. Such batches are fitted by their means alone.
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


class Matches(NamedTuple):
    """What is near populations once they have moved."""

    distance: Floats  # (P,) to the nearest centre that other batches hold, in units of the spacing
    centre: Ints  # (P,) the nearest centre of all, of the first seeding
    fit: Floats  # (B,) how well each batch fitted the others where it was, 0 to 2


def register(
    X: Floats,
    n: Ints,
    start: Ints,
    width: float,
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
    width
        Variance of cells about their populations, over all coordinates.
    settings, strengths, rounds, seed
        Constants, weights of the terms, rounds with a smooth part, seed of the centres.
    """
    origin = np.average(X, axis=0, weights=n)
    unit = spacing(X, n, start, width, settings)
    batches = Batches(X - origin, n, start, unit, settings)
    seeds = np.arange(seed, seed + settings.seedings)
    # Small registrations are mostly Python, of which only one can run at a time.
    parts = np.split(seeds, len(seeds) if len(X) >= MANY else 1)
    with one_numpy_thread():
        begin = _starts(batches, strengths, seed)
        runs = parallel_map(lambda some: Run(batches, begin, strengths, some).go(rounds), parts)
    move = np.mean(np.concatenate([run.move for run in runs]), axis=0)
    K = max(run.everyone.mass.shape[1] for run in runs)
    found = [_widened(run.everyone, K) for run in runs]
    mass, total = (np.concatenate(part) for part in zip(*found, strict=True))
    one_each = len(X) == len(start) - 1
    return move, Consensus(settings, origin, unit, mass, total, one_each)


def register_to(
    consensus: Consensus, X: Floats, n: Ints, strengths: Strengths, rounds: int
) -> Floats:
    """Displacements (P, d) of one batch with populations at ``X``, to a consensus that stays as it is."""
    edges = np.array([0, len(X)])
    batches = Batches(X - consensus.origin, n, edges, consensus.unit, consensus.settings)
    kept = consensus.sums
    with one_numpy_thread():
        begin = _starts(batches, strengths, 0, Sums(kept.mass[:1], kept.total[:1]))
        seeds = np.arange(len(kept.mass))
        run = Run(batches, begin, strengths, seeds, kept).go(rounds)
    return np.asarray(run.move.mean(0))


def matches(
    consensus: Consensus, X: Floats, n: Ints, start: Ints, move: Floats, inside: np.ndarray
) -> Matches:
    """What populations that have moved by ``move`` find in a consensus.

    Batches that are ``inside`` (B,) had a part in it, which is left out when they are compared with it.
    """
    batches = Batches(X - consensus.origin, n, start, consensus.unit, consensus.settings)
    first = Sums(consensus.mass[:1], consensus.total[:1])
    everyone = Sums(first.mass[:, None], first.total[:, None])
    near, nearest, fits = [], [], []
    with one_numpy_thread():
        for rows, members, stack in zip(batches.rows, batches.members, batches.stacks, strict=True):
            v = move[rows][None]
            own = stack.offer(v, first, consensus.settings.temperature).own
            part = inside[members].astype(float)[:, None]
            rest = first.without(Sums(own.mass * part, own.total * part[..., None]))
            near.append(stack.nearest(v, rest)[0][0])
            nearest.append(stack.nearest(v, everyone)[1][0])
            fits.append(stack.fit(rest)[0])
    return Matches(
        batches.by_population(near), batches.by_population(nearest), batches.by_batch(fits)
    )


def spacing(X: Floats, n: Ints, start: Ints, width: float, settings: PopulationSettings) -> float:
    """Mean squared distance of a population to the nearest of its own batch, within bounds.

    A sum over batches; 1 if no batch has two populations, nor any width.
    """
    squares = cells = 0.0
    for lo, hi in pairwise(start.tolist()):
        if hi - lo > 1:
            part = X[lo:hi] - X[lo:hi].mean(0)
            D = squared_distances(part, part)
            np.fill_diagonal(D, np.inf)
            squares += float(D.min(1) @ n[lo:hi])
            cells += float(n[lo:hi].sum())
    found = squares / cells if cells else 0.0
    bound = max(settings.wide * width, settings.tight * found)
    return min(found, bound) if found > 0 else bound or 1.0


class Batches:
    """Populations of some batches in stacks, by how many a batch has."""

    def __init__(
        self, X: Floats, n: Ints, start: Ints, unit: float, settings: PopulationSettings
    ) -> None:
        sizes = np.diff(start)
        self.n_rows, self.settings = len(X), settings
        self.sizes = sizes
        self.share = np.add.reduceat(n, start[:-1]) / n.sum()  # (B,) of all cells
        self.rows: list[np.ndarray] = []  # (B, P) populations of each stack; -1 where there is none
        self.stacks: list[Stack] = []
        self.members: list[np.ndarray] = []  # (B,) which batches they are
        bucket = np.ceil(np.log2(sizes)).astype(int)
        for size in np.unique(bucket):
            alike = np.flatnonzero(bucket == size)
            for lo in range(0, alike.size, STACK):
                some = alike[lo : lo + STACK]
                index = start[some][:, None] + np.arange(sizes[some].max())
                there = index < start[some + 1][:, None]
                rows = np.where(there, index, -1)
                weight = np.where(there, n[rows], 0.0)
                # A batch counts as many as it has populations, however many cells these have.
                weight *= there.sum(1, keepdims=True) / weight.sum(1, keepdims=True)
                x = np.where(there[:, :, None], X[rows], 0.0)
                self.members.append(some)
                self.rows.append(rows)
                self.stacks.append(Stack.of(x, weight, unit, settings))

    def by_population(self, parts: list[Any]) -> Any:
        """Values of all populations in their order."""
        out: np.ndarray = np.zeros((self.n_rows, *parts[0].shape[2:]), parts[0].dtype)
        for rows, part in zip(self.rows, parts, strict=True):
            out[rows[rows >= 0]] = part[rows >= 0]
        return out

    def by_batch(self, parts: list[np.ndarray]) -> Floats:
        """Values of all batches in their order."""
        out: np.ndarray = np.zeros((self.sizes.size, *parts[0].shape[1:]), parts[0].dtype)
        for members, part in zip(self.members, parts, strict=True):
            out[members] = part
        return out

    def in_stacks(self, values: np.ndarray) -> list[np.ndarray]:
        """Values of batches for each stack."""
        return [values[members] for members in self.members]

    def means(self) -> Floats:
        """(B, d) means of the batches."""
        return self.by_batch([stack.means() for stack in self.stacks])


class Run:
    """Rounds from one start (B, d), for several seeds at once (S,).

    Batches are registered to each other, or one batch to sums (S, K) that are ``kept``.
    """

    def __init__(
        self,
        batches: Batches,
        start: Floats,
        strengths: Strengths,
        seeds: Ints,
        kept: Sums | None = None,
    ) -> None:
        self.batches, self.strengths, self.settings = batches, strengths, batches.settings
        self.seeds, self.kept, self.start = seeds, kept, start
        # Fields are about the start: what pulls them back pulls them there.
        self.stacks = [
            stack.shifted(shift)
            for stack, shift in zip(batches.stacks, batches.in_stacks(start), strict=True)
        ]
        self.fields = [np.zeros((len(seeds), *stack.x.shape)) for stack in self.stacks]

    def go(self, rounds: int) -> Run:
        """Shift, coarse to fine, then some rounds with a smooth part.

        Centres are seeded anew now and then, unless they are kept.
        """
        settings = self.settings
        steps = [(t, False) for t in settings.coarse] + [(settings.temperature, True)] * rounds
        centres = Sums(np.zeros((0, 0)), np.zeros((0, 0, 0)))
        for count, (temperature, smooth) in enumerate(steps):
            if self.kept is not None:
                centres = self.kept
            elif count % settings.renew == 0:
                centres = self._seeded(count)
            self._exchange(centres, temperature)
            self.fields = [
                stack.follow(field, offer, self.everyone, temperature, self.strengths, smooth)
                for stack, field, offer in zip(self.stacks, self.fields, self.offers, strict=True)
            ]
            centres = self.everyone
        # Where everything is now: what fits are told by, and what later batches are registered to.
        self._exchange(centres if self.kept is None else self.kept, settings.temperature)
        return self

    @property
    def move(self) -> Floats:
        """(S, P, d) displacements so far."""
        shifts = self.batches.in_stacks(self.start)
        moves = [
            np.moveaxis(shift[:, None] + v, 0, 2)
            for shift, v in zip(shifts, self.fields, strict=True)
        ]
        return np.asarray(np.moveaxis(self.batches.by_population(moves), 1, 0))

    @property
    def shift(self) -> Floats:
        """(B, d) displacements, of the first seed, of batches that have only shifted so far."""
        return self.start + self.batches.by_batch([field[0, :, 0] for field in self.fields])

    def fits(self, shift: Floats, flip: Floats | None = None) -> Floats:
        """(B,) how well every batch alone would fit the others, shifted by ``shift`` (B, d) instead.

        Of the first seed. ``flip`` (d,) mirrors it about its own mean first, in some of the coordinates.
        """
        parts = []
        for stack, to, offer in zip(
            self.batches.stacks, self.batches.in_stacks(shift), self.offers, strict=True
        ):
            seen = stack if flip is None else stack.mirrored(flip)
            parts.append(seen.shifted(to).fit(self.everyone.without(offer.own))[0])
        return self.batches.by_batch(parts)

    def _exchange(self, centres: Sums, temperature: float) -> None:
        """Sums over all batches: the only thing that they learn of each other in a round."""
        self.offers = [
            stack.offer(field, centres, temperature)
            for stack, field in zip(self.stacks, self.fields, strict=True)
        ]
        own = _added(offer.sums for offer in self.offers)
        self.everyone = own if self.kept is None else _added([self.kept, own])

    def _seeded(self, count: int) -> Sums:
        """Centres of populations where they are now, from sums alone.

        Random planes through their mean cut space into pieces; the means of the populations in each are
        where k-means starts.
        """
        settings, pairs = self.settings, list(zip(self.stacks, self.fields, strict=True))
        wanted = max(settings.few_centres, settings.centres * self.batches.sizes.mean())
        size = (self.stacks[0].x.shape[2], int(np.ceil(np.log2(wanted))))
        planes = np.stack([
            np.random.default_rng([seed, count]).normal(size=size) for seed in self.seeds
        ])  # fmt: skip
        nowhere = np.zeros(planes.shape[:2])
        middle = _added(stack.pieces(v, nowhere, planes[:, :, :0]) for stack, v in pairs).mean[:, 0]
        centres = _added(stack.pieces(v, middle, planes) for stack, v in pairs)
        for _ in range(settings.steps):
            centres = _compact(_added(stack.gather(v, centres) for stack, v in pairs))
        return centres


def _starts(batches: Batches, strengths: Strengths, seed: int, kept: Sums | None = None) -> Floats:
    """(B, d) shifts that batches start from.

    Two runs that only shift, from where batches are and from a common mean. The one in which batches fit each
    other better is taken, and a batch that fits it better as it is in the other takes that start: then
    the mean that it goes to, or comes from, is that of the others. Which start it is does not depend on the
    weights that users choose.
    """
    settings, means = batches.settings, batches.means()
    share = batches.share if kept is None else np.zeros(len(means))
    common = 0.0 if kept is None else kept.total[0].sum(0) / kept.mass[0].sum()
    starts = np.zeros_like(means), common - means
    usual, seeds = Strengths(settings.prior, 0.0), np.array([seed])
    here, there = parallel_map(lambda start: Run(batches, start, usual, seeds, kept).go(0), starts)
    fit_here, fit_there = here.fits(here.shift), there.fits(there.shift)
    together = fit_there.mean() > settings.better * fit_here.mean()
    if together:
        start, base, fit = starts[1], there, fit_there
        use = there.fits(here.shift) <= settings.better * fit_there
    else:
        # To the mean of the others as they are, and on as the batch did from there.
        start, base = starts[1] / np.maximum(1.0 - share, NONE)[:, None], here
        fit = here.fits(start + (there.shift - starts[1]))
        use = fit > settings.better * fit_here
    apart = use & (fit_here < settings.lonely)
    if apart.any():
        use[apart] = _shape_speaks(base, start)[apart]
    if together and kept is None:
        # The mean of those that go there; one alone has nowhere to go.
        use &= use.sum() > 1
        weight = np.where(use, share, 0.0)
        start = (weight @ means) / max(float(weight.sum()), NONE) - means
    # The identity term holds the start back too, as far as the evidence for it lets it: all that go
    # together alike, so that none is torn from its like.
    evidence = np.where(use, batches.sizes * fit / 2.0, 0.0)
    if together:
        evidence = np.where(use, evidence.sum() / max(int(use.sum()), 1), 0.0)
    follows: Floats = evidence / np.maximum(evidence + strengths.prior, NONE)
    return follows[:, None] * start


def _shape_speaks(run: Run, shift: Floats) -> np.ndarray:
    """(B,) whether a batch that is shifted fits the others clearly better than its mirror images do.

    Mirrored in random coordinates a batch keeps its moments but not its shape: if a mirror image fits as
    well, the means say nothing. A poor fit must be much better than theirs.
    """
    rng, settings = np.random.default_rng(0), run.settings
    flips = [rng.choice([-1.0, 1.0], shift.shape[1]) for _ in range(settings.mirrors)]
    fit = run.fits(shift)
    # With no coordinate mirrored it is the batch itself.
    mirrored = [run.fits(shift, flip) for flip in flips if (flip < 0).any()]
    best = np.max([np.zeros_like(fit), *mirrored], axis=0)
    clear = (fit > settings.good) | (fit > settings.clear * best)
    return np.asarray(clear & (fit > best))


def _added(parts: Iterable[Sums]) -> Sums:
    """Sums of all parts together."""
    return reduce(lambda a, b: Sums(a.mass + b.mass, a.total + b.total), parts)


def _compact(sums: Sums) -> Sums:
    """The same centres without columns that no seeding has any mass in."""
    K = int(sums.held.sum(1).max())
    order = np.argsort(~sums.held, axis=1, kind="stable")[:, :K]
    return Sums(
        np.take_along_axis(sums.mass, order, 1),
        np.take_along_axis(sums.total, order[..., None], 1),
    )


def _widened(sums: Sums, K: int) -> Sums:
    """The same centres with columns without mass, K in all."""
    more = ((0, 0), (0, K - sums.mass.shape[1]))
    return Sums(np.pad(sums.mass, more), np.pad(sums.total, (*more, (0, 0))))
