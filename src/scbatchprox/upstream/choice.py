"""The choice of genes for an embedding."""

from __future__ import annotations

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from ..choices import Genes
from ..core.checks import one_of, some_of
from ..errors import BadKey, BadValue, MissingExtra
from ..kernels.arrays import Floats
from .components import log_normalised

__all__ = ["FLAG", "chosen_genes"]

#: Column of ``var`` in which scanpy marks highly variable genes.
FLAG = "highly_variable"


def chosen_genes(
    how: str, n_hvgs: int, counts: sp.csr_matrix, totals: Floats, var: pd.DataFrame
) -> np.ndarray:
    """Return the positions of the genes to embed with, in ascending order.

    Parameters
    ----------
    how
        ``"scanpy"`` takes the ``n_hvgs`` genes whose log-normalised counts vary most for their mean
        (dispersion as by Satija et al. 2015, scanpy's default), or all if there are no more than
        that; ``"flagged"`` takes those marked in ``var["highly_variable"]``; ``"all"`` takes all.
    counts, totals, var
        Counts (cells x genes), total counts per cell, and the table of genes.
    """
    one_of("genes", how, [choice.value for choice in Genes])
    if how == Genes.flagged:
        return _flagged(var)
    if isinstance(n_hvgs, bool) or not isinstance(n_hvgs, int | np.integer) or n_hvgs < 1:
        raise BadValue(f"Expected n_hvgs to be a whole number of at least 1, found {n_hvgs!r}.")
    if how == Genes.all or counts.shape[1] <= n_hvgs:
        return np.arange(counts.shape[1])
    try:
        import scanpy as sc
    except ImportError:
        raise MissingExtra(
            "scanpy to choose highly variable genes (genes='all' takes all, genes='flagged' those of "
            "var['highly_variable'])",
            "bench",
        ) from None
    logged = ad.AnnData(log_normalised(counts, totals), var=pd.DataFrame(index=var.index))
    found = sc.pp.highly_variable_genes(logged, n_top_genes=int(n_hvgs), inplace=False)
    return np.flatnonzero(found[FLAG].to_numpy())


def _flagged(var: pd.DataFrame) -> np.ndarray:
    if FLAG not in var:
        raise BadKey(
            f"Expected a column {FLAG!r} in var that marks the genes to take, found none; available: "
            f"{some_of(var, most=20)}."
        )
    if var[FLAG].dtype.kind != "b":
        raise BadValue(f"Expected True or False in var[{FLAG!r}], found {var[FLAG].dtype}.")
    return np.flatnonzero(var[FLAG].to_numpy(bool))
