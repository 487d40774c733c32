"""What the population target promises, held against the numbers: no harm, and mixing like Harmony's."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from .page import NAMES
from .verdict import MARGIN

__all__ = ["FALL", "MIXING", "misses", "note", "promised"]

#: Scores that must not fall more than this below the better of unrefined and Harmony.
FALL = 0.01
#: Part of Harmony's mixing of batches that must be reached.
MIXING = 0.9
#: The scores, and how short tables call them.
_KEEP = {"macro_f1_split": "F1", "lobo_f1": "leave-one-batch-out F1", "silhouette": "silhouette"}
_MIX = {"ilisi_30": "iLISI"}
_OURS, _PAPER, _BEFORE = "batchprox_population", "batchprox", ("unrefined", "harmony")


def misses(means: pd.DataFrame) -> list[str]:
    """Say which promises are not kept, and by how much.

    Parameters
    ----------
    means
        Scores of one embedding: a row for each method, a column for each score.
    """
    ours, before, said = means.loc[_OURS], means.loc[list(_BEFORE)], []
    for metric, name in (_KEEP | _MIX).items():
        best, paper = before[metric].max(), means.loc[_PAPER, metric]
        if means[metric].isna().any():
            said.append(f"{name} not known")
        elif metric in _KEEP and ours[metric] < best - FALL:
            said.append(f"{name} {ours[metric] - best:+.3f}")
        elif metric in _MIX and ours[metric] < MIXING * means.loc["harmony", metric]:
            bar = MIXING * means.loc["harmony", metric]
            said.append(f"{name} {ours[metric]:.3f}, bar {bar:.3f}")
        elif paper > best + MARGIN and ours[metric] < paper - MARGIN:
            said.append(
                f"{name} {ours[metric] - paper:+.3f} from the moment target, which helps here"
            )
    return said


def promised(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]] | None:
    """Return the table of scores and missed promises, and what follows; nothing without all methods."""
    scores = [*_KEEP, *_MIX]
    methods = [*_BEFORE, _PAPER, _OURS]
    chosen = rows[rows["metric"].isin(scores) & rows["method"].isin(methods)]
    lines: list[dict[str, str]] = []
    for (data, upstream), part in chosen.groupby(["dataset", "upstream"], sort=False):
        means = part.groupby(["method", "metric"])["value"].mean().unstack()
        if not set(methods) <= set(means.index) or not set(scores) <= set(means.columns):
            continue
        missed = misses(means.loc[methods, scores])
        told = {method: _told(means.loc[method], scores) for method in methods}
        lines.append(
            {"dataset": data, "upstream": upstream, **told, "missed": "; ".join(missed) or "none"}
        )
    if not lines:
        return None
    table = pd.DataFrame(lines)
    kept = int((table["missed"] == "none").sum())
    finding = (
        f"The population target keeps all that it promises on {kept} of {len(table)} pairs of data "
        f"set and upstream; what it misses elsewhere is in the table."
    )
    return table, [finding]


def note() -> str:
    """How to read the table."""
    order = " / ".join([*_KEEP.values(), *_MIX.values()])
    return (
        f"The table of promises has {order}, means over the runs. Promised: {', '.join(_KEEP.values())} no "
        f"more than {FALL} below the better of {NAMES['unrefined']} and {NAMES['harmony']}, iLISI at "
        f"least {MIXING} of {NAMES['harmony']}'s, and nothing below the moment target where that one "
        f"is better than both (differences up to {MARGIN} are none)."
    )


def _told(means: pd.Series, scores: Sequence[str]) -> str:
    return " / ".join(f"{means[score]:.3f}" for score in scores)
