"""Atlases: a growing model on disk, with all its versions."""

from .core import Atlas
from .judging import Arrival, cell_scores, judge
from .log import Diff

__all__ = ["Arrival", "Atlas", "Diff", "cell_scores", "judge"]
