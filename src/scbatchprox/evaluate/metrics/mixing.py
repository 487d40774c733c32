"""Removal of batch effects as in the paper's appendix, where scib-metrics has another score or none."""

from __future__ import annotations

import numpy as np
from scipy.stats import chi2

from ...core.labels import Labels
from ...kernels.arrays import Floats
from .cells import Cells
from .neighbours import Neighbours
from .silhouettes import Silhouettes

__all__ = ["asw_batch", "asw_batch_scib", "batch_variance", "kbet"]

#: Significance level of the test.
_ALPHA = 0.05
#: Types with fewer cells are not tested.
_TESTABLE = 10


def asw_batch(silhouettes: Silhouettes) -> float:
    r"""Batch ASW of the paper's appendix: :math:`1 - |s(i)|` of batch labels, averaged over all cells.

    If batches hold different cell types, these count as a batch effect; :func:`asw_batch_scib` scores one
    type at a time. scib-metrics now recommends BRAS, another quantity (cosine distances, all other batches
    instead of the nearest).
    """
    return float(1 - np.abs(silhouettes.batches).mean())


def asw_batch_scib(silhouettes: Silhouettes, cell_type: Labels) -> float:
    """Batch ASW of scIB: within each type, averaged over its cells, then over types.

    Equal to ``scib_metrics.silhouette_batch``, which compiles again for every type and takes half a minute;
    here the score comes from the same pass as the other silhouette widths. Types in one batch are left out.
    NaN if no type remains.
    """
    absolute = np.abs(silhouettes.batches_within_types)
    defined = ~np.isnan(absolute)
    types = cell_type.codes[defined]
    n = np.bincount(types)
    total = np.bincount(types, absolute[defined])
    return float(1 - (total[n > 0] / n[n > 0]).mean()) if n.any() else float("nan")


def kbet(cells: Cells) -> float:
    r"""KBET per label: the share of neighbourhoods with the same batch frequencies as the whole type.

    For each type, every cell and its k nearest cells *of that type* are tested against the type's
    batch frequencies :math:`f_b`: with :math:`O_b` cells of batch b among :math:`m = k + 1`,
    :math:`\sum_b (O_b - m f_b)^2 / (m f_b)` is compared with the chi-squared distribution of
    :math:`B - 1` degrees of freedom at the 5 % level. As in scIB, k is a
    quarter of the type's mean number of cells per batch, between 10 and 70. Accepted shares are averaged
    over types. Types in one batch, or with fewer than ten cells, are left out, as in scIB. NaN if no type
    remains.

    The test is that of ``scib_metrics.kbet``. ``scib_metrics.kbet_per_label`` finds neighbours in a
    diffusion map of the neighbourhood graph, because some methods in scIB return only a graph; here, as in
    the paper, they are neighbours in the embedding.
    """
    accepted = []
    for t in range(cells.cell_type.batches.size):
        rows = np.flatnonzero(cells.cell_type.codes == t)
        _, batch, n = np.unique(cells.batch.codes[rows], return_inverse=True, return_counts=True)
        if rows.size < _TESTABLE or n.size < 2:
            continue
        k = min(70, max(10, int(n.mean() / 4)))
        near = Neighbours.of(cells.Z[rows], k).indices
        near = np.column_stack([np.arange(rows.size), near])
        observed = np.stack([(batch[near] == b).sum(1) for b in range(n.size)], axis=1)
        expected = near.shape[1] * n / rows.size
        statistic = ((observed - expected) ** 2 / expected).sum(1)
        accepted.append((chi2.sf(statistic, n.size - 1) >= _ALPHA).mean())
    return float(np.mean(accepted)) if accepted else float("nan")


def batch_variance(Z: Floats, batch: Labels) -> float:
    r"""Share of the variance of an embedding that its batches explain (PCR), 0 to 1.

    The :math:`R^2` of regressing each principal component on the batch, averaged with the components'
    variances as weights (``scib_metrics.utils.principal_component_regression``). This
    weighted mean is the sum of squares between batches divided by the total sum of squares, for any axes.
    So no decomposition is needed, and a constant coordinate does not divide by zero. The result is 0 for an
    embedding without variance.
    """
    centred = Z - Z.mean(0)
    sums = np.zeros((batch.batches.size, Z.shape[1]))
    np.add.at(sums, batch.codes, centred)
    between = float((sums**2 / batch.n[:, None]).sum())
    total = float((centred**2).sum())
    return between / total if total > 0 else 0.0
