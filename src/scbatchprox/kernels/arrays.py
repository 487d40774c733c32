"""Array types that all modules share."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Ints"]

#: Adapter rows, moments and everything computed from them: double precision.
Floats = npt.NDArray[np.float64]
#: Cell counts.
Ints = npt.NDArray[np.int64]
