"""A quick look at whether batches differ in composition, cheap enough for every refinement.

:func:`scbatchprox.diagnose` finds populations in each batch and registers them. Here a small sample of all
batches is clustered at once, while the batches shift towards each other. They start from their own
positions, and from those that the moment target aims at. Of these alignments the one with the most similar
compositions counts, because a difference that a batch effect can explain is not one of composition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..core.moments import Moments
from ..core.target import Cells
from ..kernels.arrays import Floats, Ints
from ..kernels.distances import squared_distances
from ..kernels.kmeans import kmeans, plus_plus
from ..kernels.threads import one_numpy_thread
from ..targets.population.meeting import squares
from .limits import MIN_CELLS

__all__ = ["QuickLook", "quick_composition", "quick_look", "quick_sample_sizes"]

#: Cells in the sample of all batches, and the fewest and most cells in that of one batch.
MAX_CELLS, MIN_PER_BATCH, MAX_PER_BATCH = 6000, 60, 1000
#: Only this many batches are compared, the largest ones: more would take longer than the refinement.
MAX_BATCHES = MAX_CELLS // MIN_PER_BATCH
#: Clusters that align batches, and groups of clusters on which compositions are compared, with the rounds of
#: k-means that find them. The rest of a batch effect may put cells into a cluster next to the right one,
#: which is usually in the same group.
CLUSTERS, CLUSTER_GROUPS, CLUSTER_GROUP_ROUNDS = 24, 12, 10
#: Rounds of k-means with fixed batches, then with batches that shift.
FIXED_ROUNDS, SHIFT_ROUNDS = 5, 4
#: A pull has weight (1 + squared length) ** -PULL_POWER, in units of the variance within clusters.
PULL_POWER = 2.0
#: Chance explains its mean plus this many standard deviations, because there may be many batches.
CHANCE_SDS = 3.0
#: Weight of a zero shift, where all other weights of a batch add up to at most 1.
ZERO_WEIGHT = 1e-3
#: Variances within clusters are at least this large.
MIN_VARIANCE = 1e-12
#: The largest factor by which a batch is scaled to the mean spread.
MAX_STRETCH = 1e3
#: Cells from which the first centres are drawn.
SEED_CELLS = 2000
#: With fewer cells per cluster, clusters explain noise.
MIN_PER_CLUSTER = 20


@dataclass(frozen=True, eq=False)
class QuickLook:
    """The result of a quick look.

    Attributes
    ----------
    composition
        (B,) how different the composition of each batch is from that of all others: 0 (equal) to 1
        (disjoint), beyond what chance explains; NaN where that is unknown.
    distinct
        Part of the variance that is between clusters, after batches were aligned; NaN where there are too
        few cells.
    """

    composition: Floats
    distinct: float


def quick_sample_sizes(n_cells: Ints) -> Ints:
    """(B,) number of cells to sample from batches of ``n_cells``; zero beyond ``MAX_BATCHES`` batches."""
    n = np.asarray(n_cells, np.int64)
    most = np.minimum(n, int(np.clip(MAX_CELLS // max(n.size, 1), MIN_PER_BATCH, MAX_PER_BATCH)))
    if n.size > MAX_BATCHES:
        most[np.argsort(-n, kind="stable")[MAX_BATCHES:]] = 0
    return most


def quick_look(cells: Cells, moments: Moments, seed: int = 0) -> QuickLook:
    """Compare the compositions of batches on a sample; ``moments`` of all cells, one row per batch."""
    labels = cells.labels
    if labels.batches.size < 2:
        return QuickLook(np.full(labels.batches.size, np.nan), np.nan)
    sample = cells.small_sample(quick_sample_sizes(labels.n), seed)
    return quick_composition(sample.cells, sample.labels.codes, moments, seed)


def quick_composition(
    cells: Any,
    codes: np.ndarray,
    moments: Moments,
    seed: int = 0,
) -> QuickLook:
    """Compare the compositions of batches on some of their cells.

    Parameters
    ----------
    cells, codes
        (m, d) a sample of each batch, with about :func:`quick_sample_sizes` cells, and (m,) their batches.
        Their order does not change the result.
    moments
        Moments of all cells, one row per batch: those of the sample differ by chance.
    seed
        Seed of the first centres.
    """
    n_batches = moments.batches.size
    unknown = QuickLook(np.full(n_batches, np.nan), np.nan)
    n = np.bincount(codes, minlength=n_batches)
    known = n >= MIN_CELLS
    if known.sum() < 2:
        return unknown
    keep = known[codes]
    codes = (np.cumsum(known) - 1)[codes[keep]]
    X = np.asarray(cells.toarray() if hasattr(cells, "toarray") else cells)[keep]
    X = X.astype(np.float64)
    origin = X.mean(0)
    X -= origin
    size = np.abs(X).max()
    if not 0.0 < size < np.inf:
        return unknown
    X /= size  # so that float32 can hold all numbers
    counts = moments.n[known].astype(np.float64)
    mean = (moments.mean[known] - origin) / size
    variance = moments.m2[known] / counts[:, None] / size / size
    # Sorted along a direction, so that the result depends only on the cells, not on their order in the input,
    # and hardly on the units of the coordinates.
    along = np.einsum("ij,j->i", X, np.random.default_rng(seed).normal(size=X.shape[1]))
    line = np.argsort(along, kind="stable")
    x, codes = X[line].astype(np.float32), codes[line]
    with one_numpy_thread():
        equalised = _equalised(x, codes, counts, mean, variance)
        runs = [_Run(start, codes, n[known], seed).compare() for start in (x, equalised)]
    # The alignment with the most similar compositions: it shows the difference that no shift explains.
    best = min((look for run in runs for look in run), key=lambda look: look.composition.mean())
    composition = np.full(n_batches, np.nan)
    composition[known] = best.composition
    return QuickLook(composition, best.distinct)


def _equalised(x: np.ndarray, codes: np.ndarray, n: Floats, mean: Floats, variance: Floats) -> Any:
    """Cells with the same mean and variance in every batch: what the moment target aims at.

    Spreads of a few cells differ by chance. Batches are scaled only by the part beyond chance.
    """
    usual, own = np.sqrt(np.average(variance, axis=0, weights=n)), np.sqrt(variance)
    least = np.maximum(usual / MAX_STRETCH, np.finfo(np.float32).tiny)
    stretch = np.log(np.maximum(usual, least) / np.maximum(own, least))
    chance = 0.5 / n[:, None]  # the variance of a logarithm of a standard deviation
    beyond = 1.0 - chance / np.maximum((stretch**2).mean(1, keepdims=True), chance)
    factor = np.exp(beyond * stretch).astype(np.float32)
    return (x - mean.astype(np.float32)[codes]) * factor[codes]


def _sums(x: np.ndarray, group: np.ndarray, groups: int) -> np.ndarray:
    """(groups, d) sums of the rows of each group."""
    edges = np.arange(len(x) + 1, dtype=np.int32)
    ones = np.ones(len(x), x.dtype)
    belongs = sp.csc_array((ones, group.astype(np.int32), edges), shape=(groups, len(x)))
    return np.asarray(belongs @ x)


class _Run:
    """Clusters of all batches together, while the batches shift towards each other."""

    def __init__(self, x: np.ndarray, codes: np.ndarray, n: Ints, seed: int) -> None:
        self.x, self.codes, self.seed = x.copy(), codes, seed
        self.n = n.astype(np.float32)[:, None]
        some = x[:: -(-len(x) // SEED_CELLS)]
        draws = np.random.default_rng(seed).random(CLUSTERS)
        self.centres = some[plus_plus(some, np.ones(len(some)), draws)]
        # Allocated once: an allocation takes longer than the product.
        self._scores = np.empty((len(x), len(self.centres)), np.float32)

    def compare(self) -> list[QuickLook]:
        """Return the results before and after batches shift."""
        for _ in range(FIXED_ROUNDS):
            self._assign()
        before = QuickLook(self._composition(), self._distinct())
        for _ in range(SHIFT_ROUNDS):
            self._shift()
            self._assign()
        return [before, QuickLook(self._composition(), self._distinct())]

    def _composition(self) -> Floats:
        """(B,) total variation between the shares of a batch and of all others, minus chance."""
        counts = self.mass.astype(np.float64) @ self._groups()
        of_batch, share = counts.sum(1, keepdims=True), counts.sum(0) / counts.sum()
        of_rest = of_batch.sum() - of_batch
        total = np.abs(counts / of_batch - (counts.sum(0) - counts) / of_rest).sum(1) / 2.0
        # Differences are nearly normal: mean and variance of their absolute values.
        variance = share * (1.0 - share) * (1.0 / of_batch + 1.0 / of_rest)
        chance = np.sqrt(variance * 2.0 / np.pi).sum(1) / 2.0
        chance += CHANCE_SDS * np.sqrt(variance.sum(1) * (1.0 - 2.0 / np.pi)) / 2.0
        return np.asarray(np.sqrt(np.maximum(total**2 - chance**2, 0.0)))

    def _distinct(self) -> float:
        """Part of the variance that is between clusters; NaN if these have too few cells."""
        if len(self.x) < MIN_PER_CLUSTER * CLUSTERS:
            return np.nan
        mass, mean = self.mass.sum(0), self.total.sum((0, 1)) / len(self.x)
        about = self.x - mean
        total = float(np.einsum("ij,ij->", about, about))
        between = float(mass @ ((self.centres - mean) ** 2).sum(1))
        return between / total if total > 0 else np.nan

    def _groups(self) -> Floats:
        """(K, G) one-hot: the group of each cluster."""
        mass = self.mass.sum(0).astype(np.float64)
        C = self.centres - np.average(self.centres, axis=0, weights=mass)
        rng = np.random.default_rng(self.seed)
        groups = kmeans(C.astype(np.float32), mass, CLUSTER_GROUPS, CLUSTER_GROUP_ROUNDS, rng)
        return np.asarray(np.eye(len(groups))[squared_distances(C, groups).argmin(1)])

    def _assign(self) -> None:
        """Run a round of k-means, with (B, K) counts and (B, K, d) sums of each batch in each cluster."""
        B, (K, d) = len(self.n), self.centres.shape
        np.matmul(self.x, self.centres.T, out=self._scores)
        self._scores -= 0.5 * np.einsum("kd,kd->k", self.centres, self.centres)
        group = self.codes * K + self._scores.argmax(1)
        self.mass = np.bincount(group, minlength=B * K).reshape(B, K).astype(np.float32)
        self.total = _sums(self.x, group, B * K).reshape(B, K, d)
        mass = self.mass.sum(0)[:, None]
        # A cluster without cells keeps its centre.
        means = self.total.sum(0) / np.maximum(mass, 1.0)
        self.centres = np.where(mass > 0, means, self.centres)

    def _shift(self) -> None:
        """Shift each batch so that its clusters approach the nearest ones of all other batches."""
        (B, K), mass, total = self.mass.shape, self.mass.sum(0), self.total.sum(0)
        rest = mass - self.mass
        others = (total - self.total) / np.maximum(rest, 1.0)[..., None]
        own = self.total / np.maximum(self.mass, 1.0)[..., None]
        # The nearest, not the same: a batch effect may put a type of this batch into a cluster of its own.
        far = np.where(rest[:, None] > 0, squares(own, others), np.inf)
        nearest = far.argmin(2)
        at = (np.arange(B)[:, None], nearest)
        squared = float(np.einsum("ij,ij->", self.x, self.x))
        between = float(((total**2).sum(1) / np.maximum(mass, 1.0)).sum())
        unit = max((squared - between) / len(self.x), MIN_VARIANCE)
        weight = np.minimum(self.mass / self.n, rest[at] / rest.sum(1, keepdims=True))
        weight *= (1.0 + far[(*np.ogrid[:B, :K], nearest)] / unit) ** -PULL_POWER
        pull = others[at] - own
        step = np.einsum("bk,bkd->bd", weight, pull) / (weight.sum(1, keepdims=True) + ZERO_WEIGHT)
        self.x += step[self.codes]
