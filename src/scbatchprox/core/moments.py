"""Cells become Moments: ``(n, mean, M2)`` per batch, all that the method knows of the data."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import BadKey, BadValue
from ..kernels.arrays import Floats, Ints
from ..kernels.blocks import native, native_blocks, split
from ..kernels.loops import add_sums, first_rows
from ..kernels.threads import parallel_map
from .checks import check_embedding, nonfinite_error, some_of
from .labels import Labels, among, label_array, union

__all__ = ["Moments", "n_parts"]

#: Bytes of cells that one block of :func:`scbatchprox.kernels.loops.add_sums` holds: half a usual L2 cache.
CACHE_BYTES = 1 << 18
MOST_PARTS = 128


@dataclass(frozen=True, eq=False)
class Moments:
    r"""Number of cells, mean and sum of squared deviations, per batch and coordinate.

    Attributes
    ----------
    batches
        (B,) distinct labels, sorted.
    n
        (B,) cells per batch.
    mean
        (B, d) :math:`\hat\mu_b`.
    m2
        (B, d) :math:`\sum_{i \in I_b} (z_i - \hat\mu_b)^2`. Carried instead of raw sums of squares,
        which cancel catastrophically for embeddings far from the origin.
    """

    batches: np.ndarray
    n: Ints
    mean: Floats
    m2: Floats

    def __post_init__(self) -> None:
        B = self.batches.shape[0]
        d = self.mean.shape[-1]
        shapes = (self.n.shape, self.mean.shape, self.m2.shape)
        if shapes != ((B,), (B, d), (B, d)):
            raise BadValue(
                f"Expected n, mean and m2 of shapes {((B,), (B, d), (B, d))}, found {shapes}."
            )

    @classmethod
    def of(cls, Z: Any, batch: Any = None) -> Moments:
        """Moments of the rows of ``Z`` (cells x d: dense or sparse, float, int or bool).

        Sums are taken about a provisional mean of each batch (its first few cells) in double
        precision. Rows are cut into parts by the shape of the data alone and the parts added up in
        order, so the result is the same to the bit for any number of threads.
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

        parts = parallel_map(part, split(Z.shape[0], n_parts(Z, B)))
        n = np.sum([p[0] for p in parts], axis=0)
        sums = parts[0][1]
        for _, more in parts[1:]:
            sums += more
        with np.errstate(invalid="ignore", over="ignore"):
            offset = sums[:, 0] / np.maximum(n, 1)[:, None]
            mean = origin + offset
            m2 = np.maximum(sums[:, 1] - sums[:, 0] * offset, 0.0)
        if not (np.isfinite(mean).all() and np.isfinite(m2).all()):
            raise nonfinite_error(Z)
        return cls(labels.batches, n, mean, m2)

    @classmethod
    def about(cls, names: np.ndarray, n: Ints, center: Floats, sums: Floats) -> Moments | None:
        """Moments from sums of deviations and of their squares (2, G, d) from a point of each group.

        Of groups that have cells; ``None`` if anything is not finite.
        """
        held = n > 0
        if not held.all():
            names, n, center, sums = names[held], n[held], center[held], sums[:, held]
        first, second = sums
        with np.errstate(invalid="ignore", over="ignore"):
            offset = first / n[:, None]
            m2 = np.maximum(second - first * offset, 0.0)
            offset += center
        if not (np.isfinite(offset).all() and np.isfinite(m2).all()):
            return None
        return cls(names, n, offset, m2)

    @property
    def var(self) -> Floats:
        r"""(B, d) population variance :math:`\hat s_b^2`."""
        return self.m2 / np.maximum(self.n, 1)[:, None]

    @property
    def std(self) -> Floats:
        r"""(B, d) population standard deviation :math:`\hat s_b`."""
        return np.sqrt(self.var)

    @property
    def rows(self) -> Moments:
        """What the rows of an adapter are fitted to: these moments. Other summaries have finer ones."""
        return self

    @property
    def by_batch(self) -> Moments:
        """Moments of whole batches: these."""
        return self

    @property
    def n_cells(self) -> int:
        """N, the number of cells in all batches."""
        return int(self.n.sum())

    @property
    def width(self) -> int:
        """The number of coordinates d."""
        return int(self.mean.shape[1])

    def merge(self, other: Moments) -> Moments:
        r"""Moments of both sets of cells together; batches of the same name become one.

        Chan, Golub & LeVeque (1979), with :math:`\delta = \mu_2 - \mu_1`:
        :math:`M_2 = M_2^{(1)} + M_2^{(2)} + \delta^2 n_1 n_2 / (n_1 + n_2)`.
        """
        if self.width != other.width:
            raise BadValue(f"Expected moments of {self.width} coordinates, found {other.width}.")
        batches = union(self.batches, other.batches)
        a, b = self.spread(batches), other.spread(batches)
        return Moments(batches, *_chan(a.n, a.mean, a.m2, b.n, b.mean, b.m2))

    def drop(self, batch: Hashable) -> Moments:
        """Moments without one batch: as if its cells had never been seen."""
        keep = self.batches != batch
        if np.all(keep):
            raise BadKey(
                f"Expected a batch to drop, found {batch!r}; "
                f"available: {some_of(self.batches.tolist())}."
            )
        return Moments(self.batches[keep], self.n[keep], self.mean[keep], self.m2[keep])

    def select(self, batches: list[Any]) -> Moments:
        """Moments of some batches, in the order of this object; there may be none."""
        keep = among(self.batches, batches)
        return Moments(self.batches[keep], self.n[keep], self.mean[keep], self.m2[keep])

    def pooled(self) -> Moments:
        r"""Moments of all cells as one batch: :math:`\hat\mu` and :math:`\hat s`."""
        n = self.n[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            offset = self.mean - self.mean[:1]  # about one of the means, so that nothing cancels
            center = (n * offset).sum(0, keepdims=True) / self.n_cells
            m2 = self.m2.sum(0, keepdims=True) + (n * (offset - center) ** 2).sum(0, keepdims=True)
        if not np.isfinite(m2).all():
            raise BadValue(
                "Expected batches at moderate distances, found means so far apart that their "
                "variance overflows."
            )
        return Moments(label_array(["all"]), self.n.sum(keepdims=True), self.mean[:1] + center, m2)

    def spread(self, batches: np.ndarray) -> Moments:
        """The same moments among more batches, which have no cells."""
        at = np.searchsorted(batches, self.batches)
        n = np.zeros(batches.size, np.int64)
        mean, m2 = np.zeros((2, batches.size, self.width))
        n[at], mean[at], m2[at] = self.n, self.mean, self.m2
        return Moments(batches, n, mean, m2)


def _chan(
    n1: Ints,
    mean1: Floats,
    m2_1: Floats,
    n2: Ints,
    mean2: Floats,
    m2_2: Floats,
) -> tuple[Ints, Floats, Floats]:
    n = n1 + n2
    share = (n2 / np.maximum(n, 1))[:, None]
    # Where one side has no cells the other must come through untouched, to the bit.
    delta = np.where(n1[:, None] > 0, mean2 - mean1, 0.0)
    mean = np.where(n1[:, None] > 0, mean1 + delta * share, mean2)
    return n, mean, m2_1 + m2_2 + delta * delta * n1[:, None] * share


def n_parts(Z: Any, n_batches: int) -> int:
    """How many parts to cut the rows into: by the shape alone, never by the number of threads.

    Enough to keep many cores busy, few enough that the parts' sums stay near 1 % of the matrix.
    """
    by_rows = Z.shape[0] // 32_768
    by_memory = Z.shape[0] * 4 // (100 * 16 * n_batches)
    return int(np.clip(min(by_rows, by_memory), 1, MOST_PARTS))


def _provisional_mean(Z: Any, labels: Labels) -> np.ndarray:
    """A point amid each batch (B, d): the mean of its first few cells, in a form exact for equal cells."""
    k = int(np.clip(4096 // labels.batches.size, 1, 8))  # a few, and fewer for very many batches
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
