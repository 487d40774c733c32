"""Genes of new data compared with those of a reference: which are missing, and how much that matters."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..choices import MIN_SHARED
from ..core.checks import check_number, some_of
from ..core.shown import PrintsFacts
from ..errors import BadValue, Parameter
from ..kernels.arrays import Floats

__all__ = [
    "MIN_SHARED", "GeneReport", "check_distinct", "check_positive", "positions", "require_shared",
]  # fmt: skip


@dataclass(frozen=True, repr=False)
class GeneReport(PrintsFacts):
    """Genes of the reference that new data lacks.

    Attributes
    ----------
    n_genes
        Number of genes that the reference uses.
    missing
        Names of the genes that the data does not have.
    filled_with
        The values used in their place.
    weight_lost
        Share of the variance of the embedding that lies in the missing genes, if it is known.
    counts_lost
        Mean share of the missing genes in the counts of a reference cell, if totals are corrected
        for it.

    Examples
    --------
    >>> from scbatchprox.upstream import GeneReport
    >>> print(GeneReport(n_genes=3, missing=("CD4",), filled_with="their means in the reference"))
    2 of the reference's 3 genes were found; the other 1 were filled with their means in the reference: 'CD4'.
    """

    n_genes: int
    missing: tuple[str, ...]
    filled_with: str
    weight_lost: float | None = None
    counts_lost: float | None = None

    @property
    def n_found(self) -> int:
        """Number of genes that the data has."""
        return self.n_genes - len(self.missing)

    def _facts(self) -> str:
        return str(self).rstrip(".")

    def __str__(self) -> str:
        """Return a sentence for the user."""
        sentence = f"{self.n_found:,} of the reference's {self.n_genes:,} genes were found"
        if self.missing:
            weight = "" if self.weight_lost is None else f" ({self.weight_lost:.1%} of the weight)"
            sentence += (
                f"; the other {len(self.missing):,}{weight} were filled with {self.filled_with}: "
                f"{some_of(self.missing)}"
            )
        if self.counts_lost:
            sentence += (
                f"; totals of cells were corrected for the {self.counts_lost:.1%} of the counts that "
                f"the reference has on the missing genes"
            )
        return f"{sentence}."

    def facts(self) -> dict[str, Any]:
        """Return the attributes in types that JSON, h5ad and zarr can write."""
        given = {name: value for name, value in asdict(self).items() if value is not None}
        return given | {"missing": list(self.missing)}


def positions(reference: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Return the position of each gene of the reference among those found; -1 if it is missing."""
    index = pd.Index(found)
    first = ~index.duplicated()
    if not first.all():
        check_distinct(found[np.isin(found, reference)])
    at = index[first].get_indexer(pd.Index(reference))
    where: np.ndarray = np.append(np.flatnonzero(first), -1)[at]
    return where


def check_distinct(genes: np.ndarray, where: str = "") -> None:
    """Check that gene names are unique; ``where`` is appended to the error message."""
    index = pd.Index(genes)
    if index.has_duplicates:
        twice = index[index.duplicated()].unique()
        raise BadValue(
            f"Expected unique gene names, found {some_of(twice)} more than once{where}; "
            f"adata.var_names_make_unique() makes them unique."
        )


def check_positive(name: str, value: object) -> None:
    """Check a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise BadValue(
            "Expected ", Parameter(name), f" to be a whole number of at least 1, found {value!r}."
        )  # fmt: skip


def require_shared(
    reference: np.ndarray, found: np.ndarray, present: np.ndarray, weight: Floats, min_shared: float
) -> None:
    """Check that new data has enough of the genes of the reference, by number and by weight.

    Parameters
    ----------
    reference, found
        Names of the genes that the reference uses, and of the genes in the data.
    present
        Which of the reference's genes the data has.
    weight
        Weight of each of the reference's genes; they sum to one.
    min_shared
        The smallest accepted share.
    """
    check_number("min_shared", min_shared, positive=True)
    if min_shared > 1:
        raise BadValue(
            "Expected ", Parameter("min_shared"), f" to be a share up to 1, found {min_shared!r}."
        )  # fmt: skip
    share, kept = present.mean(), weight[present].sum()
    if min(share, kept) < min_shared:
        of_weight = "" if np.ptp(weight) == 0 else f" with {kept:.0%} of their weight"
        raise BadValue(
            f"Expected at least {min_shared:.0%} of the {reference.size:,} genes of the reference (such "
            f"as {some_of(reference[:3])}), found {present.sum():,} ({share:.0%}){of_weight} among "
            f"{found.size:,} genes (such as {some_of(found[:3])}); genes are matched by var_names."
        )
