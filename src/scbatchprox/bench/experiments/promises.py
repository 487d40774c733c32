"""What the population target promises, held against the numbers: no harm, and mixing like Harmony's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .page import NAMES

__all__ = ["FALL", "KEPT", "MIXING", "SPREAD", "misses", "note", "promised"]

#: Scores that must not fall more than this below the better of unrefined and Harmony.
FALL = 0.01
#: Part of Harmony's mixing of batches that must be reached.
MIXING = 0.9
#: Between what and what the spread within a type and batch must stay, as part of what it was.
SPREAD = (0.9, 1.1)
#: How many fewer neighbours within the batch than Harmony may be kept, as a part of all.
KEPT = 0.03
_OURS, _PAPER, _BEFORE = "batchprox_population", "batchprox", ("unrefined", "harmony")
_UNKNOWN = "not known"


def _not_below_the_better(score: pd.Series) -> str | None:
    best = score[list(_BEFORE)].max(skipna=False)
    if _unknown(score[_OURS], best):
        return _UNKNOWN
    return f"{score[_OURS] - best:+.3f}" if score[_OURS] < best - FALL else None


def _mixing_like_harmony(score: pd.Series) -> str | None:
    return _at_least(score[_OURS], MIXING * score["harmony"])


def _not_above_the_lower(score: pd.Series) -> str | None:
    # Batches that never meet have no wrong meetings either: the other one is the bar.
    bar = score[list(_BEFORE)].min() + FALL
    if _unknown(score[_OURS], bar):
        return _UNKNOWN
    return f"{score[_OURS]:.3f}, bar {bar:.3f}" if score[_OURS] > bar else None


def _not_harmed(score: pd.Series) -> str | None:
    change = score[_OURS] - score["unrefined"]
    if _unknown(change):
        return _UNKNOWN
    return f"harmed, {change:+.3f} from unrefined" if change < -FALL else None


def _spread_as_before(score: pd.Series) -> str | None:
    if _unknown(score[_OURS]):
        return _UNKNOWN
    return None if SPREAD[0] <= score[_OURS] <= SPREAD[1] else f"{score[_OURS]:.3f}"


def _kept_like_harmony(score: pd.Series) -> str | None:
    return _at_least(score[_OURS], score["harmony"] - KEPT)


def _at_least(ours: float, bar: float) -> str | None:
    if _unknown(ours, bar):
        return _UNKNOWN
    return f"{ours:.3f}, bar {bar:.3f}" if ours < bar else None


def _unknown(*numbers: float) -> bool:
    return bool(np.isnan(numbers).any())


@dataclass(frozen=True)
class _Promise:
    """A score, how short tables call it, and what is said of a promise that is not kept."""

    metric: str
    name: str
    missed: Callable[[pd.Series], str | None]


#: Those that count as a comparison, won or lost, on each embedding.
_COMPARED = (
    _Promise("macro_f1_split", "F1", _not_below_the_better),
    _Promise("lobo_f1", "leave-one-batch-out F1", _not_below_the_better),
    _Promise("silhouette", "silhouette", _not_below_the_better),
    _Promise("mixing_within_types", "mixing within types", _mixing_like_harmony),
)
_PROMISES = (
    *_COMPARED,
    _Promise("over_correction", "over-correction", _not_above_the_lower),
    _Promise("lobo_f1", "leave-one-batch-out F1", _not_harmed),
    _Promise("variance_kept", "variance kept", _spread_as_before),
    _Promise("neighbours_kept_in_batch", "neighbours kept", _kept_like_harmony),
)
_SCORES = {promise.metric: promise.name for promise in _PROMISES}


def misses(means: pd.DataFrame) -> list[str]:
    """Say which promises are not kept, and by how much.

    Parameters
    ----------
    means
        Scores of one embedding: a row for each method, a column for each score.
    """
    return _said(means, _PROMISES)


def promised(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]] | None:
    """Return the table of scores and missed promises, and what follows; nothing without all methods."""
    scores, methods = list(_SCORES), [*_BEFORE, _PAPER, _OURS]
    chosen = rows[rows["metric"].isin(scores) & rows["method"].isin(methods)]
    lines: list[dict[str, str]] = []
    lost: list[int] = []
    for (data, upstream), part in chosen.groupby(["dataset", "upstream"], sort=False):
        means = part.groupby(["method", "metric"])["value"].mean().unstack()
        if not set(methods) <= set(means.index) or not set(scores) <= set(means.columns):
            continue
        means = means.loc[methods, scores]
        missed = "; ".join(misses(means)) or "none"
        told = {method: _told(means.loc[method], scores) for method in methods}
        lines.append({"dataset": data, "upstream": upstream, **told, "missed": missed})
        lost.append(len(_said(means, _COMPARED)))
    if not lines:
        return None
    table = pd.DataFrame(lines)
    kept = int((table["missed"] == "none").sum())
    finding = (
        f"The population target keeps all that it promises on {kept} of {len(table)} pairs of data "
        f"set and upstream; what it misses elsewhere is in the table."
    )
    return table, [finding, _count(table["dataset"], lost)]


def note() -> str:
    """How to read the table."""
    names = [promise.name for promise in _COMPARED[:3]]
    before, harmony = NAMES["unrefined"], NAMES["harmony"]
    return (
        f"The table of promises has {' / '.join(_SCORES.values())}, means over the runs. Promised: "
        f"{', '.join(names)} no more than {FALL} below the better of {before} and {harmony}; mixing within "
        f"types at least {MIXING} of {harmony}'s (these four are the comparisons that are counted; one "
        f"that is not known is lost); over-correction no more than {FALL} above the lower of the two; "
        f"leave-one-batch-out F1 not more than {FALL} below {before}; variance kept between {SPREAD[0]} "
        f"and {SPREAD[1]}; neighbours kept within the batch no fewer than {harmony}'s less {KEPT}."
    )


def _count(data: pd.Series, lost: Sequence[int]) -> str:
    """Say how many comparisons are lost, and how many of these on real data."""
    each = len(_COMPARED)
    real = [n for name, n in zip(data, lost, strict=True) if not name.startswith("sim_")]
    said = f"{sum(lost)} of {each * len(lost)} comparisons lost"
    if 0 < len(real) < len(lost):
        said += f", on real data {sum(real)} of {each * len(real)}"
    names = ", ".join(promise.name for promise in _COMPARED)
    return f"The population target: {said} ({names} on each pair)."


def _said(means: pd.DataFrame, promises: Sequence[_Promise]) -> list[str]:
    found = ((promise, promise.missed(means[promise.metric])) for promise in promises)
    # A score that is not known may break two promises; once is enough.
    return list(dict.fromkeys(f"{promise.name} {said}" for promise, said in found if said))


def _told(means: pd.Series, scores: Sequence[str]) -> str:
    return " / ".join(f"{means[score]:.3f}" for score in scores)
