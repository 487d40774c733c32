r"""Counts of all sites: their highly variable genes, from one sum, and a PCA, from two.

In the first sum, a site adds :math:`(1, n, B)`, and for each gene of a public list :math:`\sum y`,
:math:`\sum y^2` and the number of cells with a count, with :math:`y = 10^4 x / t`. That is all that scanpy's
default choice of genes needs. It compares genes over all cells together, so nothing about a single batch is
needed, nor known. Genes with counts in few cells are left out, as by
``scanpy.pp.filter_genes(min_cells=...)``: in the sums of products of genes, a gene of a single cell would
reveal all of that cell.

In the second sum, a site adds :math:`\sum x` and :math:`\sum x x^\top` of its cells, with the log-normalised
counts x of the chosen genes. The axes are eigenvectors of the covariance; every site computes them itself.
With fewer cells than genes the products span the cells, and a gene with a count in one cell only reveals
that cell. Both are known after the first sum, and refused before the second. A site can subtract its own
part, so it also refuses if this is true of the cells of the others.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd

from ..core.checks import check_whole, some_of
from ..core.moments import Pooled
from ..errors import BadValue, Parameter
from ..kernels.arrays import Floats, Ints
from ..progress import Progress, silent
from ..upstream.components import (
    N_COMPONENTS,
    N_HVGS,
    TARGET_SUM,
    check_components,
    principal_axes,
)
from ..upstream.counts import Counts
from ..upstream.genes import check_distinct, check_positive, positions
from ..upstream.on_disk import open_counts
from ..upstream.pca import PCAUpstream
from ..upstream.sums import FLAG, GeneSums, cross_products, require_all, variable_genes
from .ledger import OwnNumbers
from .messages import Message
from .plan import MIN_CELLS, Plan
from .site import Site, Terms, Waiting
from .sums import Addends, AddUp, FixedPoint, Kind

__all__ = [
    "MOST_GENES",
    "CountsFile",
    "SharedPCA",
    "VariableGenes",
    "check_published",
    "contribute_counts",
    "counts_parameters",
    "gene_hash",
    "gene_list",
    "genes",
    "pca",
    "products_format",
    "shared_upstream",
]

#: y is at most 1e4: for 3e8 cells at a site at least; exact to 1e-17.
FORMAT = FixedPoint(128, 56)


@dataclass(frozen=True, eq=False)
class VariableGenes:
    """The choice of genes, and the sums over the cells of all sites that it was made from."""

    names: np.ndarray  # (G,) the public list of genes
    n_sites: int
    n_batches: int
    sums: GeneSums
    table: pd.DataFrame  # scanpy's, of the genes with enough cells, indexed by name

    @property
    def chosen(self) -> np.ndarray:
        """(P,) names of the highly variable genes, in the order of the list."""
        return np.asarray(self.table.index[self.table[FLAG]], dtype=object)


def gene_list(names: Iterable[str]) -> np.ndarray:
    """A public list of genes, such as the lines of a file; names must be unique."""
    genes = np.array([str(name) for name in names], dtype=object)
    if not genes.size or not all(genes):
        raise BadValue(
            f"Expected a list of gene names, found {'empty ones' if genes.size else 'none'}."
        )
    check_distinct(genes, " in the list")
    return genes


def gene_hash(names: np.ndarray) -> str:
    """The SHA-256 of a list of genes, for the plan. The order counts."""
    return hashlib.sha256("\n".join(names.tolist()).encode()).hexdigest()


def genes(
    own: Counts,
    names: np.ndarray,
    add_up: AddUp,
    *,
    n_hvgs: int = N_HVGS,
    min_cells: int = MIN_CELLS,
    progress: Progress = silent,
) -> VariableGenes:
    """The highly variable genes of all sites together, one round.

    The site must have all genes of the public list ``names``, over which the totals of cells are. Without a
    batch for each cell, its counts are one batch. ``n_hvgs`` genes are chosen by scanpy's default
    (dispersions as by Satija et al. 2015), from those with a count in ``min_cells`` cells of all sites; all
    if there are no more.
    """
    check_positive("n_hvgs", n_hvgs)
    names = gene_list(names)
    check_whole("min_cells", min_cells)
    require_all(names, own.genes)

    def values() -> Floats:
        found = GeneSums.of(own, names, progress)
        n_batches = 1 if own.batch is None else own.batch.nunique()
        head = [1.0, found.n_cells, n_batches]
        return np.concatenate([head, found.detected, found.total, found.square])

    totals = add_up(Addends(values, FORMAT)).floats()
    n_sites, n_cells, n_batches = _whole(totals[:3])
    if not 1 <= n_sites <= n_batches <= n_cells:
        raise BadValue("Expected numbers of sites, batches and cells in the sum, found others.")
    known, total, square = totals[3:].reshape(3, -1)
    detected = np.array(_whole(known))
    enough = detected >= min_cells
    if not enough.any():
        raise BadValue(f"Expected genes with counts in at least {min_cells} cells, found none.")
    some = GeneSums(n_cells, total[enough], square[enough], detected[enough])
    table = variable_genes(some, n_hvgs).set_index(names[enough])
    if len(table) <= n_hvgs:
        table[FLAG] = True
    sums = GeneSums(n_cells, total, square, detected)
    return VariableGenes(names, n_sites, n_batches, sums, table)


def _whole(values: Floats) -> list[int]:
    whole: Ints = np.rint(values).astype(np.int64)
    if (whole != values).any() or (whole < 0).any():
        raise BadValue("Expected whole numbers of cells in the sum, found others.")
    found: list[int] = whole.tolist()
    return found


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
    """A PCA of the cells of all sites, and the moments of their coordinates.

    The upstream is to be saved, published and applied at every site. The moments are all that the moment
    target needs of other sites.
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
    min_cells: int = MIN_CELLS,
    progress: Progress = silent,
) -> SharedPCA:
    """The PCA of all sites together, two rounds; genes are chosen as by :func:`genes`."""
    names = gene_list(names)
    most = min(n_hvgs, names.size)
    if most > MOST_GENES:
        raise BadValue(f"Expected at most {MOST_GENES:,} genes for a PCA, found {n_hvgs:,}.")
    check_components(n_components, n_components + 1, most)
    found = genes(own, names, add_up, n_hvgs=n_hvgs, min_cells=min_cells, progress=progress)
    sums = found.sums
    used: Ints = positions(found.chosen, names)
    _check_cells(sums.n_cells, used.size, "all")
    check_components(n_components, sums.n_cells, used.size)
    total, products = _products(own, found, used, add_up, progress)
    axes = principal_axes(sums.n_cells, total, products, n_components)
    upstream = PCAUpstream(names, sums.share, used, *axes)
    m2 = axes.variance * (sums.n_cells - 1)
    return SharedPCA(upstream, Pooled(sums.n_cells, found.n_batches, np.zeros(n_components), m2))


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


def products_format(n_cells: int) -> FixedPoint:
    """The finest 64-bit format for sums of products over all cells, whose range is known."""
    size = math.frexp(1.01 * LARGEST**2 * n_cells)[1]
    return FixedPoint(64, max(0, min(63 - size, 46)), spare=0)


def _products(
    own: Counts, found: VariableGenes, used: Ints, add_up: AddUp, progress: Progress
) -> tuple[Floats, Floats]:
    """(P,) sums over the cells of all sites, and the lower triangle (P, P) of their products, one round."""
    names, n_cells = found.names, found.sums.n_cells
    fixed = products_format(n_cells)
    lower = np.tri(used.size, dtype=bool)
    # Sites compute the choice of genes themselves. If one of them chose others, its products would be added
    # to those of other genes. So each adds a number that depends on its choice, in units of the last place.
    digits = int(gene_hash(names[used])[:6], 16)

    def values() -> Floats:
        _check_cells(max(n_cells - own.n_cells, 0), used.size, "the other")
        total, products, detected = cross_products(own, names, used, progress)
        _check_others(found.sums.detected[used] - detected, names[used])
        head = [math.ldexp(digits, -fixed.fraction), own.n_cells]
        return np.concatenate([head, total, products[lower]])

    totals = add_up(Addends(values, fixed)).floats()
    if totals[0] != math.ldexp(found.n_sites * digits, -fixed.fraction):
        raise BadValue("Expected the same choice of genes at all sites, found different ones.")
    if totals[1] != n_cells:
        raise BadValue(
            f"Expected the same {n_cells:,} cells in both sums, found {totals[1]:,.0f} in the second."
        )
    products = np.zeros(lower.shape)
    products[lower] = totals[2 + used.size :]
    return totals[2 : 2 + used.size], products


@dataclass(frozen=True)
class CountsFile:
    """A file with the counts of a site."""

    path: Path
    batch_key: str | Sequence[str] | None = None
    layer: str | None = None
    fractional: bool = False


def counts_parameters(
    names: Sequence[str],
    *,
    n_hvgs: int = N_HVGS,
    n_components: int | None = None,
    min_cells: int = MIN_CELLS,
) -> dict[str, Any]:
    """The parameters of a plan for genes, or for a PCA of ``n_components`` coordinates.

    ``names`` is a public list of genes, which all sites have.
    """
    found: dict[str, Any] = {
        "genes": gene_list(names).tolist(),
        "n_hvgs": n_hvgs,
        "min_cells": min_cells,
    }
    return found if n_components is None else found | {"n_components": n_components}


def contribute_counts(
    site: Site,
    plan: Plan,
    file: CountsFile,
    *,
    min_cells: int | None = None,
    **terms: Unpack[Terms],
) -> VariableGenes | SharedPCA | Waiting:
    """Answer the rounds of a plan with the counts of a file; return the result if all are known.

    ``min_cells`` is the least number of cells in a batch, and of cells with a gene: by default what the plan
    says, and at least 20. ``terms`` are those of :meth:`Site.run`.
    """
    if plan.kind not in ("genes", "pca"):
        raise BadValue(f"Expected a plan for counts, found plan {plan.id} for {plan.kind}.")
    site.check(plan, terms.get("confirmed"))  # before any count is read
    with open_counts(
        file.path, layer=file.layer, batch_key=file.batch_key, fractional=file.fractional
    ) as counts:
        batch = np.full(counts.n_cells, "all") if counts.batch is None else counts.batch
        sizes = pd.Series(batch).astype(str).value_counts().sort_index()
        # The bytes of an answer are in the ledger, so counts are not read once more to recognise them.
        own = OwnNumbers.of(sizes.index.tolist(), sizes.to_numpy())
        least = plan.least(min_cells)
        if sizes.min() < least:
            site.tell(plan, "cells")  # others learn that, and no more
            raise BadValue(
                f"Expected at least {least} cells in every batch, found {sizes.min()} in "
                f"{sizes.idxmin()!r}: leave this batch out, or lower ", Parameter("min_cells"), ".",
            )  # fmt: skip
        kind = _kind(plan, counts, least, terms.get("progress", silent))
        return site.run(plan, kind, own, **terms)


def shared_upstream(site: Site, plan: Plan, found: SharedPCA) -> PCAUpstream | Waiting:
    """The PCA of a plan in the form that all sites use, so that they have one fingerprint.

    The last digits of eigenvectors differ between machines. So the first site of the plan publishes what it
    has computed, and the others use it after they have compared it with their own.
    """
    publisher = plan.members[0]
    place = plan.place("result", publisher.site)
    header: dict[str, Any] = {"type": "result", "site": publisher.site, "plan": plan.hash}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pca.safetensors"
        if site.name == publisher.site and site.folder.find(place) is None:
            found.upstream.save(file)
            message = Message.signed(site.keys.signing, header, file.read_bytes())
            site.folder.publish(place, message)
        path = site.folder.find(place)
        if path is None:
            return Waiting(-1, (publisher.site,))
        file.write_bytes(publisher.message(path, **header).body)
        published = PCAUpstream.load(file)
    check_published(found.upstream, published)
    return published


def _kind(
    plan: Plan, counts: Counts, min_cells: int, progress: Progress
) -> Kind[VariableGenes] | Kind[SharedPCA]:
    names, n_hvgs = plan.parameters.get("genes"), plan.number("n_hvgs")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise plan.unknown()
    given: dict[str, Any] = {"n_hvgs": n_hvgs, "min_cells": min_cells, "progress": progress}
    listed = np.array(names, dtype=object)
    if plan.kind == "genes":
        return partial(genes, counts, listed, **given)
    return partial(pca, counts, listed, n_components=plan.number("n_components"), **given)
