"""Cells in a Dask array: blocks of rows, computed by the active scheduler. Lazy input, lazy result.

The moments of the blocks are merged along a tree that depends only on the chunks. So neither scheduling
nor a lost worker can change the result. Then the adapter is sent to the blocks. A task gets integer
codes for the batches of its own rows, never labels. This module imports Dask only when it is given a
Dask array.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from ..core.adapter import Adapter
from ..core.checks import check_dtype, check_embedding, check_shape, nonfinite_error
from ..core.labels import Labels
from ..core.moments import Anchors, Moments, group_moments
from ..core.sampling import Draw, Sample
from ..core.solvers import Solver
from ..errors import BadValue, NotFinite, Parameter
from ..kernels.arrays import Ints
from ..kernels.blocks import output_dtype
from .memory import MemoryCells, Sampled

__all__ = [
    "DaskCells", "LazyAdapter", "adapter_for", "cells_of", "check_cells", "check_supported", "in_memory",
    "is_lazy",
]  # fmt: skip

#: Results that one task of the tree merges: large enough for few tasks, small enough for a tree.
FAN_IN = 8


def is_lazy(Z: Any) -> bool:
    """Whether ``Z`` is a Dask array; does not import Dask."""
    dask_array = sys.modules.get("dask.array")
    return dask_array is not None and isinstance(Z, dask_array.Array)


def in_memory(batch: Any) -> Any:
    """Return labels in memory: compute those of Dask and xarray (a column of a lazy AnnData).

    A lazy categorical is read as codes and categories, without making one string per cell.
    """
    xarray = sys.modules.get("xarray")
    if xarray is not None and isinstance(batch, xarray.DataArray):
        batch = batch.data
    if sys.modules.get("dask") is not None and _dask().is_dask_collection(batch):
        (batch,) = _dask().compute(batch)
    return batch


def check_cells(Z: Any) -> Any:
    """Check an embedding as :func:`check_embedding` does, or a Dask array; return it in blocks of rows."""
    if not is_lazy(Z):
        return check_embedding(Z)
    if np.isnan(Z.shape).any():
        raise BadValue(
            "Expected a Dask array with chunks of known size, found unknown (nan) ones; "
            "call compute_chunk_sizes() on it first."
        )
    Z = check_shape(check_dtype(Z))
    return Z.rechunk({1: -1}) if Z.numblocks[1] > 1 else Z


def check_supported(solver: Solver, out: Any = None) -> None:
    """Raise, before anything is computed, if an option does not work with a Dask array."""
    if solver.needs_cells:
        raise BadValue(
            "Expected a solver that needs only moments for a Dask array (", Parameter("solver='exact'"),
            f" works lazily), found {solver!r}, which visits cells in random order and needs them in memory.",
        )  # fmt: skip
    _check_no_out(out)


def _check_no_out(out: Any) -> None:
    if out is not None:
        raise BadValue(
            f"Expected no `out` for a Dask array, whose result is lazy, found one of type "
            f"{type(out).__name__}; write the result with its store() or to_zarr()."
        )


@dataclass(frozen=True, eq=False)
class DaskCells(Sampled):
    """Cells in a Dask array that :func:`check_cells` has checked, with their batches."""

    Z: Any
    labels: Labels

    def by_batch(self) -> list[DaskCells]:
        """All cells at once: one part per batch would read every block once per batch."""
        return [self]

    def _drawn(self, most: Ints, seed: int) -> Sample:
        join = partial(Draw.joined, most=most)
        (found,) = _dask().compute(_tree(Draw.of, join, self.Z, self.labels, most=most, seed=seed))
        sample: Sample = found.sample(self.labels, most, lambda rows: self.Z[rows].compute())
        return sample

    def moments(self, by: Labels | Anchors | None = None) -> Moments:
        """Moments of the batches, of other groups, or of the cells around each anchor."""
        if isinstance(by, Anchors):
            codes, names = self.labels.within(by.batches), np.arange(by.batch.size)
            tree = moments_tree(self.Z, codes, by)
        else:
            groups = self.labels if by is None else by
            tree, names = moments_tree(self.Z, groups, grouped=by is not None), groups.batches
        (total,) = _dask().compute(tree)
        return Moments.per_batch(names[total.batches], total.n, total.mean, total.m2)

    def mapped(
        self, adapter: Adapter, verb: str, labels: Labels
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the mapped cells, block by block."""
        lo = 0
        for block in getattr(LazyAdapter(adapter), verb)(self.Z, labels).blocks:
            done = block.compute()
            yield lo, done
            lo += len(done)


def cells_of(Z: Any, labels: Labels) -> MemoryCells | DaskCells:
    """Return cells that :func:`check_cells` has checked, with their batches."""
    return DaskCells(Z, labels) if is_lazy(Z) else MemoryCells(Z, labels)


def moments_tree(
    Z: Any, labels: Labels, anchors: Anchors | None = None, grouped: bool = False
) -> Any:
    """Return the moments, not yet computed, with integer codes as batches."""
    # A separate task: the anchors are sent to each worker once, not with every block.
    sent = {"anchors": _dask().delayed(anchors, pure=True, traverse=False)} if anchors else {}
    merge = partial(reduce, Moments.merge)
    return _tree(_moments_of, merge, Z, labels, grouped=grouped, **sent)


def _tree(result: Any, join: Any, Z: Any, labels: Labels, **options: Any) -> Any:
    """Return the results of all blocks of rows, joined along a tree; not yet computed."""
    merge = partial(_joined, join)
    tree = _dask().array.reduction(
        _map_blocks(result, Z, labels, dtype=object, chunks=(1, 1), **options),
        chunk=_identity,
        combine=merge,
        aggregate=merge,
        split_every={0: FAN_IN, 1: 2},
        concatenate=False,
        dtype=object,
        meta=np.empty((), object),
    )
    # Delayed, because the result is not an array and Dask must not treat it as one.
    return tree.to_delayed().item()


@dataclass(frozen=True)
class LazyAdapter:
    """An adapter for Dask arrays: the same methods, which return Dask arrays."""

    adapter: Adapter

    def apply(self, Z: Any, batch: Any = None, *, out: Any = None) -> Any:
        """Refine cells (N, d) of known batches; computed when the result is."""
        return self._map("apply", Z, batch, out)

    def apply_finite(
        self, Z: Any, labels: Labels, out: Any = None, *, largest: float = np.inf
    ) -> Any:
        """As :meth:`apply`: cells are read again, so they are also checked again."""
        return self._map("apply", Z, labels, out)

    def inverse(self, Z: Any, batch: Any = None, *, out: Any = None) -> Any:
        """Return the unrefined positions of refined cells; computed when the result is."""
        return self._map("inverse", Z, batch, out)

    def _map(self, verb: str, Z: Any, batch: Any, out: Any) -> Any:
        _check_no_out(out)
        Z = check_cells(Z)
        known = self.adapter.batches
        zeros = np.zeros(Z.shape[0], np.int32)
        # Apply the adapter to one cell in memory: this makes all checks that do not need the data now.
        one = np.zeros((1, Z.shape[1]), output_dtype(Z))
        getattr(self.adapter, verb)(one, None if batch is None else Labels(zeros[:1], known))
        labels = (
            Labels(zeros, known) if batch is None else Labels.of(batch, Z.shape[0]).within(known)
        )
        # A separate task: the adapter is sent to each worker once, not with every block.
        adapter = _dask().delayed(self.adapter, pure=True, traverse=False)
        return _map_blocks(
            _applied, Z, labels, dtype=one.dtype, empty=one[:0], adapter=adapter, verb=verb
        )


def adapter_for(Z: Any, adapter: Adapter) -> Adapter | LazyAdapter:
    """Return an adapter that works on ``Z``, in memory or lazy."""
    return LazyAdapter(adapter) if is_lazy(Z) else adapter


def _dask() -> Any:
    """Import Dask, untyped: few of its functions have types."""
    import dask
    import dask.array

    return dask


def _map_blocks(
    result: Any, Z: Any, labels: Labels, *, dtype: Any, empty: Any = None, **options: Any
) -> Any:
    """Call ``result(rows of Z, their codes, **options)`` for every block, lazily.

    A block without rows has the result ``empty``.
    """
    da = _dask().array
    # The smallest sufficient integer type, because codes are most of a graph's size.
    codes = labels.codes.astype(np.min_scalar_type(labels.batches.size - 1))[:, None]
    codes = da.from_array(codes, chunks=(Z.chunks[0], 1))
    options |= {"result": result, "empty": empty, "dtype": dtype}
    return da.map_blocks(_of_block, Z, codes, meta=np.empty((0, 0), dtype), **options)


def _of_block(
    Z: Any, codes: np.ndarray, result: Any, empty: Any, block_info: Any = None, **options: Any
) -> Any:
    if Z.shape[0] == 0:
        return empty
    try:
        return result(Z, codes[:, 0].astype(np.int32), **options)
    except NotFinite:
        raise nonfinite_error(Z, block_info[0]["array-location"][0][0]) from None


def _moments_of(
    Z: Any, codes: np.ndarray, anchors: Anchors | None = None, grouped: bool = False
) -> Moments:
    """Return the moments of some rows, with codes as batches."""
    if anchors is not None:
        return anchors.moments(Z, Labels(codes, anchors.batches))
    return (group_moments if grouped else Moments.of)(Z, Labels.of(codes, Z.shape[0]))


def _applied(Z: Any, codes: np.ndarray, adapter: Adapter, verb: str) -> np.ndarray:
    result: np.ndarray = getattr(adapter, verb)(Z, Labels(codes, adapter.batches))
    return result


def _identity(part: Any, axis: Any, keepdims: bool) -> Any:
    return part


def _joined(join: Any, parts: Any, axis: Any, keepdims: bool) -> Any:
    """Join the results of neighbouring blocks, in order; ``None`` if all of them are without rows."""
    # Dask passes a single part as it is, and several as a list of lists.
    rows = parts if isinstance(parts, list) else [[parts]]
    found = [part for row in rows for part in row if part is not None]
    return join(found) if found else None
