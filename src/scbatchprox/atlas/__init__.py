"""Atlases: a model on disk that grows, with every version it ever had."""

from .core import Arrival, Atlas, Diff
from .judging import cell_scores, judge

__all__ = ["Arrival", "Atlas", "Diff", "cell_scores", "judge"]
