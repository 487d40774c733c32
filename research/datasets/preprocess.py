r"""Preprocessing of counts, as in the paper.

"We select 2,500 highly variable genes and normalize the data using Scanpy by scaling each cell's read
counts to 10,000 followed by a log1p transformation." Order and flavour are not given; both are those of
the pipeline of Maan et al. (2024), whose data and number of genes the paper uses: every cell is scaled over
all of its genes, then logarithms are taken,

.. math:: x_{ig} \mapsto \log\Bigl(1 + 10^4\, x_{ig} / \textstyle\sum_h x_{ih}\Bigr),

then genes are chosen by Scanpy's ``flavor="seurat"`` (dispersion within bins of the mean), on all cells
together, ignoring batches.
"""

from __future__ import annotations

import anndata as ad
import scipy.sparse as sp

from scbatchprox.core.checks import check_number
from scbatchprox.errors import BadValue, MissingExtra
from scbatchprox.upstream.components import N_HVGS, TARGET_SUM

from .counts import with_counts

__all__ = ["preprocess"]


def preprocess(
    adata: ad.AnnData, *, n_hvgs: int = N_HVGS, target_sum: float = TARGET_SUM
) -> ad.AnnData:
    """Return a copy with the highly variable genes only, normalised and log-transformed.

    Parameters
    ----------
    adata
        Counts, in ``X``, ``layers["counts"]`` or ``raw``.
    n_hvgs
        Number of genes to keep. If the data has fewer, all are kept: they were selected before, as in the
        paper's HPMS set.
    target_sum
        Total count to which every cell is scaled.

    Returns
    -------
    AnnData
        Log-normalised values in ``X``, the counts of the same genes in ``layers["counts"]``, and in
        ``uns["preprocess"]`` the options, and the numbers of genes before and after.
    """
    try:
        import scanpy as sc
    except ImportError:
        raise MissingExtra("scanpy to preprocess counts with", "bench") from None
    check_number("n_hvgs", n_hvgs, positive=True)
    check_number("target_sum", target_sum, positive=True)
    adata, where = with_counts(adata.copy())
    if where is None:
        raise BadValue(
            'Expected counts (whole numbers, none negative) in X, layers["counts"] or raw, found none.'
        )
    n_genes = adata.n_vars
    adata.layers["counts"] = adata.X.copy()
    # Scanpy divides in place and keeps the type, so integers would be truncated.
    adata.X = (adata.X if sp.issparse(adata.X) else sp.csr_matrix(adata.X)).astype("float32")
    sc.pp.normalize_total(adata, target_sum=target_sum)
    sc.pp.log1p(adata)
    if n_genes > n_hvgs:
        sc.pp.highly_variable_genes(adata, n_top_genes=n_hvgs, flavor="seurat")
        adata = adata[:, adata.var["highly_variable"].to_numpy()].copy()
    adata.uns["preprocess"] = {
        "n_hvgs": n_hvgs,
        "n_genes": n_genes,
        "n_kept": adata.n_vars,
        "target_sum": float(target_sum),
    }
    return adata
