"""Names and defaults that the command line shows in its help, before anything is loaded."""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "LAMBDA_ID", "LAMBDA_TARGET", "MIN_SHARED", "MU", "N_COMPONENTS", "N_HVGS", "N_LATENT",
    "Genes", "Methods", "Profiles", "Solvers", "Views",
]  # fmt: skip

#: Weights of the target, of the previous round and of the identity, as in the paper.
LAMBDA_TARGET, MU, LAMBDA_ID = 0.5, 1e-3, 1e-3
#: Numbers of coordinates of a PCA (as in the paper) and of scVI, and of highly variable genes.
N_COMPONENTS, N_LATENT, N_HVGS = 40, 10, 2500
#: The smallest share of a reference's genes that new data must have.
MIN_SHARED = 0.5


class Solvers(StrEnum):
    """Ways to fit an adapter: the keys of :data:`scbatchprox.core.solvers.SOLVERS`."""

    exact = "exact"
    adam = "adam"


class Methods(StrEnum):
    """Upstream methods, which make an embedding from counts."""

    pca = "pca"
    scvi = "scvi"


class Genes(StrEnum):
    """Ways to choose the genes of an upstream."""

    scanpy = "scanpy"
    flagged = "flagged"
    all = "all"


class Profiles(StrEnum):
    """Which cells are scored: all of them, or a sample."""

    full = "full"
    fast = "fast"


class Views(StrEnum):
    """Axes of the pictures in a report."""

    auto = "auto"
    umap = "umap"
    pca = "pca"
