"""Text labels as codes and categories, some cells at a time: a few bytes per cell, not a string each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import numpy as np
import pandas as pd

__all__ = ["BLOCK_LABELS", "Encoder"]

#: Labels that are read and encoded at a time.
BLOCK_LABELS = 1 << 16


class Encoder:
    """Encodes text labels block by block; ``None`` and the texts in ``missing`` are missing labels."""

    def __init__(self, missing: Iterable[str] = ("",)) -> None:
        # An unknown label gets the next number when it is looked up.
        self._codes: defaultdict[str | None, int] = defaultdict(count().__next__)
        self._codes |= dict.fromkeys([None, *missing], -1)
        self._parts: list[np.ndarray] = []

    def add(self, labels: Sequence[str | None]) -> None:
        """Encode the labels of the next cells."""
        codes = np.fromiter(map(self._codes.__getitem__, labels), np.int32, len(labels))
        # The smallest integers that fit all labels so far, and -1.
        self._parts.append(codes.astype(np.min_scalar_type(-len(self._codes))))

    def series(self) -> pd.Series[Any]:
        """Return all labels as a categorical."""
        codes = np.concatenate(self._parts) if self._parts else np.empty(0, np.int8)
        self._parts = [codes]
        names = [label for label, code in self._codes.items() if code >= 0]
        # Objects, because pandas cannot hold every text (half a surrogate pair) as its own strings.
        categories = pd.Index(np.array([*names, None], object)[:-1], dtype=object)
        return pd.Series(pd.Categorical.from_codes(codes, categories))
