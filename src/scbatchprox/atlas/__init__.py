"""Atlases: a growing model on disk, with all its versions."""

from .arrival import Arrival
from .core import Atlas
from .judging import cell_scores, judge
from .reading import Diff

__all__ = ["Arrival", "Atlas", "Diff", "cell_scores", "judge"]
