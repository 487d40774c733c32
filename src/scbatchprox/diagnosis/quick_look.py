"""Whether batches differ in composition, at a glance: what a refinement can afford to look at every time.

:func:`scbatchprox.diagnose` finds populations in each batch and registers them. Here all batches are
clustered at once, in a small sample, while they shift towards each other: from where they are, and from
where the moment target brings them. Of these ways to lay batches on top of each other the one counts under
which they are most alike: what a batch effect can explain is no difference in composition.
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
from ..targets.population.consensus import squares

__all__ = ["QuickLook", "quick_composition", "quick_look", "quick_most"]

#: Cells in all, and of each batch at least and at most.
CELLS, FEWEST, MOST = 6000, 60, 1000
#: Batches that are looked at, the largest ones: with more, the look would cost more than the refinement.
BATCHES = CELLS // FEWEST
#: Batches of fewer cells have no composition to speak of.
FEW = 20
#: Clusters that batches are brought together by, and groups of them that compositions are compared on: what
#: is left of a batch effect may move cells to the cluster next to theirs, which is mostly of the same group.
CLUSTERS, GROUPS, GROUP_ROUNDS = 24, 12, 10
#: Rounds of k-means, and rounds in which batches shift as well.
STILL, SHIFTING = 5, 4
#: How fast a pull fades with its length in units of the spread of clusters, as in the population target.
POWER = 2.0
#: Standard deviations of what chance explains that are put down to it as well: there may be many batches.
SURE = 3.0
#: Weight of staying where it is, of a batch whose weights add up to at most 1.
STAY = 1e-3
#: The least square of a length.
TINY = 1e-12
#: A batch is stretched to the usual spread by at most this factor.
STRETCH = 1e3
#: Cells that first centres are drawn from, and cells for each cluster below which clusters explain noise.
SEEDED, FILLED = 2000, 20


@dataclass(frozen=True, eq=False)
class QuickLook:
    """What a glance at batches shows.

    Attributes
    ----------
    composition
        (B,) how different the make-up of each batch is from that of all others: 0 (the same) to 1 (nothing in
        common), beyond what chance explains; NaN where that is unknown.
    distinct
        Part of the variance that is between clusters, once batches lie on top of each other; NaN where there
        are too few cells to tell.
    """

    composition: Floats
    distinct: float


def quick_most(n_cells: Ints) -> Ints:
    """(B,) how many cells to look at, of batches of so many: of at most ``BATCHES`` of them."""
    n = np.asarray(n_cells, np.int64)
    most = np.minimum(n, int(np.clip(CELLS // max(n.size, 1), FEWEST, MOST)))
    if n.size > BATCHES:
        most[np.argsort(-n, kind="stable")[BATCHES:]] = 0
    return most


def quick_look(cells: Cells, moments: Moments, seed: int = 0) -> QuickLook:
    """Look at cells, wherever they are; ``moments`` of all of them, one row per batch of theirs."""
    labels = cells.labels
    if labels.batches.size < 2:
        return QuickLook(np.full(labels.batches.size, np.nan), np.nan)
    sample = cells.small_sample(quick_most(labels.n), seed)
    return quick_composition(sample.cells, sample.labels.codes, labels.batches.size, moments, seed)


def quick_composition(
    cells: Any,
    codes: np.ndarray,
    n_batches: int,
    moments: Moments | None = None,
    seed: int = 0,
) -> QuickLook:
    """Compare the compositions of batches.

    Parameters
    ----------
    cells, codes
        (m, d) some cells of each batch, about as many as :func:`quick_most` says, and (m,) their batches.
        Their order has no part in the result.
    n_batches
        How many batches there are; one of which there are few cells is unknown.
    moments
        Of all cells of these batches, as a fit knows them: means of the sample alone differ by chance.
    seed
        Of the first centres.
    """
    unknown = QuickLook(np.full(n_batches, np.nan), np.nan)
    n = np.bincount(codes, minlength=n_batches)
    held = n >= FEW
    if held.sum() < 2:
        return unknown
    keep = held[codes]
    codes = (np.cumsum(held) - 1)[codes[keep]]
    X = np.asarray(cells.toarray() if hasattr(cells, "toarray") else cells)[keep]
    X = X.astype(np.float64)
    origin = X.mean(0)
    X -= origin
    size = np.abs(X).max()
    if not 0.0 < size < np.inf:
        return unknown
    X /= size  # neither large nor small numbers leave what float32 can hold
    if moments is None:
        counts = n[held].astype(np.float64)
        mean = _sums(X, codes, counts.size) / counts[:, None]
        variance = _sums((X - mean[codes]) ** 2, codes, counts.size) / counts[:, None]
    else:
        counts = moments.n[held].astype(np.float64)
        mean = (moments.mean[held] - origin) / size
        variance = moments.m2[held] / counts[:, None] / size / size
    # In their order along some direction: unlike the order that they came in it does not depend on anything
    # but the cells, and hardly on the units of the coordinates.
    along = np.einsum("ij,j->i", X, np.random.default_rng(seed).normal(size=X.shape[1]))
    line = np.argsort(along, kind="stable")
    x, codes = X[line].astype(np.float32), codes[line]
    with one_numpy_thread():
        matched = _matched(x, codes, counts, mean, variance)
        runs = [_Run(start, codes, n[held], seed).go() for start in (x, matched)]
    # The one under which batches are most alike: they differ as much as they must.
    best = min((state for run in runs for state in run), key=lambda state: state.composition.mean())
    composition = np.full(n_batches, np.nan)
    composition[held] = best.composition
    return QuickLook(composition, best.distinct)


def _matched(x: np.ndarray, codes: np.ndarray, n: Floats, mean: Floats, variance: Floats) -> Any:
    """Cells with the same mean and variance in every batch: what the moment target aims at.

    Spreads of a few cells differ by chance: batches are stretched by what is beyond it.
    """
    usual, own = np.sqrt(np.average(variance, axis=0, weights=n)), np.sqrt(variance)
    least = np.maximum(usual / STRETCH, np.finfo(np.float32).tiny)
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
    """Clusters of all batches together, and the batches as they shift towards each other."""

    def __init__(self, x: np.ndarray, codes: np.ndarray, n: Ints, seed: int) -> None:
        self.x, self.codes, self.seed = x.copy(), codes, seed
        self.n = n.astype(np.float32)[:, None]
        some = x[:: -(-len(x) // SEEDED)]
        draws = np.random.default_rng(seed).random(CLUSTERS)
        self.centres = some[plus_plus(some, np.ones(len(some)), draws)]
        # Memory that is used again: fresh memory costs more than the product.
        self._scores = np.empty((len(x), len(self.centres)), np.float32)

    def go(self) -> list[QuickLook]:
        """What is seen before batches shift, and after."""
        for _ in range(STILL):
            self._gather()
        before = QuickLook(self._compared(), self._distinct())
        for _ in range(SHIFTING):
            self._shift()
            self._gather()
        return [before, QuickLook(self._compared(), self._distinct())]

    def _compared(self) -> Floats:
        """(B,) total variation between a batch's make-up and that of others, less what chance explains."""
        held = self.mass.astype(np.float64) @ self._groups()
        of_batch, share = held.sum(1, keepdims=True), held.sum(0) / held.sum()
        of_rest = of_batch.sum() - of_batch
        apart = np.abs(held / of_batch - (held.sum(0) - held) / of_rest).sum(1) / 2.0
        # Differences are nearly normal: means and variances of their absolute values.
        variance = share * (1.0 - share) * (1.0 / of_batch + 1.0 / of_rest)
        chance = np.sqrt(variance * 2.0 / np.pi).sum(1) / 2.0
        chance += SURE * np.sqrt(variance.sum(1) * (1.0 - 2.0 / np.pi)) / 2.0
        return np.asarray(np.sqrt(np.maximum(apart**2 - chance**2, 0.0)))

    def _distinct(self) -> float:
        """Part of the variance that is between clusters, if these have cells enough."""
        if len(self.x) < FILLED * CLUSTERS:
            return np.nan
        mass, mean = self.mass.sum(0), self.total.sum((0, 1)) / len(self.x)
        about = self.x - mean
        total = float(np.einsum("ij,ij->", about, about))
        between = float(mass @ ((self.centres - mean) ** 2).sum(1))
        return between / total if total > 0 else np.nan

    def _groups(self) -> Floats:
        """(K, G) which clusters are of which group."""
        mass = self.mass.sum(0).astype(np.float64)
        C = self.centres - np.average(self.centres, axis=0, weights=mass)
        rng = np.random.default_rng(self.seed)
        joint = kmeans(C.astype(np.float32), mass, GROUPS, GROUP_ROUNDS, rng)
        return np.asarray(np.eye(len(joint))[squared_distances(C, joint).argmin(1)])

    def _gather(self) -> None:
        """A round of k-means: (B, K) cells and (B, K, d) sums of each batch in each cluster."""
        B, (K, d) = len(self.n), self.centres.shape
        np.matmul(self.x, self.centres.T, out=self._scores)
        self._scores -= 0.5 * np.einsum("kd,kd->k", self.centres, self.centres)
        group = self.codes * K + self._scores.argmax(1)
        self.mass = np.bincount(group, minlength=B * K).reshape(B, K).astype(np.float32)
        self.total = _sums(self.x, group, B * K).reshape(B, K, d)
        mass = self.mass.sum(0)[:, None]
        # A cluster without any cell stays where it is.
        means = self.total.sum(0) / np.maximum(mass, 1.0)
        self.centres = np.where(mass > 0, means, self.centres)

    def _shift(self) -> None:
        """Each batch follows its clusters to the nearest ones of all others, the near ones above all."""
        (B, K), mass, total = self.mass.shape, self.mass.sum(0), self.total.sum(0)
        rest = mass - self.mass
        others = (total - self.total) / np.maximum(rest, 1.0)[..., None]
        own = self.total / np.maximum(self.mass, 1.0)[..., None]
        # A cluster may be a batch's own only because it lies a little beside that of the others.
        far = np.where(rest[:, None] > 0, squares(own, others), np.inf)
        nearest = far.argmin(2)
        at = (np.arange(B)[:, None], nearest)
        squared = float(np.einsum("ij,ij->", self.x, self.x))
        between = float(((total**2).sum(1) / np.maximum(mass, 1.0)).sum())
        unit = max((squared - between) / len(self.x), TINY)
        weight = np.minimum(self.mass / self.n, rest[at] / rest.sum(1, keepdims=True))
        weight *= (1.0 + far[(*np.ogrid[:B, :K], nearest)] / unit) ** -POWER
        pull = others[at] - own
        step = np.einsum("bk,bkd->bd", weight, pull) / (weight.sum(1, keepdims=True) + STAY)
        self.x += step[self.codes]
