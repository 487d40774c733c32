"""What refinements are compared with: embeddings by upstreams, and methods that change an embedding."""

from .embeddings import CONTROLS, UPSTREAMS, Embedding, Recipe, embed, fit_pca, fit_scvi, operate
from .methods import (
    METHODS,
    POPULATION,
    ROUNDS,
    SOLVERS,
    Method,
    batchprox,
    harmony,
    shuffled,
    unrefined,
)

__all__ = [
    "CONTROLS",
    "METHODS",
    "POPULATION",
    "ROUNDS",
    "SOLVERS",
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
    "shuffled",
    "unrefined",
]
