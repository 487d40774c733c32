"""Did it help? Scores of an embedding, data to try it on, and simulated data whose answer is known.

Metrics take arrays and give numbers. :mod:`.datasets` loads data, :mod:`.baselines` has the methods to
compare with, and :mod:`.experiments` the tables and figures of the paper.
"""

from .compositions import COMPOSITIONS, Composition, get_composition
from .metrics import (
    Comparison,
    affected_f1,
    compare,
    evaluate_file,
    ilisi,
    leave_one_batch_out_f1,
    macro_f1,
    mixing_within_types,
    neighbours_kept,
    over_correction,
    scib,
    scores,
    silhouette,
    stability,
    variance_kept,
)
from .simulate import simulate

__all__ = [
    "COMPOSITIONS",
    "Comparison",
    "Composition",
    "affected_f1",
    "compare",
    "evaluate_file",
    "get_composition",
    "ilisi",
    "leave_one_batch_out_f1",
    "macro_f1",
    "mixing_within_types",
    "neighbours_kept",
    "over_correction",
    "scib",
    "scores",
    "silhouette",
    "simulate",
    "stability",
    "variance_kept",
]
