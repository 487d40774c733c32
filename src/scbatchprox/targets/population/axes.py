"""Principal axes that are the same wherever they are computed."""

from __future__ import annotations

import numpy as np

from ...kernels.arrays import Floats

__all__ = ["principal_axes"]

#: Entries of an axis that are this near to its largest, as a part of it, count as equal to it.
TIE = 1e-6
#: The last coordinate counts by this part more than the first, so that equal eigenvalues have axes too.
TILT = 1e-8


def principal_axes(S: Floats) -> tuple[Floats, Floats]:
    """(d,) eigenvalues of a symmetric matrix, the largest first, and (d, d) axes in its columns.

    Rounding decides on the sign of an eigenvector, and on those of equal eigenvalues: few populations have
    many, and sites or machines would find different ones. So the first of the largest entries of an axis is
    positive, and coordinates differ a little in size. All sites then number the regions between planes in the
    same way, and turn copies alike.
    """
    d = len(S)
    tilt = 1.0 + TILT * np.arange(d) / d
    size, axes = np.linalg.eigh(S * np.outer(tilt, tilt))
    size, axes = size[::-1], axes[:, ::-1]
    large = np.abs(axes)
    first = (large > (1.0 - TIE) * large.max(0)).argmax(0)
    return size, axes * np.where(axes[first, np.arange(d)] < 0, -1.0, 1.0)
