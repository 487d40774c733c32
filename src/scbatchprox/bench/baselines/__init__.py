"""What refinements are compared with: embeddings (upstreams) and methods that change them."""

from .embeddings import CONTROLS, UPSTREAMS, Embedding, Recipe, embed, fit_pca, fit_scvi, operate
from .methods import METHODS, ROUNDS, Method, batchprox, harmony, unrefined

__all__ = [
    "CONTROLS",
    "METHODS",
    "ROUNDS",
    "UPSTREAMS",
    "Embedding",
    "Method",
    "Recipe",
    "batchprox",
    "embed",
    "fit_pca",
    "fit_scvi",
    "harmony",
    "operate",
    "unrefined",
]
