"""The Dask door: cells in blocks of rows, wherever the active scheduler runs them; lazy in, lazy out.

Each block becomes Moments, which are merged along a tree that the chunks alone decide, so that
neither scheduling nor a lost worker can change a bit of the result; the Adapter then goes to the
blocks. Batches travel as codes: a task gets the codes of its own rows and never a label. Dask is
imported by whoever makes a Dask array; this module imports it only once it holds one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from ..core.adapter import Adapter
from ..core.anchors import Anchors
from ..core.checks import check_dtype, check_embedding, check_shape, nonfinite_error
from ..core.group_moments import group_moments
from ..core.labels import Labels
from ..core.moments import Moments
from ..core.sampling import Draw, Sample
from ..core.solvers import Solver
from ..errors import BadValue, NotFinite
from ..kernels.arrays import Ints
from ..kernels.blocks import output_dtype
from .memory import MemoryCells

__all__ = [
    "DaskCells",
    "LazyAdapter",
    "adapter_for",
    "cells_of",
    "check_cells",
    "in_memory",
    "is_lazy",
    "moments",
    "refuse",
]

#: Moments that one task of the tree merges: few tasks, and still a tree for thousands of blocks.
FAN_IN = 8


def is_lazy(Z: Any) -> bool:
    """Whether ``Z`` is a Dask array, without importing Dask to find out."""
    dask_array = sys.modules.get("dask.array")
    return dask_array is not None and isinstance(Z, dask_array.Array)


def in_memory(batch: Any) -> Any:
    """Return labels to look at now: Dask's and xarray's (a column of a lazy AnnData) are computed.

    A lazy categorical is read as codes and categories; its strings are never spelled out per cell.
    """
    xarray = sys.modules.get("xarray")
    if xarray is not None and isinstance(batch, xarray.DataArray):
        batch = batch.data
    if sys.modules.get("dask") is not None and _dask().is_dask_collection(batch):
        (batch,) = _dask().compute(batch)
    return batch


def check_cells(Z: Any) -> Any:
    """:func:`check_embedding`, and the same for a Dask array: its rows in blocks of known size."""
    if not is_lazy(Z):
        return check_embedding(Z)
    if np.isnan(Z.shape).any():
        raise BadValue(
            "Expected a Dask array with chunks of known size, found unknown (nan) ones; "
            "call compute_chunk_sizes() on it first."
        )
    Z = check_shape(check_dtype(Z))
    return Z.rechunk({1: -1}) if Z.numblocks[1] > 1 else Z


def refuse(solver: Solver, out: Any = None) -> None:
    """Say before anything is computed what cannot be done with a Dask array."""
    if solver.needs_cells:
        raise BadValue(
            f"Expected a solver that needs only moments for a Dask array (solver='exact' works "
            f"lazily), found {solver!r}, which visits cells in random order and needs them in memory."
        )
    _refuse_out(out)


def _refuse_out(out: Any) -> None:
    if out is not None:
        raise BadValue(
            f"Expected no `out` for a Dask array, whose result is lazy, found one of type "
            f"{type(out).__name__}; write the result with its store() or to_zarr()."
        )


@dataclass(frozen=True, eq=False)
class DaskCells:
    """Cells in a Dask array, with their batches."""

    Z: Any
    labels: Labels

    def by_batch(self) -> list[DaskCells]:
        """All cells: taking those of one batch out of every block would read each block many times."""
        return [self]

    def sample(self, most: Ints, seed: int = 0) -> Sample:
        """Up to ``most`` (B,) cells of each batch, chosen by their content; they must be finite."""
        draw = _tree(_block_draw, partial(_joined, most), self.Z, self.labels, most=most, seed=seed)
        (found,) = _dask().compute(draw)
        result: Sample = found.sample(self.labels, most, lambda rows: self.Z[rows].compute())
        return result

    def small_sample(self, most: Ints, seed: int = 0) -> Sample:
        """As :meth:`sample`."""
        return self.sample(most, seed)

    def moments(self, by: Labels | Anchors | None = None) -> Moments:
        """Moments of the batches, of other groups, or of the cells around each anchor."""
        return moments(self.Z, self.labels, by)


def cells_of(Z: Any, labels: Labels) -> MemoryCells | DaskCells:
    """Cells that :func:`check_cells` has seen, with their batches."""
    return DaskCells(Z, labels) if is_lazy(Z) else MemoryCells(Z, labels)


def moments(Z: Any, labels: Labels, by: Labels | Anchors | None = None) -> Moments:
    """Moments of a Dask array that :func:`check_cells` has seen, computed where Dask computes."""
    if isinstance(by, Anchors):
        tree, names = moments_tree(Z, labels.within(by.batches), by), np.arange(by.batch.size)
    else:
        groups = labels if by is None else by
        tree, names = moments_tree(Z, groups, grouped=by is not None), groups.batches
    (total,) = _dask().compute(tree)
    return Moments.per_batch(names[total.batches], total.n, total.mean, total.m2)


def moments_tree(
    Z: Any, labels: Labels, anchors: Anchors | None = None, grouped: bool = False
) -> Any:
    """The moments, still to be computed, with codes for labels."""
    # A task of its own: anchors are sent to a worker once, not with every block.
    sent = {"anchors": _dask().delayed(anchors, pure=True, traverse=False)} if anchors else {}
    return _tree(_block_moments, _merge, Z, labels, grouped=grouped, **sent)


def _tree(block: Any, merge: Any, Z: Any, labels: Labels, **options: Any) -> Any:
    """What ``block`` makes of every block of rows, merged along a tree; still to be computed."""
    tree = _dask().array.reduction(
        _map_blocks(block, Z, labels, dtype=object, chunks=(1, 1), **options),
        chunk=_itself,
        combine=merge,
        aggregate=merge,
        split_every={0: FAN_IN, 1: 2},
        concatenate=False,
        dtype=object,
        meta=np.empty((), object),
    )
    # Delayed, since the result is no array and must not be finished like one.
    return tree.to_delayed().item()


@dataclass(frozen=True)
class LazyAdapter:
    """An Adapter for Dask arrays: the same verbs, which return Dask arrays."""

    adapter: Adapter

    def apply(self, Z: Any, batch: Any = None, *, out: Any = None) -> Any:
        """Refine cells (N, d) of known batches when the result is computed."""
        return self._map("apply", Z, batch, out)

    def apply_finite(self, Z: Any, labels: Labels, out: Any = None) -> Any:
        """:meth:`apply`; what was finite when fitted to is looked at again when it is read again."""
        return self._map("apply", Z, labels, out)

    def inverse(self, Z: Any, batch: Any = None, *, out: Any = None) -> Any:
        """Take refined cells back to where they came from when the result is computed."""
        return self._map("inverse", Z, batch, out)

    def _map(self, verb: str, Z: Any, batch: Any, out: Any) -> Any:
        _refuse_out(out)
        Z = check_cells(Z)
        known = self.adapter.batches
        zeros = np.zeros(Z.shape[0], np.int32)
        # One cell in memory meets every check that does not look at the data, now rather than later.
        one = np.zeros((1, Z.shape[1]), output_dtype(Z))
        getattr(self.adapter, verb)(one, None if batch is None else Labels(zeros[:1], known))
        labels = (
            Labels(zeros, known) if batch is None else Labels.of(batch, Z.shape[0]).within(known)
        )
        # A task of its own: the adapter is sent to a worker once, not with every block.
        adapter = _dask().delayed(self.adapter, pure=True, traverse=False)
        return _map_blocks(
            _block_apply, Z, labels, dtype=output_dtype(Z), adapter=adapter, verb=verb
        )


def adapter_for(Z: Any, adapter: Adapter) -> Adapter | LazyAdapter:
    """Return what moves cells of this kind."""
    return LazyAdapter(adapter) if is_lazy(Z) else adapter


def _dask() -> Any:
    """Dask without its types, which it has for few of its functions."""
    import dask
    import dask.array

    return dask


def _map_blocks(block: Any, Z: Any, labels: Labels, *, dtype: Any, **options: Any) -> Any:
    """``block(rows of Z, their codes, **options)`` for every block, lazily."""
    da = _dask().array
    # The smallest integers that will do: codes are what a graph holds most of.
    codes = labels.codes.astype(np.min_scalar_type(labels.batches.size - 1))[:, None]
    codes = da.from_array(codes, chunks=(Z.chunks[0], 1))
    return da.map_blocks(block, Z, codes, dtype=dtype, meta=np.empty((0, 0), dtype), **options)


def _block_moments(
    Z: Any,
    codes: np.ndarray,
    anchors: Anchors | None = None,
    grouped: bool = False,
    block_info: Any = None,
) -> Moments | None:
    """Moments of one block with codes for labels; ``None`` of a block without rows."""
    if Z.shape[0] == 0:
        return None
    try:
        if anchors is not None:
            return anchors.moments(Z, Labels(codes[:, 0].astype(np.int32), anchors.batches))
        return (group_moments if grouped else Moments.of)(Z, Labels.of(codes[:, 0], Z.shape[0]))
    except NotFinite:
        raise nonfinite_error(Z, block_info[0]["array-location"][0][0]) from None


def _block_draw(
    Z: Any, codes: np.ndarray, most: Ints, seed: int, block_info: Any = None
) -> Draw | None:
    """What one block keeps to draw from; ``None`` of a block without rows."""
    if Z.shape[0] == 0:
        return None
    try:
        return Draw.of(Z, codes[:, 0].astype(np.int32), most, seed)
    except NotFinite:
        raise nonfinite_error(Z, block_info[0]["array-location"][0][0]) from None


def _itself(part: Any, axis: Any, keepdims: bool) -> Any:
    return part


def _some(parts: Any) -> list[Any]:
    """What neighbouring blocks made, from left to right, but for those without rows."""
    # Dask hands a single part over as it is, several as rows of one.
    rows = parts if isinstance(parts, list) else [[parts]]
    return [part for row in rows for part in row if part is not None]


def _merge(parts: Any, axis: Any, keepdims: bool) -> Moments | None:
    """Merge moments of neighbouring blocks, from left to right."""
    some = _some(parts)
    return reduce(Moments.merge, some) if some else None


def _joined(most: Ints, parts: Any, axis: Any, keepdims: bool) -> Draw | None:
    """Draw from neighbouring blocks, from left to right."""
    some = _some(parts)
    return Draw.joined(some, most) if some else None


def _block_apply(
    Z: Any, codes: np.ndarray, adapter: Adapter, verb: str, block_info: Any = None
) -> np.ndarray:
    if Z.shape[0] == 0:
        return np.empty(Z.shape, output_dtype(Z))
    labels = Labels(codes[:, 0].astype(np.int32), adapter.batches)
    try:
        result: np.ndarray = getattr(adapter, verb)(Z, labels)
    except NotFinite:
        raise nonfinite_error(Z, block_info[0]["array-location"][0][0]) from None
    return result
