"""Names that users choose from. The command line lists them in its help, before anything is loaded."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["EXPERIMENTS", "Genes", "Methods", "Profiles", "Solvers"]


class Solvers(StrEnum):
    """How an adapter is fitted: the keys of :data:`scbatchprox.core.solvers.SOLVERS`."""

    exact = "exact"
    adam = "adam"


class Methods(StrEnum):
    """Kinds of upstreams."""

    pca = "pca"
    scvi = "scvi"


class Genes(StrEnum):
    """Ways to choose the genes that an upstream embeds with."""

    scanpy = "scanpy"
    flagged = "flagged"
    all = "all"


class Profiles(StrEnum):
    """Which cells are scored: all, or few."""

    full = "full"
    fast = "fast"


#: Experiments of ``scbatchprox bench``, in the order in which ``--all`` runs them.
EXPERIMENTS = (
    "classify", "imbalance", "continual", "cumulative", "molecules", "ablation", "rounds", "planted",
    "sensitivity",
)  # fmt: skip
