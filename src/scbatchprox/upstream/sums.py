"""Sums over cells that are enough to choose genes and to fit a PCA, from counts read in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ..core.checks import some_of
from ..errors import BadValue
from ..kernels.arrays import Floats, Ints
from ..kernels.threads import one_blas_thread
from ..progress import Progress, silent
from .components import TARGET_SUM, log_normalised
from .counts import Counts, totals_of
from .genes import positions

__all__ = ["CrossProducts", "GeneSums", "cross_products", "require_all"]


@dataclass(frozen=True, eq=False)
class GeneSums:
    r"""Sums over cells of each gene's normalised counts :math:`y = 10^4 x / t`, without logarithm.

    Attributes
    ----------
    n_cells
        Number of cells.
    total, square
        (G,) sums of :math:`y` and of :math:`y^2`.
    detected
        (G,) number of cells with a count.
    """

    n_cells: int
    total: Floats
    square: Floats
    detected: Ints

    @classmethod
    def of(cls, counts: Counts, genes: np.ndarray, progress: Progress = silent) -> GeneSums:
        """The sums over cells that have all of these genes; a cell's total is over these genes."""
        at = require_all(genes, counts.genes)
        total, square = np.zeros((2, genes.size))
        detected = np.zeros(genes.size, np.int64)
        for lo, block, totals in _blocks(counts, at, at):
            y = block.data * np.repeat(TARGET_SUM / totals, np.diff(block.indptr))
            total += np.bincount(block.indices, y, genes.size)
            square += np.bincount(block.indices, y * y, genes.size)
            detected += np.bincount(block.indices[y > 0], minlength=genes.size)
            progress("genes", lo + len(totals), counts.n_cells)
        return cls(counts.n_cells, total, square, detected)

    @property
    def share(self) -> Floats:
        """(G,) share of each gene in the counts of a cell, averaged over cells."""
        return self.total / (TARGET_SUM * self.n_cells)


class CrossProducts(NamedTuple):
    """Sums over cells of log-normalised counts and their products, and numbers of cells with a count.

    Attributes
    ----------
    total
        (P,) sums.
    products
        (P, P) sums of products, of which only the lower triangle is valid.
    detected
        (P,) number of cells with a count.
    """

    total: Floats
    products: Floats
    detected: Ints


def cross_products(
    counts: Counts, genes: np.ndarray, used: Ints, progress: Progress = silent
) -> CrossProducts:
    """Sums over cells for a PCA.

    Parameters
    ----------
    genes
        (G,) names of the genes that a cell's total is over.
    used
        (P,) positions among them of the genes to multiply.
    """
    at = require_all(genes, counts.genes)
    # Imported here: choosing genes does not need it.
    from scipy.linalg.blas import dsyrk

    total, detected = np.zeros(used.size), np.zeros(used.size, np.int64)
    products = np.zeros((used.size, used.size), order="F")
    for lo, block, totals in _blocks(counts, at, at[used]):
        logged = log_normalised(block, totals).toarray()
        total += logged.sum(0)
        detected += (logged > 0).sum(0)
        with one_blas_thread():  # so that the result does not depend on the number of threads
            products = dsyrk(1.0, logged.T, beta=1.0, c=products, overwrite_c=1)
        progress("pca", lo + len(totals), counts.n_cells)
    # The upper triangle by columns is the lower one by rows.
    return CrossProducts(total, products.T, detected)


def require_all(genes: np.ndarray, found: np.ndarray) -> Ints:
    """Return the position of each gene among those found; a missing one is an error."""
    at: Ints = positions(genes, found)
    missing = genes[at < 0]
    if missing.size:
        raise BadValue(
            f"Expected all {genes.size:,} genes of the list, found {genes.size - missing.size:,}; "
            f"{missing.size:,} are missing: {some_of(missing)}."
        )
    return at


def _blocks(
    counts: Counts, counted: Ints, columns: Ints
) -> Iterator[tuple[int, sp.csr_matrix, Floats]]:
    """Yield the first row, the counts of some columns, and the totals of the cells over others."""
    weight = np.zeros(counts.genes.size)
    weight[counted] = 1.0
    for lo, block in counts.blocks():
        totals = totals_of(block, weight, lo)
        chosen = sp.csr_matrix(block[:, columns])
        # Sorted and without duplicates: an entry stored in two parts is one count.
        chosen.sum_duplicates()
        yield lo, chosen, totals
