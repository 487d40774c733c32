"""Sums over cells, from counts read in blocks of rows: enough to choose genes, and to fit a PCA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..choices import Genes
from ..core.checks import one_of, some_of
from ..errors import BadKey, BadValue
from ..kernels.arrays import Floats, Ints
from ..kernels.threads import one_blas_thread
from ..progress import Progress, silent
from .components import TARGET_SUM, log_normalised
from .counts import Counts
from .genes import check_positive, positions

__all__ = [
    "FLAG", "CrossProducts", "GeneSums", "chosen_genes", "cross_products", "require_all", "variable_genes",
]  # fmt: skip

#: Column of ``var`` in which scanpy marks highly variable genes.
FLAG = "highly_variable"
#: Bins of genes by mean, in each of which dispersions are compared (scanpy's default).
N_BINS = 20
#: Normalised dispersions that differ by less are equal.
ROUNDING = 1e-10


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
        for lo, block, totals in counts.chosen(at, at):
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
    for lo, block, totals in counts.chosen(at[used], at):
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


def chosen_genes(how: str, n_hvgs: int, counts: Counts) -> np.ndarray:
    """Return the positions of the genes to embed with, in ascending order.

    Parameters
    ----------
    how
        ``"scanpy"`` takes the ``n_hvgs`` genes whose normalised counts vary most for their mean
        (dispersion as by Satija et al. 2015, scanpy's default), or all if there are no more than
        that; ``"flagged"`` takes those marked in ``var["highly_variable"]``; ``"all"`` takes all.
    counts
        Counts (cells x genes) with the table of genes.
    """
    one_of("genes", how, [choice.value for choice in Genes])
    if how == Genes.flagged:
        return _flagged(counts.var)
    check_positive("n_hvgs", n_hvgs)
    if how == Genes.all or counts.genes.size <= n_hvgs:
        return np.arange(counts.genes.size)
    sums = GeneSums.of(counts, counts.genes)
    return np.flatnonzero(variable_genes(sums, n_hvgs)[FLAG].to_numpy())


def variable_genes(sums: GeneSums, n_hvgs: int) -> pd.DataFrame:
    """Return scanpy's table of highly variable genes, from sums over cells.

    It has the columns of ``scanpy.pp.highly_variable_genes(n_top_genes=n_hvgs)``: means, dispersions,
    dispersions_norm and highly_variable. Genes that are as variable as the last one are flagged too, so there
    may be more of them; scanpy flags those that rounding makes larger.
    """
    check_positive("n_hvgs", n_hvgs)
    n = sums.n_cells
    mean = sums.total / n
    var = (sums.square / n - mean**2) * (n / max(n - 1, 1))
    mean[mean == 0] = 1e-12
    dispersion = var / mean
    dispersion[dispersion <= 0] = np.nan
    table = pd.DataFrame({"means": np.log1p(mean), "dispersions": np.log(dispersion)})
    bins = pd.cut(table["means"], N_BINS)
    by_bin = table.groupby(bins, observed=True)["dispersions"]
    centre, spread = by_bin.transform("mean"), by_bin.transform("std")
    # The only gene of a bin gets the dispersion 1.
    single = spread.isna()
    spread, centre = spread.mask(single, centre), centre.mask(single, 0.0)
    table["dispersions_norm"] = (table["dispersions"] - centre) / spread
    known = np.sort(table["dispersions_norm"].dropna().to_numpy())
    # Genes that are equal to the last one are taken too. Two genes of a bin always have -0.71 and 0.71, so
    # equal values are common, and must not be told apart by rounding.
    least = known[-min(n_hvgs, known.size)] - ROUNDING if known.size else np.inf
    table[FLAG] = (table["dispersions_norm"] >= least).to_numpy()
    return table


def _flagged(var: pd.DataFrame) -> np.ndarray:
    if FLAG not in var:
        raise BadKey(
            f"Expected a column {FLAG!r} in var that marks the genes to take, found none; available: "
            f"{some_of(var, most=20)}."
        )
    if var[FLAG].dtype.kind != "b":
        raise BadValue(f"Expected True or False in var[{FLAG!r}], found {var[FLAG].dtype}.")
    return np.flatnonzero(var[FLAG].to_numpy(bool))
