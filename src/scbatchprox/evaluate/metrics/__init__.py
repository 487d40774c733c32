"""Scores of an embedding: arrays in, numbers out."""

from .classification import affected_f1, leave_one_batch_out_f1, macro_f1
from .comparison import Comparison, compare
from .neighbours import ilisi, neighbours_kept
from .of_file import Scored, evaluate_file
from .overview import scores
from .scib_scores import scib
from .silhouettes import silhouette
from .stability_table import stability

__all__ = [
    "Comparison",
    "Scored",
    "affected_f1",
    "compare",
    "evaluate_file",
    "ilisi",
    "leave_one_batch_out_f1",
    "macro_f1",
    "neighbours_kept",
    "scib",
    "scores",
    "silhouette",
    "stability",
]
