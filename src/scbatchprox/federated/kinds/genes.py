r"""The highly variable genes of all cells of all sites, from one sum.

A site adds :math:`(1, n, B)`, and for each gene of a public list :math:`\sum y`, :math:`\sum y^2` and the
number of cells with a count, with :math:`y = 10^4 x / t`. That is all that scanpy's default choice of genes
needs. It compares genes over all cells together, so nothing about a single batch is needed, nor known.

Genes with counts in few cells are left out, as by ``scanpy.pp.filter_genes(min_cells=...)``. In later sums
of products of genes, a gene of a single cell would reveal all of that cell.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ...core.checks import check_whole
from ...errors import BadValue
from ...kernels.arrays import Floats, Ints
from ...progress import Progress, silent
from ...upstream.choice import FLAG, check_hvgs, variable_genes
from ...upstream.components import N_HVGS
from ...upstream.counts import Counts
from ...upstream.genes import check_distinct
from ...upstream.sums import GeneSums, require_all
from ..fixed import Fixed
from ..rounds import Addends, AddUp

__all__ = ["MIN_CELLS", "Later", "VariableGenes", "gene_hash", "gene_list", "gene_sums", "genes"]

#: Cells of all sites with a count of a gene, at least.
MIN_CELLS = 20
#: y is at most 1e4: for 3e8 cells at a site at least; exact to 1e-17.
FORMAT = Fixed(128, 56)


class Later(Addends):
    """Addends that are computed when they are first used: a round whose sum is known does not need them."""

    def __init__(self, compute: Callable[[], Floats], fixed: Fixed) -> None:
        self.__dict__.update(compute=compute, fixed=fixed)

    @cached_property
    def values(self) -> Floats:
        """The numbers."""
        values: Floats = self.__dict__["compute"]()
        return values


@dataclass(frozen=True, eq=False)
class VariableGenes:
    """The choice of genes, and the sums over all sites that it was made from.

    Attributes
    ----------
    names
        (G,) the public list of genes.
    n_sites, n_batches
        Numbers of sites and batches.
    sums
        Sums over the cells of all sites.
    table
        Scanpy's table of the genes of the list with enough cells, indexed by name.
    """

    names: np.ndarray
    n_sites: int
    n_batches: int
    sums: GeneSums
    table: pd.DataFrame

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

    Parameters
    ----------
    own
        The site's counts, with a batch for each cell; without, they are one batch.
    names
        The public list of genes. The site must have them all. Totals of cells are over this list.
    add_up
        Adds up sums over sites.
    n_hvgs
        Number of genes to choose, by scanpy's default (dispersions as by Satija et al. 2015); all if the list
        has no more.
    min_cells
        Only genes with a count in this many cells of all sites are chosen from.
    """
    check_hvgs(n_hvgs)
    n_sites, n_batches, sums = gene_sums(own, names, add_up, min_cells, progress)
    enough = sums.detected >= min_cells
    if not enough.any():
        raise BadValue(f"Expected genes with counts in at least {min_cells} cells, found none.")
    some = GeneSums(sums.n_cells, sums.total[enough], sums.square[enough], sums.detected[enough])
    table = variable_genes(some, n_hvgs).set_index(names[enough])
    if len(table) <= n_hvgs:
        table[FLAG] = True
    return VariableGenes(names, n_sites, n_batches, sums, table)


def gene_sums(
    own: Counts, names: np.ndarray, add_up: AddUp, min_cells: int, progress: Progress
) -> tuple[int, int, GeneSums]:
    """The numbers of sites and batches, and the sums over all cells, one round."""
    names = gene_list(names)
    check_whole("min_cells", min_cells)
    require_all(names, own.genes)

    def values() -> Floats:
        found = GeneSums.of(own, names, progress)
        n_batches = 1 if own.batch is None else own.batch.nunique()
        head = [1.0, found.n_cells, n_batches]
        return np.concatenate([head, found.detected, found.total, found.square])

    totals = add_up(Later(values, FORMAT)).floats()
    n_sites, n_cells, n_batches = _whole(totals[:3])
    detected, total, square = totals[3:].reshape(3, -1)
    if not 1 <= n_sites <= n_batches <= n_cells:
        raise BadValue("Expected numbers of sites, batches and cells in the sum, found others.")
    return n_sites, n_batches, GeneSums(n_cells, total, square, np.array(_whole(detected)))


def _whole(values: Floats) -> list[int]:
    whole: Ints = np.rint(values).astype(np.int64)
    if (whole != values).any() or (whole < 0).any():
        raise BadValue("Expected whole numbers of cells in the sum, found others.")
    found: list[int] = whole.tolist()
    return found
