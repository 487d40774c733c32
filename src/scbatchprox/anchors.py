"""Where the populations of each batch are: k-means in each batch alone, on a sample of its cells."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ._blocks import native_blocks, split
from ._kernels import rows_of_ranks
from ._nearest import kmeans, nearest
from ._threads import get_num_threads, parallel_map
from ._types import Floats, Ints
from .labels import Labels, among, union

__all__ = ["Anchors", "anchors_for", "sample_rows"]

#: One population for every so many cells of a batch, within bounds.
CELLS, FEWEST, MOST = 5, 2, 60
#: Cells that are looked at to find one population, and rounds of k-means.
SAMPLE, ROUNDS = 50, 8
#: Rows that the loops over cells and centres take at a time: their distances stay in the cache.
BLOCK_ROWS = 2048


@dataclass(frozen=True, eq=False)
class Anchors:
    """A few points in each batch. A cell belongs to the nearest one of its own batch.

    Attributes
    ----------
    batches
        (B,) distinct labels, sorted.
    batch
        (P,) position in ``batches`` of each anchor's batch, in order; every batch has one or more.
    center
        (P, d) where the anchors are.
    """

    batches: np.ndarray
    batch: Ints
    center: Floats

    @cached_property
    def start(self) -> Ints:
        """(B + 1,) the anchors of batch b are ``start[b]`` to ``start[b + 1]``."""
        return np.searchsorted(self.batch, np.arange(self.batches.size + 1))

    @cached_property
    def origin(self) -> Floats:
        """(B, d) a point amid the anchors of each batch, about which distances are taken.

        A median, since one cell that is far away must not blur the others.
        """
        parts = np.split(self.center, self.start[1:-1])
        return np.stack([np.median(part, axis=0) for part in parts])

    @cached_property
    def packed(self) -> tuple[np.ndarray, np.ndarray]:
        """Centres about their origin, (d, K) per batch one after the other, and half their squares."""
        about = (self.center - self.origin[self.batch]).astype(np.float32)
        pieces = [about[lo:hi].T.ravel() for lo, hi in pairwise(self.start)]
        half = (about.astype(np.float64) ** 2).sum(1) / 2.0
        return np.concatenate(pieces), half.astype(np.float32)

    def labels(self, Z: Any, labels: Labels) -> Labels:
        """Return the population of each cell, the number of its anchor, as a label."""
        within = labels.within(self.batches)
        codes = np.empty(within.codes.size, np.int32)

        def part(rows: tuple[int, int]) -> None:
            for lo, hi, block in native_blocks(Z, *rows):
                nearest(
                    block, within.codes[lo:hi], self.start, self.origin, *self.packed,
                    min(BLOCK_ROWS, hi - lo), codes[lo:hi],
                )  # fmt: skip

        parallel_map(part, split(codes.size, get_num_threads()))
        return Labels(codes, np.arange(self.batch.size))

    def select(self, batches: list[Hashable]) -> tuple[Anchors, np.ndarray]:
        """Return the anchors of some batches, and which of all they are (P,)."""
        wanted = among(self.batches, batches)
        keep = wanted[self.batch]
        position = np.cumsum(wanted) - 1
        return Anchors(self.batches[wanted], position[self.batch[keep]], self.center[keep]), keep

    def joined(self, other: Anchors) -> tuple[Anchors, np.ndarray]:
        """Return the anchors of both, which share no batch, and where those of each now stand."""
        batches = union(self.batches, other.batches)
        code = np.concatenate([
            np.searchsorted(batches, part.batches)[part.batch] for part in (self, other)
        ])  # fmt: skip
        order = np.argsort(code, kind="stable")
        center = np.concatenate([self.center, other.center])
        return Anchors(batches, code[order], center[order]), order


def n_populations(n_cells: Any) -> Any:
    """How many populations a batch of so many cells is described by."""
    return np.minimum(np.clip(np.asarray(n_cells) // CELLS, FEWEST, MOST), n_cells)


def sample_rows(labels: Labels, seed: int = 0) -> Ints:
    """Rows to look at, sorted: some of each batch, chosen by its own number of cells alone."""
    n = labels.n
    wanted = np.minimum(n, SAMPLE * n_populations(n))
    start = np.concatenate([[0], np.cumsum(wanted)])
    ranks = np.concatenate([
        np.arange(m) if m == all_of
        else np.sort(np.random.default_rng(seed).choice(all_of, m, replace=False))
        for all_of, m in zip(n.tolist(), wanted.tolist(), strict=True)
    ])  # fmt: skip
    rows = np.empty(start[-1], np.int64)
    rows_of_ranks(labels.codes, ranks, start, rows)
    return np.sort(rows)


def anchors_for(
    labels: Labels, take: Callable[[Ints], Any], seed: int = 0, known: Anchors | None = None
) -> Anchors:
    """Anchors for the batches of ``labels``: those that are known, and found ones for the others.

    ``take`` reads the cells at some rows, sorted, wherever they are.
    """
    have = [] if known is None else known.batches.tolist()
    old = [b for b in labels.batches.tolist() if b in have]
    if not old or known is None:
        rows = sample_rows(labels, seed)
        return find_anchors(take(rows), labels.at(rows), labels.n, seed)
    kept, _ = known.select(old)
    new = np.flatnonzero(~np.isin(labels.batches, kept.batches))
    if not new.size:
        return kept
    mine = np.flatnonzero(np.isin(labels.codes, new))
    others = Labels(np.searchsorted(new, labels.codes[mine]).astype(np.int32), labels.batches[new])
    found = anchors_for(others, lambda rows: take(mine[rows]), seed)
    return kept.joined(found)[0]


def find_anchors(sample: Any, labels: Labels, n_cells: Ints, seed: int = 0) -> Anchors:
    """Anchors of every batch from the cells at :func:`sample_rows`; ``n_cells`` (B,) of each batch.

    Every batch is clustered alone and with the same seed, so that its anchors do not depend on what
    other batches there are.
    """
    sample = np.asarray(sample.toarray() if hasattr(sample, "toarray") else sample)
    rows = labels.rows()
    k = n_populations(n_cells)

    def centers(b: int) -> Floats:
        cells = sample[rows[b]].astype(np.float64)
        origin = np.median(cells, axis=0)
        X = (cells - origin).astype(np.float32)
        C = kmeans(X, np.ones(len(X)), int(k[b]), ROUNDS, np.random.default_rng(seed))
        return np.asarray(origin + C.astype(np.float64))

    found = parallel_map(centers, range(labels.batches.size))
    batch = np.repeat(np.arange(len(found)), [len(C) for C in found])
    return Anchors(labels.batches, batch, np.concatenate(found))
