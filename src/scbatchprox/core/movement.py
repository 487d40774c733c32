"""How far the rows of an adapter move the cells of each batch."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..kernels.arrays import Floats
from .moments import Moments

__all__ = ["displacement", "length", "movement"]


def displacement(rows: Moments, scale: Floats, shift: Floats) -> Floats:
    """(B, d) displacement of the mean of each batch, if cells follow the row of their population only."""
    v = shift + rows.mean * (scale - 1.0)
    share = (rows.n / rows.by_batch.n[rows.batch])[:, None]
    mean_displacement: Floats = np.add.reduceat(share * v, rows.start[:-1])
    return mean_displacement


def length(rows: Moments, v: Floats) -> Floats:
    """(B,) root mean squared length of displacements ``v`` (R, d) of rows, weighted by cells."""
    # A power of two: no square overflows, and no bit depends on the other batches.
    size = np.ldexp(1.0, np.frexp(np.abs(v).max(initial=0.0))[1] - 1)
    share = rows.n / rows.by_batch.n[rows.batch]
    squares = np.add.reduceat(share * ((v / size) ** 2).sum(1), rows.start[:-1])
    return np.asarray(size * np.sqrt(squares))


def movement(rows: Moments, scale: Floats, shift: Floats) -> pd.DataFrame:
    """A table with one line per batch; ``scale`` and ``shift`` belong to the rows of the moments."""
    moments, at = rows.by_batch, rows.start[:-1]
    u = scale - 1.0
    v = shift + rows.mean * u
    share = (rows.n / moments.n[rows.batch])[:, None]
    moved = np.sqrt(np.add.reduceat(share * (rows.var * u**2 + v**2), at).sum(1))
    mean_moved = displacement(rows, scale, shift)
    spread = np.sqrt(moments.var.sum(1))
    return pd.DataFrame(
        {
            "n_cells": moments.n,
            "moved": moved,
            "mean_moved": np.sqrt((mean_moved**2).sum(1)),
            "relative": np.divide(moved, spread, out=np.zeros_like(moved), where=spread > 0),
            "scale_min": np.minimum.reduceat(scale.min(1), at),
            "scale_median": _medians(rows, scale),
            "scale_max": np.maximum.reduceat(scale.max(1), at),
        },
        index=pd.Index(moments.batches.tolist(), name="batch"),
    )


def _medians(rows: Moments, scale: Floats) -> Floats:
    """(B,) the median of all scales of each batch."""
    if rows.one_each:  # at once: there may be very many batches
        return np.asarray(np.median(scale, axis=1))
    return np.array([np.median(part) for part in np.split(scale, rows.start[1:-1])])
