"""Where the populations of each batch are: k-means in each batch alone, on a sample of its cells."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from ._kmeans import kmeans
from ._products import Centers, nearest, sums_around
from ._runs import Rows, map_runs
from ._threads import one_numpy_thread, parallel_map
from ._types import Floats, Ints
from ._validate import nonfinite_error
from .labels import Labels, among, union
from .moments import Moments
from .population_settings import PopulationSettings
from .sampling import Sample

__all__ = ["Anchors", "anchors_for", "looked_at"]

#: Cells whose median a batch is seen from.
AMID = 500
DEFAULTS = PopulationSettings()


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

        A median, since one cell that is far away must not blur the others. In few digits, where these
        tell it from the anchors: then cells in single precision are subtracted from it as they are.
        """
        parts = np.split(self.center, self.start[1:-1])
        return np.stack([_amid(part) for part in parts])

    def own(self, b: int) -> slice:
        """Which anchors are those of batch b."""
        return slice(int(self.start[b]), int(self.start[b + 1]))

    def of_batch(self, b: int) -> Centers:
        """The anchors of batch b, ready for products."""
        return Centers.of(self.center[self.own(b)], self.origin[b])

    def labels(self, Z: Any, labels: Labels) -> Labels:
        """Return the population of each cell, the number of its anchor, as a label."""
        within = labels.within(self.batches)
        codes = np.empty(within.codes.size, np.int32)

        def run(b: int, rows: Rows) -> None:
            codes[rows] = self.start[b] + nearest(Z, rows, self.of_batch(b))

        for _ in map_runs(run, within.codes, self.batches.size):
            pass
        return Labels(codes, np.arange(self.batch.size))

    def moments(self, Z: Any, labels: Labels) -> Moments:
        """Moments of the cells around each anchor that has any, whose number is their label; one pass."""
        within = labels.within(self.batches)
        P, d = self.center.shape
        n, sums = np.zeros(P, np.int64), np.zeros((2, P, d))

        def run(b: int, rows: Rows) -> tuple[Ints, Floats]:
            return sums_around(Z, rows, self.of_batch(b))

        for b, (cells, more) in map_runs(run, within.codes, self.batches.size):
            n[self.own(b)] += cells
            sums[:, self.own(b)] += more
        found = Moments.about(np.arange(P), n, self.center, sums)
        if found is None:
            raise nonfinite_error(Z)
        return found

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


def _amid(center: Floats) -> Floats:
    """The median, to single precision if that moves it by less than the anchors are away from it."""
    middle = np.median(center, axis=0)
    with np.errstate(over="ignore"):
        short = middle.astype(np.float32).astype(np.float64)
    near = np.abs(short - middle).max() <= np.abs(center - middle).max()
    return np.asarray(short if near else middle)


def n_populations(n_cells: Any, settings: PopulationSettings) -> Any:
    """How many populations a batch of so many cells is described by."""
    n = np.asarray(n_cells)
    wanted = np.maximum(n // settings.cells, np.minimum(n // settings.small, settings.enough))
    return np.minimum(np.clip(wanted, settings.fewest, settings.most), n)


def looked_at(n_cells: Ints, settings: PopulationSettings = DEFAULTS) -> Ints:
    """(B,) how many cells of batches of so many are looked at to find their populations."""
    wanted = settings.sample * n_populations(n_cells, settings)
    return np.asarray(np.minimum(n_cells, wanted), np.int64)


def anchors_for(
    labels: Labels,
    sample: Callable[[Ints, int], Sample],
    seed: int = 0,
    known: Anchors | None = None,
    settings: PopulationSettings = DEFAULTS,
) -> Anchors:
    """Anchors for the batches of ``labels``: those that are known, and found ones for the others.

    ``sample(most, seed)`` draws up to ``most`` (B,) cells of each batch, wherever they are.
    """
    have = set() if known is None else set(known.batches.tolist())
    new = ~among(labels.batches, have)
    wanted = looked_at(labels.n, settings)
    if known is None or new.all():
        return find_anchors(sample(wanted, seed), labels.n, seed, settings)
    kept, _ = known.select(labels.batches[~new].tolist())
    if not new.any():
        return kept
    drawn = sample(np.where(new, wanted, 0), seed)
    return kept.joined(find_anchors(drawn, labels.n, seed, settings))[0]


def find_anchors(
    sample: Sample, n_cells: Ints, seed: int = 0, settings: PopulationSettings = DEFAULTS
) -> Anchors:
    """Anchors of every batch that a sample holds cells of; ``n_cells`` (B,) of each batch.

    Every batch is clustered alone and with the same seed, so that its anchors do not depend on what
    other batches there are.
    """
    k = n_populations(n_cells, settings)
    held = np.flatnonzero(sample.n > 0)
    turn = Lock()

    def centers(b: int) -> Floats:
        cells = sample.of_batch(b).astype(np.float64)
        origin = np.median(cells[:AMID], axis=0)  # a point amid them: any few will do
        cells -= origin
        X = _in_line(cells, seed).astype(np.float32)
        rng = np.random.default_rng(seed)
        C = kmeans(X, np.ones(len(X)), int(k[b]), settings.find, rng, turn)
        return np.asarray(origin + C.astype(np.float64))

    with one_numpy_thread(), np.errstate(over="ignore", invalid="ignore"):
        found = parallel_map(centers, held.tolist())
    batch = np.repeat(np.arange(len(found)), [len(C) for C in found])
    return Anchors(sample.labels.batches[held], batch, np.concatenate(found))


def _in_line(X: np.ndarray, seed: int) -> np.ndarray:
    """Rows in their order along some direction, wherever they stood.

    Rows are drawn by where they are in a list. In this one, unlike that of hashes, cells that are shifted
    together, or by very little, keep their places.
    """
    direction = np.random.default_rng(seed).normal(size=X.shape[1])
    return X[np.argsort(np.einsum("ij,j->i", X, direction), kind="stable")]
