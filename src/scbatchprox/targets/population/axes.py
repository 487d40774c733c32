"""Principal axes that are the same wherever they are computed."""

from __future__ import annotations

import numpy as np

from ...kernels.arrays import Floats

__all__ = ["principal_axes"]

#: Entries of an axis that are this near to its largest, as a part of it, count as equal to it.
TIE = 1e-6


def principal_axes(S: Floats) -> tuple[Floats, Floats]:
    """(d,) eigenvalues of a symmetric matrix, the largest first, and (d, d) axes in its columns.

    The sign of an eigenvector is arbitrary, and differs between machines: the first of the largest entries of
    an axis is positive. So all sites number the regions between planes in the same way, and turn copies alike.
    """
    size, axes = np.linalg.eigh(S)
    size, axes = size[::-1], axes[:, ::-1]
    large = np.abs(axes)
    first = (large > (1.0 - TIE) * large.max(0)).argmax(0)
    return size, axes * np.where(axes[first, np.arange(len(S))] < 0, -1.0, 1.0)
