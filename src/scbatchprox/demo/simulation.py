r"""Simulate single-cell counts with a given batch x cell-type composition.

For a cell :math:`i` of batch :math:`b` and type :math:`t`, the count of gene :math:`g` is

.. math::

    x_{ig} \sim \mathrm{Poisson}(m_{ig}\,\gamma_{ig}), \qquad
    \gamma_{ig} \sim \mathrm{Gamma}(\text{shape } 1/\phi_g,\ \text{mean } 1), \qquad
    m_{ig} = L_i\, p_{btg},

a negative binomial with variance :math:`m_{ig} + \phi_g m_{ig}^2`. The profile

.. math::

    p_{bt} = \mathrm{softmax}(\beta + \theta_t + s\,\delta_b)

has a baseline :math:`\beta`, a cell-type programme :math:`\theta_t` and a batch effect
:math:`\delta_b` per gene, and :math:`\log L_i \sim N(\log L + s\,d_b,\ \sigma_L^2)` has a batch
depth :math:`d_b`, so that batches differ in their noise as well as in their means. The batch
strength :math:`s` scales both: at :math:`s = 0` the batches have the same distribution.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData
from numpy.typing import NDArray
from scipy.special import softmax

from ..errors import BadValue
from ..upstream.components import N_COMPONENTS, N_HVGS, log_normalised, principal_components
from .compositions import Composition, get_composition

# Standard deviations are on the natural-log scale. The values only set the difficulty: with them, a
# class-balanced logistic regression on the components of "pbmc4" confuses rare and related types
# (macro-F1 of about 0.75), and nearly all neighbours of a cell are of the same batch.
_BASELINE_SD = 1.0
_LIBRARY_SD = 0.35
_DEPTH_SD = 0.5
_BATCH_SD = 0.25
_PROGRAMME_SD = 1.0
# At each level of the tree of types, differences are smaller by this factor.
_PROGRAMME_DECAY = 0.7
# Share of genes that a branch of the tree changes; it is small, so that types have marker genes.
_PROGRAMME_FRACTION = 0.1
_DISPERSION_MEDIAN = 0.4
_DISPERSION_SD = 0.5
# Cells in a chunk; it limits memory: 1,024 x 2,500 doubles are 20 MB.
_CHUNK = 1024


def simulate(
    composition: str | Composition = "pbmc4",
    *,
    n_genes: int = N_HVGS,
    n_components: int = N_COMPONENTS,
    batch_strength: float = 1.0,
    type_strength: float = 1.0,
    depth: float = 1000.0,
    seed: int = 0,
) -> AnnData:
    """Simulate counts and their principal components.

    Types next to each other in the composition are related, because they share programmes; see
    `type_programmes`. Each batch x type group has its own random stream: the number of cells of one
    group does not change the counts of the others.

    Parameters
    ----------
    composition
        Name of a table in `scbatchprox.demo.compositions`, or such a table.
    n_genes, n_components
        Number of genes, and of principal components.
    batch_strength
        Factor on the log-scale batch effects on genes and depth; 0 for none.
    type_strength
        Factor on the log-scale differences between cell types; lower is harder.
    depth
        Median number of counts per cell before batch effects.
    seed
        Non-negative seed. The result depends only on the arguments.

    Returns
    -------
    AnnData
        Cells in random order, with counts in ``X`` (CSR, float32), ``obs["batch"]`` and
        ``obs["cell_type"]`` (categories in table order, without empty ones),
        ``obsm["X_pca"]`` (float32), and the arguments in ``uns["simulation"]``. The true
        parameters are kept too: the expected count of a cell ``obs["library_size"]``, and per gene
        ``var["baseline"]`` (sum 1) and ``var["dispersion"]``.
    """
    table = composition if isinstance(composition, Composition) else get_composition(composition)
    if not 0 < n_components < min(table.n_cells, n_genes):
        raise BadValue(
            f"Expected n_components between 1 and {min(table.n_cells, n_genes) - 1} for "
            f"{table.n_cells} cells and {n_genes} genes, found {n_components}."
        )
    if batch_strength < 0 or type_strength < 0 or depth <= 0:
        raise BadValue(
            f"Expected batch_strength >= 0, type_strength >= 0 and depth > 0, found "
            f"{batch_strength}, {type_strength} and {depth}."
        )
    n_batches, n_types = table.counts.shape
    rng = np.random.default_rng(seed)
    baseline = rng.normal(0.0, _BASELINE_SD, n_genes)
    dispersion = _DISPERSION_MEDIAN * np.exp(rng.normal(0.0, _DISPERSION_SD, n_genes))
    programmes = type_strength * type_programmes(n_types, n_genes, rng)
    batch_effects = batch_strength * rng.normal(0.0, _BATCH_SD, (n_batches, n_genes))
    batch_depths = depth * np.exp(batch_strength * rng.normal(0.0, _DEPTH_SD, n_batches))
    streams = rng.spawn(n_batches * n_types)

    blocks, libraries = [], []
    for index, n in enumerate(table.counts.ravel()):
        b, t = divmod(index, n_types)
        stream = streams[index]
        library = batch_depths[b] * np.exp(stream.normal(0.0, _LIBRARY_SD, n))
        profile = softmax(baseline + programmes[t] + batch_effects[b])
        libraries.append(library)
        blocks.append(sample_counts(library, profile, dispersion, stream))

    order = rng.permutation(table.n_cells)
    counts = sp.vstack(blocks, format="csr")[order]
    var = pd.DataFrame(
        {"baseline": softmax(baseline), "dispersion": dispersion},
        index=pd.Index([f"gene{g}" for g in range(n_genes)]),
    )
    obs = _cells(table, np.concatenate(libraries), order)
    adata = AnnData(X=counts, obs=obs, var=var)
    adata.obsm["X_pca"] = pca_scores(counts, n_components)
    adata.uns["simulation"] = {
        "composition": table.name,
        "n_genes": n_genes,
        "n_components": n_components,
        "batch_strength": float(batch_strength),
        "type_strength": float(type_strength),
        "depth": float(depth),
        "seed": seed,
    }
    return adata


def _cells(table: Composition, library: NDArray[np.float64], order: Any) -> pd.DataFrame:
    """The table of the cells: drawn group by group, row by row of the composition, then put in ``order``."""
    group = np.repeat(np.arange(table.counts.size), table.counts.ravel())[order]
    batch, cell_type = np.divmod(group, len(table.cell_types))
    return pd.DataFrame(
        {
            "batch": _categorical(batch, table.batches),
            "cell_type": _categorical(cell_type, table.cell_types),
            "library_size": library[order],
        },
        index=pd.Index([f"cell{i}" for i in range(table.n_cells)]),
    )


def type_programmes(n_types: int, n_genes: int, rng: np.random.Generator) -> NDArray[np.float64]:
    r"""Draw cell-type programmes :math:`\theta` on a binary tree.

    The types, in their order, are halved until each part has one type. Every branch of this tree
    shifts a few random genes by normal amounts, which are smaller further from the root. The programme
    of a type is the sum of the branches above it: siblings share all but one. A single type has none.

    Returns
    -------
    ndarray of shape (n_types, n_genes)
    """
    programmes = np.zeros((n_types, n_genes))
    pending = [(range(n_types), _PROGRAMME_SD)]
    while pending:
        parent, sd = pending.pop()
        if len(parent) == 1:
            continue
        middle = len(parent) // 2
        for child in (parent[:middle], parent[middle:]):
            affected = rng.random(n_genes) < _PROGRAMME_FRACTION
            shift = rng.normal(0.0, sd, n_genes)
            programmes[child.start : child.stop] += affected * shift
            pending.append((child, _PROGRAMME_DECAY * sd))
    return programmes


def sample_counts(
    library: NDArray[np.float64],
    profile: NDArray[np.float64],
    dispersion: NDArray[np.float64],
    rng: np.random.Generator,
) -> sp.csr_matrix:
    r"""Draw gamma-Poisson counts with mean :math:`L_i p_g` and dispersion :math:`\phi_g`."""
    n, n_genes = len(library), len(profile)
    shape = 1.0 / dispersion
    scale = profile * dispersion
    blocks = [sp.csr_matrix((0, n_genes), dtype=np.float32)]
    for start in range(0, n, _CHUNK):
        size = library[start : start + _CHUNK, None]
        rate = size * scale * rng.standard_gamma(shape, (len(size), n_genes))
        blocks.append(sp.csr_matrix(rng.poisson(rate).astype(np.float32)))
    return sp.vstack(blocks, format="csr")


def pca_scores(counts: sp.csr_matrix, n_components: int) -> NDArray[np.float32]:
    """Return principal component scores of log-normalised counts, preprocessed as by an upstream."""
    totals = np.asarray(counts.sum(axis=1, dtype=np.float64)).ravel()
    logged = log_normalised(counts, np.maximum(totals, 1.0))  # a cell may have no counts
    scores, _ = principal_components(logged, n_components)
    return np.asarray(scores, dtype=np.float32)


def _categorical(codes: NDArray[np.int64], labels: tuple[str, ...]) -> pd.Categorical:
    return pd.Categorical.from_codes(codes, labels).remove_unused_categories()
