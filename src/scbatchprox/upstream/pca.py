r"""A fixed PCA: it is fitted once to the first batches, and later counts are projected with it.

A cell with counts :math:`x_g` gets the coordinates

.. math::

    z_k = \sum_{g \in P \cap S} \bigl(\log(1 + 10^4\, x_g / t) - m_g\bigr)\, V_{gk}, \qquad
    t = \sum_{g \in G \cap S} x_g \Big/ \sum_{g \in G \cap S} s_g,

with all genes :math:`G` of the reference, the genes of the PCA :math:`P \subseteq G`, their means :math:`m`
and loadings :math:`V`, the mean share :math:`s` of each gene in a cell's counts, and the genes :math:`S` in
the new data. A missing gene is set to its mean, so it adds nothing.

The total :math:`t` is over :math:`G`, the genes measured in the reference. It is not over all genes of the
new data, nor over :math:`P`. So the cells of the reference get the same coordinates again (the shares sum to
one), and spike-ins or a larger annotation change nothing. If genes are missing, the total is corrected by
the share of counts that they have in the reference; otherwise all other genes would seem higher.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import anndata as ad
import numpy as np

from ..errors import BadValue
from ..io.store import Stored
from ..kernels.arrays import Floats, Ints
from .base import Upstream, digest
from .components import N_COMPONENTS, N_HVGS, TARGET_SUM, log_normalised, principal_components
from .counts import Counts, totals_of
from .genes import MIN_SHARED, GeneReport, check_distinct, positions, require_shared
from .sums import chosen_genes

__all__ = ["PCAUpstream"]

_TENSORS = ("share", "used", "mean", "loadings", "variance")


@dataclass(frozen=True, eq=False, repr=False)
class PCAUpstream(Upstream):
    """A fixed PCA of log-normalised counts.

    Attributes
    ----------
    genes
        (G,) names of all genes of the reference.
    share
        (G,) share of each gene in the counts of a cell, averaged over cells.
    used
        (P,) positions in ``genes`` of the genes of the PCA.
    mean, loadings, variance
        (P,), (P, K) and (K,) as of :class:`~scbatchprox.upstream.components.Axes`.

    Examples
    --------
    >>> from scbatchprox.demo import simulate
    >>> from scbatchprox.upstream import PCAUpstream
    >>> cells = simulate("balanced2", n_genes=200, n_components=5)
    >>> first = PCAUpstream.fit(cells[cells.obs["batch"] == "batch0"], n_components=10)
    >>> later = first.embed(cells[cells.obs["batch"] == "batch1", 20:])
    >>> later.Z.shape[1], len(later.report.missing)
    (10, 20)
    """

    genes: np.ndarray
    share: Floats
    used: Ints
    mean: Floats
    loadings: Floats
    variance: Floats

    method: ClassVar[str] = "pca"
    title: ClassVar[str] = "PCA"

    def __post_init__(self) -> None:
        n, k = self.loadings.shape
        shapes = {"share": self.genes.shape, "used": (n,), "mean": (n,), "variance": (k,)}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise BadValue(
                    f"Expected {name} of shape {shape}, found {getattr(self, name).shape}."
                )

    @classmethod
    def fit(
        cls,
        adata: ad.AnnData,
        *,
        n_components: int = N_COMPONENTS,
        n_hvgs: int = N_HVGS,
        genes: str = "scanpy",
        layer: str | None = None,
        fractional: bool = False,
    ) -> Self:
        """Fit to the counts of the first batches, which are read into memory.

        Parameters
        ----------
        adata, layer, fractional
            As for :meth:`embed`.
        n_components
            Number of coordinates (paper: 40).
        n_hvgs, genes
            Genes to embed with: the ``n_hvgs`` most variable ones, as ``"scanpy"`` chooses them by default
            (paper: 2,500), those ``"flagged"`` in ``var["highly_variable"]``, or ``"all"``.
        """
        source = Counts.of(adata, layer, fractional=fractional)
        check_distinct(source.genes)
        counts = source.in_memory()
        totals = totals_of(counts, np.ones(counts.shape[1]))
        used = chosen_genes(genes, n_hvgs, replace(source, rows=counts))
        _, axes = principal_components(log_normalised(counts[:, used], totals), n_components)
        share = (counts.T @ (1.0 / totals)) / len(totals)
        return cls(source.genes, share, used, *axes)

    @property
    def fingerprint(self) -> str:
        """Checksum over the genes, the arrays and the preprocessing."""
        arrays, _ = self._content()
        return digest(self.method, arrays, [self.genes.tolist(), TARGET_SUM])

    @property
    def n_dims(self) -> int:
        """The number of coordinates."""
        return int(self.loadings.shape[1])

    @property
    def n_genes(self) -> int:
        """The number of genes used for the embedding."""
        return self.used.size

    @property
    def weight(self) -> Floats:
        r"""(P,) share of each gene in the variance of the embedding, :math:`\sum_k \lambda_k V_{gk}^2`."""
        weight: Floats = self.loadings**2 @ self.variance / self.variance.sum()
        return weight

    def mapped(
        self, counts: Counts, min_shared: float = MIN_SHARED
    ) -> tuple[GeneReport, Iterator[tuple[int, np.ndarray]]]:
        """Return the missing genes, and an iterator over blocks: first row, coordinates."""
        at = positions(self.genes, counts.genes)
        here = at >= 0
        present = here[self.used]
        require_shared(self.genes[self.used], counts.genes, present, self.weight, min_shared)
        report = GeneReport(
            n_genes=self.used.size,
            missing=tuple(self.genes[self.used][~present].tolist()),
            filled_with="their means in the reference",
            weight_lost=float(self.weight[~present].sum()),
            counts_lost=float(self.share[~here].sum()),
        )
        return report, self._projected(counts, at, present)

    def _projected(
        self, counts: Counts, at: np.ndarray, present: np.ndarray
    ) -> Iterator[tuple[int, np.ndarray]]:
        here = at >= 0
        # Exactly 1 if no gene is missing: the sum of the shares may differ from 1 by rounding.
        known = 1.0 if here.all() else float(self.share[here].sum())
        loadings = np.ascontiguousarray(self.loadings[present])
        centre = self.mean[present] @ loadings
        for lo, chosen, totals in counts.chosen(at[self.used][present], at[here]):
            Z = log_normalised(chosen, totals / known) @ loadings - centre
            yield lo, Z.astype(np.float32)

    def _content(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {name: getattr(self, name) for name in _TENSORS}, {"target_sum": TARGET_SUM}

    @classmethod
    def _of(cls, genes: np.ndarray, stored: Stored) -> Self:
        return cls(genes, *(stored.tensors[name] for name in _TENSORS))
