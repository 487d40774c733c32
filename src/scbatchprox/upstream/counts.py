"""Counts of cells, in memory or in a file: read in blocks of rows, and checked to be counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from ..cells.dask import in_memory
from ..cells.keys import batch_labels
from ..core.checks import some_of
from ..errors import BadKey, BadType, BadValue, Parameter, Part
from ..kernels.arrays import Floats, Ints

__all__ = ["BLOCK_BYTES", "Counts", "check_there", "totals_of"]

#: Bytes of a block of rows, if it were dense.
BLOCK_BYTES = 1 << 26


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts (cells x genes), in memory or in a file.

    Attributes
    ----------
    rows
        A matrix that can be sliced by rows: an array, a sparse matrix or a backed one.
    var
        Table of the genes, indexed by name.
    batch
        The batch of each cell, for an upstream that needs it.
    fractional
        Whether counts may be fractional.
    """

    rows: Any
    var: pd.DataFrame
    batch: pd.Series | None = None
    fractional: bool = False

    @classmethod
    def of(
        cls,
        adata: ad.AnnData,
        layer: str | None = None,
        *,
        batch_key: str | Sequence[str] | None = None,
        fractional: bool = False,
    ) -> Counts:
        """Return the counts of an AnnData, in memory or backed, from ``X`` or from a layer."""
        if not isinstance(adata, ad.AnnData):
            raise BadType(f"Expected an AnnData with counts, found {type(adata).__name__}.")
        # From anndata 0.13 on, the layer None is X.
        layers = [name for name in adata.layers if name is not None]
        rows = adata.X if layer is None else adata.layers.get(layer)
        check_there(rows, layer, layers)
        batch = None if batch_key is None else batch_labels(adata.obs, batch_key)
        var = adata.var
        if not isinstance(var, pd.DataFrame):  # the AnnData was opened lazily
            columns = {str(name): np.asarray(in_memory(var[name])) for name in var.columns}
            var = pd.DataFrame(columns, index=adata.var_names)
        return cls(_by_rows(rows), var, batch, fractional)

    @property
    def genes(self) -> np.ndarray:
        """Names of the genes."""
        return np.asarray(self.var.index, dtype=object)

    @property
    def n_cells(self) -> int:
        """The number of cells."""
        return int(self.rows.shape[0])

    def blocks(self) -> Iterator[tuple[int, sp.csr_matrix]]:
        """Yield blocks of rows, each with its first row number; values that are not counts are an error."""
        if 0 in self.rows.shape:
            raise BadValue(f"Expected cells and genes, found counts of shape {self.rows.shape}.")
        step = _step(self.rows)
        for lo in range(0, self.n_cells, step):
            block = sp.csr_matrix(in_memory(self.rows[lo : lo + step]))
            self._check(block, lo)
            yield lo, block

    def chosen(self, columns: Ints, counted: Ints) -> Iterator[tuple[int, sp.csr_matrix, Floats]]:
        """Yield blocks of some columns: first row, counts, and totals of the cells over ``counted`` ones."""
        weight = np.zeros(self.genes.size)
        weight[counted] = 1.0
        for lo, block in self.blocks():
            totals = totals_of(block, weight, lo)
            found = sp.csr_matrix(block[:, columns])
            # Sorted and without duplicates: an entry stored in two parts is one count, and the result does
            # not depend on the order of genes.
            found.sum_duplicates()
            yield lo, found, totals

    def in_memory(self) -> sp.csr_matrix:
        """Return all counts."""
        return sp.vstack([block for _, block in self.blocks()], format="csr")

    def _check(self, block: sp.csr_matrix, lo: int) -> None:
        values = block.data
        if values.dtype.kind in "bu":
            return
        bad = ~np.isfinite(values) | (values < 0)
        hint: list[Part] = []
        if not bad.any() and not self.fractional:
            bad = values != np.rint(values)
            hint = [
                "; counts before normalisation may be in a layer, and ",
                Parameter("fractional=True", "--fractional"), " accepts fractional counts",
            ]  # fmt: skip
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            row = int(np.searchsorted(block.indptr, at, side="right")) - 1
            whole = "" if self.fractional else "whole "
            raise BadValue(
                f"Expected counts ({whole}numbers from 0 on), found {values[at]:g} in row {lo + row}, "
                f"gene {self.genes[block.indices[at]]!r}", *hint, ".",
            )  # fmt: skip


def check_there(rows: Any, layer: str | None, layers: Iterable[str], where: str = "") -> None:
    """Raise an error if there are no counts; ``where`` is added to their place."""
    available = f"available: {some_of(layers, most=20)}."
    if rows is None and layer is None:
        raise BadValue(f"Expected counts in X{where}, found none; {available}")
    if rows is None:
        raise BadKey(f"Expected counts in a layer{where}, found no {layer!r}; {available}")


def totals_of(block: sp.csr_matrix, counted: np.ndarray, lo: int = 0) -> Floats:
    """Return the total of each cell, genes weighted by ``counted`` (0 or 1); a total of 0 is an error."""
    totals: Floats = block @ counted.astype(np.float64)
    empty = np.flatnonzero(totals == 0)
    if empty.size:
        raise BadValue(
            f"Expected counts in every cell, found none on the genes of the reference in {empty.size} "
            f"cells, the first in row {lo + int(empty[0])}; filter out empty cells first."
        )
    return totals


def _by_rows(rows: Any) -> Any:
    """Return a matrix that can be sliced by rows; a column-compressed (CSC) one is converted."""
    if getattr(rows, "format", None) != "csc":
        return rows
    return (rows if sp.issparse(rows) else rows.to_memory()).tocsr()


def _step(rows: Any) -> int:
    """Return the number of rows in a block: whole chunks, if the rows are stored in chunks."""
    step = max(1, BLOCK_BYTES // (8 * int(rows.shape[1])))
    chunks = getattr(rows, "chunks", None)
    chunk: int = chunks[0] if chunks and isinstance(chunks[0], int) else 1
    return max(chunk, step // chunk * chunk)
