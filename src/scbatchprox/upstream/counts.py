"""Counts of cells, wherever they lie: read a stretch of rows at a time, and checked to be counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import scipy.sparse as sp

from ..cells.dask import in_memory
from ..cells.keys import batch_labels
from ..core.checks import some_of
from ..errors import BadKey, BadType, BadValue
from ..kernels.arrays import Floats

__all__ = ["BLOCK_BYTES", "Counts", "totals_of"]

#: Bytes that a stretch of rows would take if it were dense.
BLOCK_BYTES = 1 << 26


@dataclass(frozen=True, eq=False)
class Counts:
    """Counts (cells x genes) that need not be in memory.

    Attributes
    ----------
    rows
        A matrix of which stretches of rows can be taken: an array, a sparse matrix, a backed one.
    var
        What is known of the genes, by their names.
    batch
        The batch of each cell, for an upstream that must know it.
    fractional
        Whether other numbers than whole ones are counts too.
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
        """Take the counts of an AnnData, in memory or backed, from ``X`` or from a layer."""
        if not isinstance(adata, ad.AnnData):
            raise BadType(f"Expected an AnnData with counts, found {type(adata).__name__}.")
        layers = [
            name for name in adata.layers if name is not None
        ]  # None is X, from anndata 0.13 on
        if layer is not None and layer not in layers:
            raise BadKey(
                f"Expected counts in a layer, found no {layer!r}; "
                f"available: {some_of(layers, most=20)}."
            )
        rows = adata.X if layer is None else adata.layers[layer]
        if rows is None:
            raise BadValue(f"Expected counts in X, found none; layers: {some_of(layers, most=20)}.")
        batch = None if batch_key is None else batch_labels(adata.obs, batch_key)
        var = adata.var
        if not isinstance(var, pd.DataFrame):  # of a lazily opened AnnData
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
        """Stretches of rows, each with the number of its first one; anything but counts is an error."""
        if 0 in self.rows.shape:
            raise BadValue(f"Expected cells and genes, found counts of shape {self.rows.shape}.")
        step = _step(self.rows)
        for lo in range(0, self.n_cells, step):
            block = sp.csr_matrix(in_memory(self.rows[lo : lo + step]))
            self._check(block, lo)
            yield lo, block

    def in_memory(self) -> sp.csr_matrix:
        """All counts."""
        return sp.vstack([block for _, block in self.blocks()], format="csr")

    def _check(self, block: sp.csr_matrix, lo: int) -> None:
        values = block.data
        if values.dtype.kind in "bu":
            return
        bad = ~np.isfinite(values) | (values < 0)
        hint = ""
        if not bad.any() and not self.fractional:
            bad = values != np.rint(values)
            hint = (
                "; counts before any normalisation may be in a layer, and fractional=True "
                "(--fractional) takes fractional counts as they are"
            )
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            row = int(np.searchsorted(block.indptr, at, side="right")) - 1
            whole = "" if self.fractional else "whole "
            raise BadValue(
                f"Expected counts ({whole}numbers from 0 on), found {values[at]:g} in row {lo + row}, "
                f"gene {self.genes[block.indices[at]]!r}{hint}."
            )


def totals_of(block: sp.csr_matrix, counted: np.ndarray, lo: int = 0) -> Floats:
    """Counts of each cell on the genes that count; a cell without any is an error."""
    totals: Floats = block @ counted.astype(np.float64)
    empty = np.flatnonzero(totals == 0)
    if empty.size:
        raise BadValue(
            f"Expected counts in every cell, found none on the genes of the reference in {empty.size} "
            f"cells, the first in row {lo + int(empty[0])}; filter out empty cells first."
        )
    return totals


def _by_rows(rows: Any) -> Any:
    """Return a matrix of which rows can be taken: those of a column-compressed one cannot be apart."""
    if getattr(rows, "format", None) != "csc":
        return rows
    return (rows if sp.issparse(rows) else rows.to_memory()).tocsr()


def _step(rows: Any) -> int:
    """Rows to take at a time: whole chunks, where rows are stored in such."""
    step = max(1, BLOCK_BYTES // (8 * int(rows.shape[1])))
    chunks = getattr(rows, "chunks", None)
    chunk: int = chunks[0] if chunks and isinstance(chunks[0], int) else 1
    return max(chunk, step // chunk * chunk)
