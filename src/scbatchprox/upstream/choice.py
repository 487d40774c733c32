"""The choice of genes for an embedding."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..choices import Genes
from ..core.checks import one_of, some_of
from ..errors import BadKey, BadValue, Parameter
from .counts import Counts
from .sums import GeneSums

__all__ = ["FLAG", "check_hvgs", "chosen_genes", "variable_genes"]

#: Column of ``var`` in which scanpy marks highly variable genes.
FLAG = "highly_variable"
#: Bins of genes by mean, in each of which dispersions are compared (scanpy's default).
N_BINS = 20
#: Normalised dispersions that differ by less are equal.
ROUNDING = 1e-10


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
    check_hvgs(n_hvgs)
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
    check_hvgs(n_hvgs)
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


def check_hvgs(n_hvgs: object) -> None:
    """Check a number of highly variable genes."""
    if isinstance(n_hvgs, bool) or not isinstance(n_hvgs, int | np.integer) or n_hvgs < 1:
        raise BadValue(
            "Expected ", Parameter("n_hvgs"), f" to be a whole number of at least 1, found {n_hvgs!r}."
        )  # fmt: skip


def _flagged(var: pd.DataFrame) -> np.ndarray:
    if FLAG not in var:
        raise BadKey(
            f"Expected a column {FLAG!r} in var that marks the genes to take, found none; available: "
            f"{some_of(var, most=20)}."
        )
    if var[FLAG].dtype.kind != "b":
        raise BadValue(f"Expected True or False in var[{FLAG!r}], found {var[FLAG].dtype}.")
    return np.flatnonzero(var[FLAG].to_numpy(bool))
