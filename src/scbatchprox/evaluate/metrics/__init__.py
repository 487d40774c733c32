"""Scores of an embedding: arrays in, numbers out."""

from .classification import affected_f1, f1_given_batch, leave_one_batch_out_f1, macro_f1
from .comparison import Comparison, compare
from .neighbours import ilisi, neighbours_kept
from .of_file import Scored, evaluate_file
from .overview import neighbourhood_scores, scores
from .scib_scores import scib
from .silhouettes import silhouette
from .stability_table import stability
from .within import mixing_within_types, over_correction, variance_kept

__all__ = [
    "Comparison",
    "Scored",
    "affected_f1",
    "compare",
    "evaluate_file",
    "f1_given_batch",
    "ilisi",
    "leave_one_batch_out_f1",
    "macro_f1",
    "mixing_within_types",
    "neighbourhood_scores",
    "neighbours_kept",
    "over_correction",
    "scib",
    "scores",
    "silhouette",
    "stability",
    "variance_kept",
]
