"""Small random cells in batches, for property tests."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from scbatchprox.cells.memory import MemoryCells
from scbatchprox.core.labels import Labels


@dataclass
class Cells:
    Z: np.ndarray
    codes: np.ndarray

    @property
    def B(self):
        return int(self.codes.max()) + 1

    @property
    def d(self):
        return self.Z.shape[1]

    def rows(self, b):
        return self.Z[self.codes == b]


def make_cells(rng, sizes, d, offset=0.0):
    """Return shuffled batches of the given sizes that differ in mean and standard deviation."""
    codes = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    spread = rng.uniform(0.3, 3.0, (len(sizes), d))
    center = rng.normal(0.0, 2.0, (len(sizes), d)) + offset
    return Cells(center[codes] + spread[codes] * rng.normal(size=(len(codes), d)), codes)


def labels_of(values):
    """One code per cell, as the library holds labels."""
    return Labels.of(values, len(values))


def in_memory(Z, batch):
    """Cells as ``describe`` takes them."""
    return MemoryCells(Z, Labels.of(batch, Z.shape[0]))


@st.composite
def cells(draw, min_size=2, max_batches=4):
    """Draw batches with at least two cells (so that no variance is zero), few coordinates, any offset."""
    sizes = draw(st.lists(st.integers(min_size, 30), min_size=1, max_size=max_batches))
    d = draw(st.integers(1, 5))
    offset = draw(st.sampled_from([0.0, 10.0, -300.0]))
    return make_cells(np.random.default_rng(draw(st.integers(0, 2**32))), sizes, d, offset)


WEIGHTS = st.sampled_from([0.0, 1e-4, 1e-3, 0.1, 2.0])
POSITIVE = st.sampled_from([1e-4, 1e-3, 0.1, 2.0])
