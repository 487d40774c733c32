r"""A PCA of the counts of all sites, from two sums.

The first sum is that of :mod:`.genes`: it gives the genes, the number of cells, and the share of each gene.
In the second, a site adds :math:`\sum x` and :math:`\sum x x^\top` of its cells, with the log-normalised
counts x of the chosen genes. The axes are eigenvectors of the covariance; every site computes them itself.

With fewer cells than genes the products span the cells, and a gene with a count in one cell only reveals
that cell. Both are known after the first sum, and refused before the second. A site can subtract its own
part, so it also refuses if this is true of the cells of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ...core.checks import some_of
from ...core.moments import Pooled
from ...errors import BadValue, Parameter
from ...kernels.arrays import Floats, Ints
from ...progress import Progress, silent
from ...upstream.components import (
    N_COMPONENTS,
    N_HVGS,
    TARGET_SUM,
    check_components,
    principal_axes,
)
from ...upstream.counts import Counts
from ...upstream.genes import positions
from ...upstream.pca import PCAUpstream
from ...upstream.sums import GeneSums, cross_products, require_all
from ..fixed import Fixed
from ..rounds import AddUp
from .genes import MIN_CELLS, Later, gene_hash, gene_list, gene_sums, genes

__all__ = ["MOST_GENES", "SharedPCA", "check_published", "pca", "products_format"]

#: Genes of a PCA, at most: their products are 256 MB.
MOST_GENES = 8000
#: Cells of other sites with a count of a gene, at least, if there are any: fewer are close to a single cell.
FEWEST = 5
#: The largest log-normalised count: that of a cell with counts of one gene only.
LARGEST = math.log1p(TARGET_SUM)
#: Largest difference of scores, as a share of a component's spread, between two computations of the same PCA.
SAME = 1e-6


@dataclass(frozen=True, eq=False)
class SharedPCA:
    """A PCA of the cells of all sites.

    Attributes
    ----------
    upstream
        The PCA, to be saved, published and applied at every site.
    pooled
        Moments of the coordinates of all cells: all that the moment target needs of other sites.
    """

    upstream: PCAUpstream
    pooled: Pooled


def pca(
    own: Counts,
    names: np.ndarray,
    add_up: AddUp,
    *,
    n_components: int = N_COMPONENTS,
    n_hvgs: int = N_HVGS,
    chosen: Iterable[str] | None = None,
    min_cells: int = MIN_CELLS,
    progress: Progress = silent,
) -> SharedPCA:
    """The PCA of all sites together, two rounds.

    Parameters
    ----------
    own, names, add_up, n_hvgs, min_cells
        As of :func:`.genes.genes`.
    n_components
        Number of coordinates.
    chosen
        Genes of the list to use instead of the ``n_hvgs`` most variable ones.
    """
    names = gene_list(names)
    fixed_choice = None if chosen is None else gene_list(chosen)
    most = n_hvgs if fixed_choice is None else fixed_choice.size
    if min(most, names.size) > MOST_GENES:
        raise BadValue(f"Expected at most {MOST_GENES:,} genes for a PCA, found {most:,}.")
    check_components(n_components, n_components + 1, min(most, names.size))
    if fixed_choice is None:
        found = genes(own, names, add_up, n_hvgs=n_hvgs, min_cells=min_cells, progress=progress)
        n_sites, n_batches, sums = found.n_sites, found.n_batches, found.sums
        used: Ints = positions(found.chosen, names)
    else:
        used = np.sort(require_all(fixed_choice, names))
        n_sites, n_batches, sums = gene_sums(own, names, add_up, min_cells, progress)
        _check_detected(sums, names, used, min_cells)
    _check_cells(sums.n_cells, used.size, "all")
    check_components(n_components, sums.n_cells, used.size)
    total, products = _products(own, names, add_up, used, n_sites, sums, progress)
    axes = principal_axes(sums.n_cells, total, products, n_components)
    upstream = PCAUpstream(names, sums.share, used, *axes)
    m2 = axes.variance * (sums.n_cells - 1)
    return SharedPCA(upstream, Pooled(sums.n_cells, n_batches, np.zeros(n_components), m2))


def check_published(mine: PCAUpstream, published: PCAUpstream) -> None:
    """Check that a PCA that another site published is the one that this site computed.

    Sites should all use the same published file. Eigenvectors differ in their last digits between
    machines, and the fingerprint with them.
    """
    same = (
        np.array_equal(mine.genes, published.genes)
        and np.array_equal(mine.used, published.used)
        and mine.loadings.shape == published.loadings.shape
        and np.allclose(mine.share, published.share, rtol=1e-12, atol=0)
        and np.allclose(mine.mean, published.mean, rtol=1e-12, atol=1e-15)
        and np.allclose(mine.variance, published.variance, rtol=SAME)
    )
    if same:
        gap = np.sqrt(((mine.loadings - published.loadings) ** 2).sum(0) * mine.variance[0])
        same = bool((gap <= SAME * np.sqrt(mine.variance)).all())
    if not same:
        raise BadValue("Expected the PCA that the sums of this plan give, found another.")


def _check_cells(n_cells: int, n_genes: int, sites: str) -> None:
    if n_cells < n_genes:
        raise BadValue(
            f"Expected at least as many cells as genes, found {n_cells:,} cells of {sites} sites and "
            f"{n_genes:,} genes: their products would reveal the space that the cells span; choose fewer "
            f"genes."
        )


def _check_others(elsewhere: Ints, genes: np.ndarray) -> None:
    """Check the numbers of cells of other sites that have a count of each gene."""
    few = genes[(elsewhere > 0) & (elsewhere < FEWEST)]
    if few.size:
        raise BadValue(
            f"Expected genes with counts in at least {FEWEST} cells of other sites, or in none, found "
            f"{few.size:,} with fewer: {some_of(few)}; plan with a larger ", Parameter("min_cells"),
            ", or without these genes.",
        )  # fmt: skip


def _check_detected(sums: GeneSums, names: np.ndarray, used: Ints, min_cells: int) -> None:
    rare = used[sums.detected[used] < min_cells]
    if rare.size:
        raise BadValue(
            f"Expected genes with counts in at least {min_cells} cells of all sites, found {rare.size:,} "
            f"chosen ones with fewer: {some_of(names[rare])}."
        )


def products_format(n_cells: int) -> Fixed:
    """The finest 64-bit format for sums of products over all cells, whose range is known."""
    size = math.frexp(1.01 * LARGEST**2 * n_cells)[1]
    return Fixed(64, max(0, min(63 - size, 46)), spare=0)


def _products(
    own: Counts,
    names: np.ndarray,
    add_up: AddUp,
    used: Ints,
    n_sites: int,
    sums: GeneSums,
    progress: Progress,
) -> tuple[Floats, Floats]:
    """(P,) sums over the cells of all sites, and the lower triangle (P, P) of their products, one round."""
    n_cells = sums.n_cells
    fixed = products_format(n_cells)
    lower = np.tri(used.size, dtype=bool)
    # Sites compute the choice of genes themselves. If one of them chose others, its products would be added
    # to those of other genes. So each adds a number that depends on its choice, in units of the last place.
    digits = int(gene_hash(names[used])[:6], 16)

    def values() -> Floats:
        _check_cells(max(n_cells - own.n_cells, 0), used.size, "the other")
        total, products, detected = cross_products(own, names, used, progress)
        _check_others(sums.detected[used] - detected, names[used])
        head = [math.ldexp(digits, -fixed.fraction), own.n_cells]
        return np.concatenate([head, total, products[lower]])

    totals = add_up(Later(values, fixed)).floats()
    if totals[0] != math.ldexp(n_sites * digits, -fixed.fraction):
        raise BadValue("Expected the same choice of genes at all sites, found different ones.")
    if totals[1] != n_cells:
        raise BadValue(
            f"Expected the same {n_cells:,} cells in both sums, found {totals[1]:,.0f} in the second."
        )
    products = np.zeros(lower.shape)
    products[lower] = totals[2 + used.size :]
    return totals[2 : 2 + used.size], products
