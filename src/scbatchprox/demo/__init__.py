"""Simulated cells, and the demonstrations that refine them in one place and at three sites.

Only the command line imports this package.

Examples
--------
>>> from scbatchprox.demo import Composition, simulate
>>> table = Composition("mine", ("a", "b"), ("T", "B"), [[30, 20], [10, 40]])
>>> simulate(table, n_genes=50, n_components=5).obsm["X_pca"].shape
(100, 5)
"""

from .compositions import Composition
from .simulation import simulate

__all__ = ["Composition", "simulate"]
