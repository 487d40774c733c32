"""Biological conservation as in the paper's appendix, where scib-metrics has another score or none."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from ...core.labels import Labels
from ...kernels.arrays import Floats, Ints

__all__ = ["isolated_f1", "nmi_ari"]

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
    return float(np.mean(scores)) if scores else float("nan")
