"""Cells of one batch, in which tests plant effects."""

import numpy as np


def one_batch():
    """Return five types of one batch; the last is too rare to be removed."""
    rng = np.random.default_rng(7)
    types = rng.permutation(np.repeat(["B", "NK", "T", "mono", "rare"], [500, 400, 300, 200, 6]))
    means = dict(zip(np.unique(types), 4.0 * rng.normal(size=(5, 6)), strict=True))
    return np.array([means[t] for t in types]) + rng.normal(size=(types.size, 6)), types
