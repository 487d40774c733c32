"""Squared distances between a few thousand points at most."""

from __future__ import annotations

import numpy as np

from .arrays import Floats

__all__ = ["squared_distances"]


def squared_distances(A: Floats, B: Floats) -> Floats:
    """(n, m) squared distances of rows of ``A`` and ``B``, which should lie about the origin.

    By one product of matrices: far from the origin what is left of the squares is noise.
    """
    # scipy's cdist takes 1.6 to 2.6 times the time on one core, for 50 to 3,000 rows of 20 to 50 coordinates.
    D: Floats = (A**2).sum(1)[:, None] - 2.0 * (A @ B.T) + (B**2).sum(1)
    np.maximum(D, 0.0, out=D)
    return D
