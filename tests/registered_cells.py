"""Cells of a few types in batches that are shifted."""

import numpy as np

import population_oracles as oracles

D = 12
SAME = [[0, 1, 2, 3]] * 3
MIXED = [[0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 2, 4, 6]]


def cells(seed, types_of=SAME, size=3.0, n=60):
    """Cells of distant types in batches shifted by ``size``; a type has standard deviation 1."""
    rng = np.random.default_rng(seed)
    shifts = [oracles.direction(rng, D, size if b else 0.0) for b in range(len(types_of))]
    return oracles.typed_cells(rng, types_of, shifts, n=n, d=D)
