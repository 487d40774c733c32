"""Moments ``(n, mean, M2)`` of the cells of each batch: all that the method uses of the data."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import BadValue
from ..kernels.arrays import Floats, Ints
from ..kernels.blocks import RowNumbers, map_runs, native, native_blocks, split
from ..kernels.loops import add_sums, first_rows
from ..kernels.products import Adder, Centers, sums_around
from ..kernels.threads import one_numpy_thread, parallel_map
from .checks import check_embedding, nonfinite_error, warn_user
from .labels import Labels, OfBatches, union
from .shown import PrintsFacts, count

__all__ = ["Anchors", "Moments", "Pooled", "chan", "group_moments", "n_parts", "warn_if_barcodes"]

#: Bytes of a block of cells in :func:`scbatchprox.kernels.loops.add_sums`: half of a common L2 cache.
CACHE_BYTES = 1 << 18
#: Parts that the rows are cut into, at most, and rows in a part, at least.
MOST_PARTS, LEAST_PART_ROWS = 128, 32_768

#: Labels are probably not batches if the median batch has fewer cells than this.
FEW_CELLS = 10


@dataclass(frozen=True, repr=False)
class Pooled(PrintsFacts):
    """Number, mean and spread of the cells of several batches together: all that a target needs of them.

    Attributes
    ----------
    n_cells, n_batches
        Numbers of cells and batches.
    mean, m2
        (d,) mean of all cells, and the sum of squared deviations from it.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [2.0], [5.0], [7.0]])
    >>> batch = ["a", "a", "b", "b"]
    >>> from scbatchprox import Moments
    >>> pooled = Moments.of(Z, batch).pooled()
    >>> pooled.n_cells, pooled.mean.tolist(), pooled.var.tolist()
    (4, [3.5], [7.25])
    """

    n_cells: int
    n_batches: int
    mean: Floats
    m2: Floats

    def _facts(self) -> str:
        batches = count(self.n_batches, "batch", "batches")
        return f"{count(self.n_cells, 'cell')} in {batches}, {count(self.mean.size, 'coordinate')}"

    @property
    def std(self) -> Floats:
        r"""(d,) population standard deviation :math:`\hat s`."""
        return np.sqrt(self.var)

    @property
    def var(self) -> Floats:
        r"""(d,) population variance :math:`\hat s^2`."""
        return self.m2 / max(self.n_cells, 1)


@dataclass(frozen=True, eq=False, repr=False)
class Moments(OfBatches):
    r"""Number of cells, mean and sum of squared deviations, per row and coordinate.

    A row is a batch, or a population of a batch.

    Attributes
    ----------
    batches
        (B,) distinct labels, sorted.
    batch
        (R,) position in ``batches`` of each row's batch, in order; every batch has one or more rows.
    n
        (R,) cells per row.
    mean
        (R, d) :math:`\hat\mu_b`.
    m2
        (R, d) :math:`\sum_{i \in I_b} (z_i - \hat\mu_b)^2`. Raw sums of squares would cancel for
        embeddings far from the origin.
    anchors
        (R, d) the points that the cells of populations were assigned to: more cells of a known batch
        belong to the nearest one. ``None`` if rows are whole batches.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [2.0], [5.0], [7.0]])
    >>> batch = ["a", "a", "b", "b"]
    >>> from scbatchprox import Moments
    >>> moments = Moments.of(Z, batch)
    >>> moments.n.tolist(), moments.mean.ravel().tolist(), moments.m2.ravel().tolist()
    ([2, 2], [1.0, 6.0], [2.0, 2.0])
    >>> Moments.of(Z[:3], batch[:3]).merge(Moments.of(Z[3:], batch[3:])).mean.ravel().tolist()
    [1.0, 6.0]
    """

    n: Ints
    mean: Floats
    m2: Floats
    anchors: Floats | None = None

    def _facts(self) -> str:
        cells = count(self.n_cells, "cell")
        return f"{cells} in {self._of_batches()}, {count(self.n_dims, 'coordinate')}"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("n", "mean", "m2"):
            object.__setattr__(self, name, np.asarray(getattr(self, name)))
        R, d = self.n_rows, self.mean.shape[-1]
        shapes = (self.n.shape, self.mean.shape, self.m2.shape)
        if shapes != ((R,), (R, d), (R, d)):
            raise BadValue(
                f"Expected n, mean and m2 of shapes {((R,), (R, d), (R, d))}, found {shapes}."
            )
        if self.anchors is not None and self.anchors.shape != (R, d):
            raise BadValue(f"Expected anchors of shape {(R, d)}, found {self.anchors.shape}.")
        if (self.n < 0).any() or (self.m2 < 0).any():
            raise BadValue("Expected n and m2 >= 0, found negative ones.")
        self._check_finite("mean", "m2", "anchors")

    @classmethod
    def per_batch(cls, batches: Any, n: Ints, mean: Floats, m2: Floats) -> Moments:
        """Moments with one row per batch."""
        return cls(batches, np.arange(len(batches)), n, mean, m2)

    @classmethod
    def of(cls, Z: Any, batch: Any = None) -> Moments:
        """Moments of the rows of ``Z`` (cells x d: dense or sparse, float, int or bool).

        Sums are of deviations from a provisional mean of each batch (of its first few cells), in double
        precision. The shape of the data alone determines the parts that rows are cut into, and parts are
        added in order, so the result is the same to the bit for any number of threads.
        """
        Z = check_embedding(Z)
        labels = Labels.of(batch, Z.shape[0])
        B, d = labels.batches.size, Z.shape[1]
        origin = _provisional_mean(Z, labels)

        def part(rows: tuple[int, int]) -> tuple[Ints, Floats]:
            n, sums = np.zeros(B, np.int64), np.zeros((B, 2, d))
            for lo, hi, block in native_blocks(Z, *rows):
                block_rows = min(max(16, CACHE_BYTES // (block.itemsize * d)), hi - lo)
                add_sums(block, labels.codes[lo:hi], origin, n, sums, block_rows)
            return n, sums

        n, sums = _added(parallel_map(part, split(Z.shape[0], n_parts(Z, B))))
        return cls._about(Z, labels.batches, n, origin, sums.transpose(1, 0, 2), empty=True)

    @classmethod
    def _about(
        cls, Z: Any, names: np.ndarray, n: Ints, center: Floats, sums: Floats, empty: bool = False
    ) -> Moments:
        """Moments of ``Z`` from sums (2, G, d) of deviations from a point of each group, and their squares.

        Groups without cells are left out, unless ``empty``.
        """
        held = n > 0
        if not (empty or held.all()):
            names, n, center, sums = names[held], n[held], center[held], sums[:, held]
        first, second = sums
        with np.errstate(invalid="ignore", over="ignore"):
            offset = first / np.maximum(n, 1)[:, None]
            m2 = np.maximum(second - first * offset, 0.0)
            offset += center
        if not (np.isfinite(offset).all() and np.isfinite(m2).all()):
            raise nonfinite_error(Z)
        return cls.per_batch(names, n, offset, m2)

    @property
    def var(self) -> Floats:
        r"""(B, d) population variance :math:`\hat s_b^2`."""
        return self.m2 / np.maximum(self.n, 1)[:, None]

    @property
    def std(self) -> Floats:
        r"""(B, d) population standard deviation :math:`\hat s_b`."""
        return np.sqrt(self.var)

    @property
    def by_batch(self) -> Moments:
        """Moments of whole batches."""
        return self if self.one_each and self.anchors is None else self._whole

    @cached_property
    def _whole(self) -> Moments:
        if self.one_each:
            return Moments.per_batch(self.batches, self.n, self.mean, self.m2)
        at = self.start[:-1]
        n = np.add.reduceat(self.n, at)
        first = self.mean[at]
        offset = self.mean - first[self.batch]  # relative to one of the means: nothing cancels
        weight = self.n[:, None]
        center = np.add.reduceat(weight * offset, at) / n[:, None]
        m2 = self.m2 + weight * (offset - center[self.batch]) ** 2
        return Moments.per_batch(self.batches, n, first + center, np.add.reduceat(m2, at))

    @property
    def within(self) -> Floats:
        """(B,) variance within the rows of each batch, over all coordinates."""
        at = self.start[:-1]
        return np.add.reduceat(self.m2.sum(1), at) / np.add.reduceat(self.n, at)

    @property
    def n_cells(self) -> int:
        """N, the number of cells in all batches."""
        return int(self.n.sum())

    @property
    def n_dims(self) -> int:
        """The number of coordinates d."""
        return int(self.mean.shape[1])

    def merge(self, other: Moments) -> Moments:
        r"""Moments of both sets of cells together; a batch in both must have the same rows.

        Chan, Golub & LeVeque (1979), with :math:`\delta = \mu_2 - \mu_1`:
        :math:`M_2 = M_2^{(1)} + M_2^{(2)} + \delta^2 n_1 n_2 / (n_1 + n_2)`.
        """
        if self.n_dims != other.n_dims:
            raise BadValue(f"Expected moments of {self.n_dims} coordinates, found {other.n_dims}.")
        batches = union(self.batches, other.batches)
        sizes = np.zeros((2, batches.size), np.int64)
        for size, part in zip(sizes, (self, other), strict=True):
            size[np.searchsorted(batches, part.batches)] = np.diff(part.start)
        if (sizes.min(0) * (sizes[0] != sizes[1])).any():
            raise _other_populations()
        batch = np.repeat(np.arange(batches.size), sizes.max(0))
        ours, theirs = self._in(batches, batch), other._in(batches, batch)
        n = np.zeros((2, batch.size), np.int64)
        mean, m2 = np.zeros((2, 2, batch.size, self.n_dims))
        for side, at, part in ((0, ours, self), (1, theirs, other)):
            n[side, at], mean[side, at], m2[side, at] = part.n, part.mean, part.m2
        anchors = None
        if self.anchors is not None or other.anchors is not None:
            if self.anchors is None or other.anchors is None:
                raise _other_populations()
            anchors = np.full((batch.size, self.n_dims), np.nan)
            anchors[ours] = self.anchors
            shared = np.isin(theirs, ours)
            if not np.array_equal(anchors[theirs[shared]], other.anchors[shared]):
                raise _other_populations()
            anchors[theirs] = other.anchors
        merged = chan(n[0], mean[0], m2[0], n[1], mean[1], m2[1])
        return Moments(batches, batch, *merged, anchors)

    drop = OfBatches.without

    def pooled(self) -> Pooled:
        r"""Moments of all cells together: :math:`\hat\mu` and :math:`\hat s`."""
        if not self.n_cells:
            raise BadValue("Expected cells to pool, found none.")
        n = self.n[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            offset = self.mean - self.mean[:1]  # relative to one of the means: nothing cancels
            center = (n * offset).sum(0) / self.n_cells
            m2 = self.m2.sum(0) + (n * (offset - center) ** 2).sum(0)
        if not np.isfinite(m2).all():
            raise BadValue(
                "Expected batches at moderate distances, found means so far from each other that their "
                "variance overflows."
            )
        return Pooled(self.n_cells, int(self.batches.size), self.mean[0] + center, m2)


def _other_populations() -> BadValue:
    return BadValue(
        "Expected the populations that are known for a batch when more of its cells arrive, found others."
    )


def chan(
    n1: Ints,
    mean1: Floats,
    m2_1: Floats,
    n2: Ints,
    mean2: Floats,
    m2_2: Floats,
) -> tuple[Ints, Floats, Floats]:
    """Moments of two sets of cells together, row by row; see :meth:`Moments.merge`."""
    n = n1 + n2
    share = (n2 / np.maximum(n, 1))[:, None]
    # Where one side has no cells the result is the other side, to the bit.
    delta = np.where(((n1 > 0) & (n2 > 0))[:, None], mean2 - mean1, 0.0)
    mean = np.where(n1[:, None] > 0, mean1 + delta * share, mean2)
    return n, mean, m2_1 + m2_2 + delta * delta * n1[:, None] * share


def n_parts(Z: Any, n_batches: int) -> int:
    """How many parts to cut the rows into: depends on the shape, never on the number of threads.

    There are enough to keep many cores busy, and so few that their sums take about 1 % of the matrix.
    """
    by_rows = Z.shape[0] // LEAST_PART_ROWS
    # A row has 4 bytes per coordinate, the sums of a batch 16 (two doubles): 1 % of the rows' memory.
    by_memory = Z.shape[0] * 4 // (100 * 16 * n_batches)
    return int(np.clip(min(by_rows, by_memory), 1, MOST_PARTS))


def warn_if_barcodes(n: Ints) -> None:
    """Warn when batches, of ``n`` (B,) cells, are so small that the labels are probably not batches."""
    if n.size > 1 and np.median(n) < FEW_CELLS:
        warn_user(
            f"Expected batches of cells, found {n.size} batches with a median of "
            f"{np.median(n):g} cells: the labels look like barcodes, and such batches are too small to fit."
        )


def _provisional_mean(Z: Any, labels: Labels) -> np.ndarray:
    """(B, d) the mean of the first few cells of each batch; exact if these are equal."""
    k = int(
        np.clip(4096 // labels.batches.size, 1, 8)
    )  # fewer cells if there are very many batches
    rows = np.zeros((labels.batches.size, k), np.int64)
    found = np.zeros(labels.batches.size, np.int64)
    first_rows(labels.codes, rows, found)
    mask = np.arange(k) < found[:, None]
    cells = native(Z[rows[mask]]).astype(np.float64)
    sample = np.zeros((*rows.shape, Z.shape[1]))
    sample[mask] = cells
    first = sample[:, :1]
    with np.errstate(invalid="ignore", over="ignore"):
        deviation = np.where(mask[:, :, None], sample - first, 0.0)
        mean = first[:, 0] + deviation.sum(1) / np.maximum(found, 1)[:, None]
    return np.ascontiguousarray(mean)


#: Rows in a block. It is large because each group in a block costs as much time as a row.
BLOCK_ROWS = 1 << 12


def group_moments(Z: Any, groups: Labels) -> Moments:
    """:meth:`Moments.of` without compiled code, for the groups that have cells.

    Deviations are from one cell of each group. The shape of the data alone determines the parts, which
    are added in order.
    """
    Z = check_embedding(Z)
    G, d = groups.batches.size, Z.shape[1]
    held, first = np.unique(groups.codes, return_index=True)
    center = np.zeros((G, d))
    center[held] = native(Z[first])

    def part(rows: tuple[int, int]) -> tuple[Ints, Floats]:
        n, sums = np.zeros(G, np.int64), np.zeros((2, G, d))
        add = Adder(min(BLOCK_ROWS, rows[1] - rows[0]), d)
        with np.errstate(all="ignore"):
            for lo in range(*rows, BLOCK_ROWS):
                hi = min(rows[1], lo + BLOCK_ROWS)
                found, at = np.unique(groups.codes[lo:hi], return_inverse=True)
                sums[:, found] += add(native(Z[lo:hi]), at, center[found])
                n[found] += np.bincount(at)
        return n, sums

    with one_numpy_thread():
        n, sums = _added(parallel_map(part, split(Z.shape[0], n_parts(Z, G))))
    return Moments._about(Z, groups.batches, n, center, sums)


def _added(parts: list[tuple[Ints, Floats]]) -> tuple[Ints, Floats]:
    """Numbers of cells and sums of all parts, added in order to those of the first."""
    n, sums = parts[0]
    for cells, more in parts[1:]:
        n += cells
        sums += more
    return n, sums


@dataclass(frozen=True, eq=False, repr=False)
class Anchors(OfBatches):
    """A few points in each batch. A cell belongs to the nearest anchor of its batch.

    Attributes
    ----------
    batches
        (B,) distinct labels, sorted.
    batch
        (R,) position in ``batches`` of each anchor's batch, in order; every batch has one or more.
    center
        (R, d) positions of the anchors.
    """

    center: Floats

    def _facts(self) -> str:
        return self._of_batches()

    @cached_property
    def origin(self) -> Floats:
        """(B, d) the middle of the anchors of each batch, from which distances are computed.

        It is a median, so that one distant cell does not cost the others precision.
        """
        parts = np.split(self.center, self.start[1:-1])
        return np.stack([np.median(part, axis=0) for part in parts])

    def of_batch(self, b: int) -> Centers:
        """The anchors of batch b, ready for products."""
        return Centers(self.center[self.own(b)], self.origin[b])

    def moments(self, Z: Any, labels: Labels) -> Moments:
        """Moments of the cells of each anchor that has any, labelled by the anchor's number; one pass."""
        within = labels.within(self.batches)
        P, d = self.center.shape
        n, sums = np.zeros(P, np.int64), np.zeros((2, P, d))

        def run(b: int, rows: RowNumbers) -> tuple[Ints, Floats]:
            return sums_around(Z, rows, self.of_batch(b))

        for b, (cells, more) in map_runs(run, within.codes, self.batches.size):
            n[self.own(b)] += cells
            sums[:, self.own(b)] += more
        return Moments._about(Z, np.arange(P), n, self.center, sums)
