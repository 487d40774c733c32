r"""Clusters and cell types: silhouette widths, and how well clusters and neighbours find the types again.

A silhouette width is :math:`s(i) = (b(i) - a(i)) / \max\{a(i), b(i)\}`, where :math:`a(i)` is the mean
distance of cell i to the other cells of its group and :math:`b(i)` the smallest mean distance to the cells of
another group. It is 0 for the only cell of a group. The other scores are those of biological conservation in
the paper's appendix, where scib-metrics has another score or none.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import (
    adjusted_rand_score,
    normalized_mutual_info_score,
    pairwise_distances_chunked,
)
from sklearn.utils import check_random_state

from ..core.labels import Labels
from ..kernels.arrays import Floats, Ints
from .cells import embedding, mean, pairs

__all__ = ["Silhouettes", "isolated_f1", "nmi_ari", "silhouette"]

#: MiB of distances in a chunk, small enough to stay in the processor's cache.
_CHUNK = 16


def silhouette(Z: Any, labels: Any, *, max_cells: int | None = None, seed: int = 0) -> float:
    """Average silhouette width of the groups given by ``labels``, -1 to 1.

    With ``max_cells`` the score is that of so many random cells, as with ``sample_size`` of
    :func:`sklearn.metrics.silhouette_score`. NaN if there are fewer than two groups.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cell_type, batch = np.tile(["T", "B"], 50), np.repeat(["a", "b"], 50)
    >>> Z = rng.normal(size=(100, 3)) + 9.0 * (cell_type == "T")[:, None]
    >>> from scbatchprox.evaluate import silhouette
    >>> silhouette(Z, cell_type) > 0.8 > 0.1 > silhouette(Z, batch)
    True
    """
    Z = embedding(Z)
    codes = Labels.of(labels, len(Z), "label").codes
    if max_cells is not None:
        rows = check_random_state(seed).permutation(len(Z))[:max_cells]
        Z, codes = Z[rows], codes[rows]
    sums, size, own = _distance_sums(Z, codes)
    return float(_widths(sums, size, own).mean()) if size.size > 1 else float("nan")


@dataclass(frozen=True)
class Silhouettes:
    """Silhouette widths of all cells, for the three groupings that scores of integration use.

    Attributes
    ----------
    types
        Groups are cell types.
    batches
        Groups are batches.
    batches_within_types
        Groups are batches, among the cells of one type. NaN for a type that is in one batch only, or
        that has one cell in each batch.
    """

    types: Floats
    batches: Floats
    batches_within_types: Floats

    @classmethod
    def of(cls, Z: Floats, cell_type: Labels, batch: Labels) -> Silhouettes:
        """Compute all three in one pass over the distances, which are summed by type and batch."""
        n_types, n_batches = cell_type.batches.size, batch.batches.size
        pair = pairs(cell_type, batch)
        found = np.unique(pair)
        sums, size, _ = _distance_sums(Z, pair)
        types, batches = np.divmod(found, n_batches)
        within = np.full(len(Z), np.nan)
        for t in range(n_types):
            cells, columns = cell_type.codes == t, types == t
            if 1 < columns.sum() < cells.sum():
                own = np.searchsorted(found[columns], pair[cells])
                within[cells] = _widths(sums[np.ix_(cells, columns)], size[columns], own)
        return cls(
            _widths(*_merged(sums, size, types, n_types), cell_type.codes),
            _widths(*_merged(sums, size, batches, n_batches), batch.codes),
            within,
        )


def _distance_sums(Z: Floats, codes: Ints) -> tuple[Floats, Ints, Ints]:
    """Return sums of distances (cells x groups), the sizes of groups, and the group of each cell."""
    _, own, size = np.unique(codes, return_inverse=True, return_counts=True)
    order = np.argsort(own, kind="stable")
    first = np.cumsum(size) - size
    sums = np.empty((len(Z), size.size))
    # Sorted by group, so that each sum is over contiguous memory. Centred, because distances between
    # cells far from the origin lose digits.
    chunks = pairwise_distances_chunked(
        (Z - Z.mean(0))[order], working_memory=_CHUNK,
        reduce_func=lambda D, start: np.add.reduceat(D, first, axis=1),
    )  # fmt: skip
    sums[order] = np.concatenate(list(chunks))
    return sums, size, own


def _merged(sums: Floats, size: Ints, into: Ints, n: int) -> tuple[Floats, Ints]:
    """Return sums and sizes of ``n`` larger groups; ``into`` is the larger group of each group."""
    member = into[:, None] == np.arange(n)
    return sums @ member, size @ member


def _widths(sums: Floats, size: Ints, own: Ints) -> Floats:
    """Return silhouette widths from sums of distances (cells x groups)."""
    cells = np.arange(len(sums))
    a = sums[cells, own] / np.maximum(size[own] - 1, 1)
    means = sums / size
    means[cells, own] = np.inf
    b = means.min(1)
    larger = np.maximum(a, b)
    defined = (size[own] > 1) & (larger > 0) & np.isfinite(b)
    s: Floats = np.divide(b - a, larger, out=np.zeros_like(a), where=defined)
    return s


#: Number of neighbours that vote on whether a cell is of an isolated type.
_VOTERS = 15


def nmi_ari(Z: Floats, cell_type: Labels, seed: int) -> tuple[float, float]:
    r"""Agreement of k-means, with as many clusters as there are types, with the types.

    :math:`\mathrm{NMI} = 2 I(C; Y) / (H(C) + H(Y))` and the adjusted Rand index. k-means takes the best
    of ten starts. ``scib_metrics.nmi_ari_cluster_labels_kmeans`` takes one start with a fixed seed, which
    changes the score more than most refinements do (on real data with four well separated types, the NMI
    was 0.81 or 0.99 depending on the seed).
    """
    with warnings.catch_warnings():
        # With fewer distinct cells than types there are fewer clusters, and the score is still defined.
        warnings.simplefilter("ignore", ConvergenceWarning)
        clusters = KMeans(cell_type.batches.size, n_init=10, random_state=seed).fit_predict(Z)
    types = cell_type.codes
    nmi = normalized_mutual_info_score(types, clusters, average_method="arithmetic")
    return float(nmi), float(adjusted_rand_score(types, clusters))


def isolated_f1(near: Ints, cell_type: Labels, batch: Labels) -> float:
    """Mean F1 of the isolated types, each found by a vote among nearest neighbours.

    As in scIB, isolated types are those in the fewest batches (all types, if all are in equally many). A
    cell is predicted to be of type c if more than half of its ``min(15, n_c - 1)`` nearest neighbours are:
    the paper's "precision and recall based on neighborhood consistency". scIB takes the F1 of the best of
    many clusterings, and scib-metrics has a silhouette width instead. A type with one cell has no
    neighbourhood and is left out. NaN if no type remains.
    """
    types = cell_type.codes
    present = np.zeros((cell_type.batches.size, batch.batches.size), bool)
    present[types, batch.codes] = True
    n_batches = present.sum(1)
    scores = []
    for c in np.flatnonzero((n_batches == n_batches.min()) & (cell_type.n > 1)):
        k = min(_VOTERS, int(cell_type.n[c]) - 1, near.shape[1])
        predicted = (types[near[:, :k]] == c).sum(1) > k / 2
        truth = types == c
        scores.append(2 * (predicted & truth).sum() / (predicted.sum() + truth.sum()))
    return mean(scores)
