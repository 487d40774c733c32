"""The target that knows what a batch is made of: populations go to their partners in other batches."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ._distances import squared_distances
from ._threads import one_blas_thread
from ._types import Floats, Ints
from ._validate import check_number, check_whole
from .anchors import anchors_for
from .errors import BadType, BadValue
from .labels import Labels
from .matching import match, reach, rivalry
from .moments import Moments
from .populations import Populations
from .problem import Problem, Weights
from .solvers.exact import Exact
from .target import Cells, MomentTarget, Summary, Target

__all__ = ["Placement", "PopulationTarget"]

#: A population further than this from all of other batches, in units of the spacing, has no partner.
APART = 1.5
#: A population whose likeness in another batch has something in its own batch this many times closer to
#: it is not what that is like.
RIVALS = 2.5
#: A batch with partners for less than this part of its cells is alone: matching says nothing of it.
ALONE = 0.25
#: Mirror images that such a batch is compared with before its mean is trusted, and how many may fit as well.
MIRRORS, CHANCE = 100, 0.01
#: How far a batch follows its mean then: as far as the paper's procedure goes by default.
CAUTIOUS_ROUNDS = 3


@dataclass(frozen=True, eq=False)
class Placement:
    """Where populations are put, and what is known of each.

    Attributes
    ----------
    center, scale
        (P, d) the target of each: its mean goes to ``center``, its cells are scaled about it.
    partner
        (P,) whether there is anything like it in another batch.
    partnered
        (B,) the part of each batch's cells that have partners.
    by_mean
        (B,) whether the batch was alone and is put by its mean, as the paper's target does.
    """

    center: Floats
    scale: Floats
    partner: np.ndarray
    partnered: Floats
    by_mean: np.ndarray


@dataclass(frozen=True)
class PopulationTarget:
    r"""Every population to the centre of what it matches in other batches; what matches nothing stays.

    :math:`t_i = c_{bk} + r_b (z_i - \hat\mu_{bk})` for a cell of population k of batch b.

    Parameters
    ----------
    conditioned
        One adapter row per population (each cell follows those that it is close to); ``False`` is the
        paper's adapter, one row per batch, fitted to the same target.
    ridge
        Evidence that is asked of a batch before it moves: in every group of matched populations, its
        way is shortened as by a ridge of this many times the cells that would be due from it. 0 goes
        all the way.
    seed
        Of the clustering and matching, which are the same for the same seed.
    """

    conditioned: bool = True
    ridge: float = 0.2
    seed: int = 0
    default_rounds: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        check_whole("seed", self.seed)
        check_number("ridge", self.ridge)
        if not isinstance(self.conditioned, bool | np.bool_):
            raise BadType(f"Expected conditioned to be True or False, found {self.conditioned!r}.")

    def describe(
        self, cells: Cells, known: Summary | None = None, population: Labels | None = None
    ) -> Populations:
        """Look at cells: find the populations of each batch, or take those given; two passes."""
        if known is not None and not isinstance(known, Populations):
            raise BadType("Expected populations of the known batches, found moments of whole ones.")
        if population is not None:
            if known is not None and set(known.batches.tolist()) & set(
                cells.labels.batches.tolist()
            ):
                raise BadValue(
                    "Expected given populations for new batches only, found some for a batch that is "
                    "known: its cells join the populations that it has."
                )
            return Populations.given(cells.labels, population, cells.moments)
        anchors = None if known is None else known.anchors
        found = anchors_for(cells.labels, cells.sample, self.seed, anchors)
        return Populations.at(found, cells.moments(found), anchors)

    def rows(self, summary: Populations) -> Moments:
        """What the rows of the target belong to: populations, or whole batches."""
        return summary.rows if self.conditioned else summary.by_batch

    def __call__(self, summary: Populations, reference: Populations | None = None) -> Target:
        """Return the target of every row, among themselves or to a reference."""
        placed = self.place(summary, reference)
        populations, batch = summary.rows, summary.anchors.batch
        if self.conditioned:
            settled = placed.by_mean[batch]
            return Target(populations.mean, placed.center, placed.scale, settled)
        # The affine map nearest to the target of all cells of a batch that scales as the target does.
        at, whole = summary.anchors.start[:-1], summary.by_batch
        share = (populations.n / whole.n[batch])[:, None]
        move = np.add.reduceat(share * (placed.center - populations.mean), at)
        return Target(whole.mean, whole.mean + move, placed.scale[at], placed.by_mean)

    def place(self, summary: Populations, reference: Populations | None = None) -> Placement:
        """Match populations of several batches, or those of each batch alone to a reference."""
        with one_blas_thread():
            if reference is None:
                return _among(self, summary)
            parts = [
                _to(self, summary.select([batch]), reference) for batch in summary.batches.tolist()
            ]
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return Placement(*(np.concatenate(column) for column in columns))

    def _placed(
        self,
        summary: Populations,
        move: Floats,
        others: Populations,
        batch: Ints,
        X: Floats,
        width: float,
    ) -> Placement:
        """Take back the way of what has no partner, and look at the means of batches without any.

        ``X`` are all populations (sorted by ``batch``), of which those of ``summary`` come last.
        """
        rows, own, at = summary.rows, summary.anchors.batch, summary.anchors.start[:-1]
        there = X.copy()
        there[-rows.n.size :] += move
        partner = reach(there, batch, width)[-rows.n.size :] <= APART
        # Seen from where the batch as a whole goes: a type of its own must not take another's partners.
        along = X.copy()
        along[-rows.n.size :] += _medians(move, rows.n, own)[own]
        first = int(batch[-1]) + 1 - summary.batches.size
        partner &= rivalry(along, batch, first) <= RIVALS
        partnered = np.add.reduceat(partner * rows.n, at) / summary.by_batch.n
        center = rows.mean + np.where(partner[:, None], move, 0.0)
        scale, by_mean = np.ones_like(center), np.zeros(summary.batches.size, bool)
        if batch[-1] > 0:
            n = np.concatenate([others.rows.n, rows.n]) if others is not summary else rows.n
            for b in np.flatnonzero(partnered < ALONE):
                chance = _mirror_test(X, n, batch == first + b, self.seed)
                by_mean[b] = chance <= CHANCE
        if by_mean.any():
            whole = summary.by_batch
            reference = None if others is summary else others.by_batch
            stretch, shift = _by_mean(whole, reference)
            chosen = by_mean[own]
            center[chosen] = (stretch[own] * rows.mean + shift[own])[chosen]
            scale[chosen] = stretch[own][chosen]
        return Placement(center, scale, partner, partnered, by_mean)


@lru_cache(maxsize=2)
def _among(rule: PopulationTarget, summary: Populations) -> Placement:
    """Populations placed among themselves: the same for the fit, its diagnosis, and all that arrive later."""
    rows, batch = summary.rows, summary.anchors.batch
    width = _width(summary)
    move = match(rows.mean, rows.n, batch, ridge=rule.ridge, seed=rule.seed, width=width)
    return rule._placed(summary, move, summary, batch, rows.mean, width)


def _width(*parts: Populations) -> float:
    """Variance of cells about their populations' means, over all coordinates."""
    return float(sum(p.rows.m2.sum() for p in parts) / sum(p.n_cells for p in parts))


@lru_cache(maxsize=2)
def _to(rule: PopulationTarget, newcomer: Populations, reference: Populations) -> Placement:
    """One batch to populations that stay where they have been put: the same for its fit and its judgement."""
    K, B = newcomer.rows.n.size, reference.batches.size
    X = np.concatenate([_among(rule, reference).center, newcomer.rows.mean])
    n = np.concatenate([reference.rows.n, newcomer.rows.n])
    batch = np.concatenate([reference.anchors.batch, np.full(K, B)])
    still = np.arange(B + 1) < B
    width = _width(newcomer, reference)
    move = match(X, n, batch, still, ridge=rule.ridge, seed=rule.seed, width=width)[-K:]
    return rule._placed(newcomer, move, reference, batch, X, width)


def _medians(move: Floats, n: Ints, batch: Ints) -> Floats:
    """(B, d) the way of most cells of each batch: medians over populations, weighted by their cells."""
    found = np.zeros((int(batch[-1]) + 1, move.shape[1]))
    for b in range(len(found)):
        ways, weight = move[batch == b], n[batch == b]
        order = np.argsort(ways, axis=0, kind="stable")
        below = np.cumsum(weight[order], axis=0)
        middle = (below >= weight.sum() / 2.0).argmax(0)
        found[b] = np.take_along_axis(ways, order, 0)[middle, np.arange(ways.shape[1])]
    return found


def _by_mean(moments: Moments, reference: Moments | None) -> tuple[Floats, Floats]:
    """Rows of the paper's procedure with its defaults, for batches among themselves or to a reference."""
    target, weights = MomentTarget()(moments, reference), Weights()
    if reference is None:
        problem = Problem.of(moments, target, weights)
    else:
        n_batches = reference.batches.size + 1
        problem = Problem.newcomers(moments, moments.n, reference, n_batches, target, weights)
    solution = Exact().solve(problem, CAUTIOUS_ROUNDS)
    return solution.scale, solution.shift


def _mirror_test(X: Floats, n: Ints, mine: np.ndarray, seed: int) -> float:
    """Chance that a batch with its mean put on that of the others fits them no better than mirrored.

    Mirrored in random coordinates a batch keeps its moments but not its shape: if a good part of its
    mirror images lie as close to the others' populations as it does, the means say nothing.
    """
    A, others = (X[k] - np.average(X[k], axis=0, weights=n[k]) for k in (mine, ~mine))

    def misfit(A: Floats) -> float:
        D = squared_distances(A, others)
        return float(np.average(D.min(1), weights=n[mine]) + np.average(D.min(0), weights=n[~mine]))

    rng = np.random.default_rng(seed)
    signs = rng.choice([-1.0, 1.0], (MIRRORS, A.shape[1]))
    signs = signs[(signs < 0).any(1)]  # with no coordinate mirrored it is the batch itself
    mirrored = [misfit(A * sign) for sign in signs]
    return float((1 + np.sum(np.array(mirrored) <= misfit(A))) / (1 + MIRRORS))
