"""Groups of consensus centres, on which the compositions of batches are compared."""

from __future__ import annotations

import numpy as np

from ..kernels.arrays import Floats, Ints
from ..kernels.distances import squared_distances
from ..kernels.kmeans import kmeans
from .evidence import Evidence
from .limits import MIN_MATCHED

__all__ = ["CENTRE_GROUPS", "group_counts", "groups_of"]

#: Groups of centres at most, and rounds of the k-means that finds them.
CENTRE_GROUPS, CENTRE_GROUP_ROUNDS = 20, 10


def groups_of(found: Evidence, keep: np.ndarray, n_batches: int, seed: int) -> tuple[Ints, int]:
    """Return the group of each population in ``keep`` (a mask), and how many groups there may be.

    ``n_batches`` is the number of batches that they are of.
    """
    n_groups = int(np.clip(keep.sum() // n_batches // 3, 2, CENTRE_GROUPS))
    centres, mass = found.consensus.sums.mean[0], found.consensus.mass[0]
    C = np.where(mass[:, None] > 0, centres - np.average(centres, axis=0, weights=mass), 0.0)
    rng = np.random.default_rng(seed)
    group_means = kmeans(C.astype(np.float32), mass, n_groups, CENTRE_GROUP_ROUNDS, rng)
    return squared_distances(C, group_means).argmin(1)[found.centre[keep]], n_groups


def group_counts(found: Evidence, seed: int = 0) -> Floats:
    """(B, groups) cells of each batch in each group; NaN for batches that match no other."""
    populations = found.populations
    known = found.matched >= MIN_MATCHED
    if known.sum() < 2:
        return np.full((populations.batches.size, 1), np.nan)
    keep = known[populations.batch]
    group, n_groups = groups_of(found, keep, int(known.sum()), seed)
    counts = np.zeros((populations.batches.size, n_groups))
    np.add.at(counts, (populations.batch[keep], group), populations.n[keep])
    counts[~known] = np.nan
    return counts
