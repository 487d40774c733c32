"""Atlases: a growing model on disk, with all its versions."""

from .core import Atlas
from .judging import Arrival, judge
from .log import Diff
from .scores import cell_scores

__all__ = ["Arrival", "Atlas", "Diff", "cell_scores", "judge"]
