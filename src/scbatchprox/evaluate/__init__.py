"""Scores that show whether a refinement helped, from arrays or from a file."""

from .classification import affected_f1, f1_given_batch, leave_one_batch_out_f1, macro_f1
from .clusters import silhouette
from .comparison import Comparison, compare, evaluate_file, scores, stability
from .mixing import ilisi, mixing_within_types, neighbours_kept, over_correction, variance_kept
from .scib_scores import scib

__all__ = [
    "Comparison",
    "affected_f1",
    "compare",
    "evaluate_file",
    "f1_given_batch",
    "ilisi",
    "leave_one_batch_out_f1",
    "macro_f1",
    "mixing_within_types",
    "neighbours_kept",
    "over_correction",
    "scib",
    "scores",
    "silhouette",
    "stability",
    "variance_kept",
]
