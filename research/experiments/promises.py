"""The promises of the population target (no harm, and mixing like Harmony's), checked by numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..baselines import POPULATION, SOLVERS
from .page import NAMES

__all__ = ["FALL", "KEPT", "MIXING", "SPREAD", "misses", "note", "promised"]

#: Largest allowed drop of a score below the better of unrefined and Harmony.
FALL = 0.01
#: Smallest allowed mixing of batches, as a share of Harmony's.
MIXING = 0.9
#: Allowed range of the variance within a type and batch, after divided by before.
SPREAD = (0.9, 1.1)
#: Largest allowed drop of the share of neighbours kept below Harmony's.
KEPT = 0.03
_PAPER, _BASELINES = SOLVERS["exact"], ("unrefined", "harmony")
_UNKNOWN = "not known"


def _not_below_the_better(score: pd.Series) -> str | None:
    best = score[list(_BASELINES)].max(skipna=False)
    if _unknown(score[POPULATION], best):
        return _UNKNOWN
    return f"{score[POPULATION] - best:+.3f}" if score[POPULATION] < best - FALL else None


def _mixing_like_harmony(score: pd.Series) -> str | None:
    return _at_least(score[POPULATION], MIXING * score["harmony"])


def _not_above_the_lower(score: pd.Series) -> str | None:
    # NaN if batches are separate, as they may be unrefined; then the other baseline is the limit.
    limit = score[list(_BASELINES)].min() + FALL
    if _unknown(score[POPULATION], limit):
        return _UNKNOWN
    return f"{score[POPULATION]:.3f}, limit {limit:.3f}" if score[POPULATION] > limit else None


def _not_harmed(score: pd.Series) -> str | None:
    change = score[POPULATION] - score["unrefined"]
    if _unknown(change):
        return _UNKNOWN
    return f"harmed, {change:+.3f} from unrefined" if change < -FALL else None


def _spread_as_before(score: pd.Series) -> str | None:
    if _unknown(score[POPULATION]):
        return _UNKNOWN
    return None if SPREAD[0] <= score[POPULATION] <= SPREAD[1] else f"{score[POPULATION]:.3f}"


def _kept_like_harmony(score: pd.Series) -> str | None:
    return _at_least(score[POPULATION], score["harmony"] - KEPT)


def _at_least(ours: float, limit: float) -> str | None:
    if _unknown(ours, limit):
        return _UNKNOWN
    return f"{ours:.3f}, limit {limit:.3f}" if ours < limit else None


def _unknown(*numbers: float) -> bool:
    return bool(np.isnan(numbers).any())


@dataclass(frozen=True)
class _Promise:
    """A score, its short name in tables, and a function that describes a missed promise, or returns None."""

    metric: str
    name: str
    missed: Callable[[pd.Series], str | None]


#: The promises that are counted as comparisons on each embedding.
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
    """Return which promises are missed, and by how much.

    Parameters
    ----------
    means
        Scores of one embedding: a row for each method, a column for each score.
    """
    return _said(means, _PROMISES)


def promised(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]] | None:
    """Return the table of scores and missed promises, and findings; None if a method is missing."""
    scores, methods = list(_SCORES), [*_BASELINES, _PAPER, POPULATION]
    chosen = rows[rows["metric"].isin(scores) & rows["method"].isin(methods)]
    lines: list[dict[str, str]] = []
    lost: list[int] = []
    for (data, upstream), part in chosen.groupby(["dataset", "upstream"], sort=False):
        means = part.groupby(["method", "metric"])["value"].mean().unstack()
        if not set(methods) <= set(means.index) or not set(scores) <= set(means.columns):
            continue
        means = means.loc[methods, scores]
        missed = "; ".join(misses(means)) or "none"
        shown = {method: _joined(means.loc[method], scores) for method in methods}
        lines.append({"dataset": data, "upstream": upstream, **shown, "missed": missed})
        lost.append(len(_said(means, _COMPARED)))
    if not lines:
        return None
    table = pd.DataFrame(lines)
    kept = int((table["missed"] == "none").sum())
    finding = (
        f"The population target keeps all promises on {kept} of {len(table)} pairs of data set and "
        f"upstream; the table has the missed ones."
    )
    return table, [finding, _count(table["dataset"], lost)]


def note() -> str:
    """Return a note on how to read the table."""
    names = [promise.name for promise in _COMPARED[:3]]
    before, harmony = NAMES["unrefined"], NAMES["harmony"]
    return (
        f"The table of promises has {' / '.join(_SCORES.values())}, means over the runs. Promises: "
        f"{', '.join(names)} at most {FALL} below the better of {before} and {harmony}; mixing within "
        f"types at least {MIXING} of {harmony}'s (these four comparisons are counted; one that is not "
        f"known counts as lost); over-correction at most {FALL} above the lower of the two; "
        f"leave-one-batch-out F1 at most {FALL} below {before}; variance kept between {SPREAD[0]} "
        f"and {SPREAD[1]}; share of neighbours kept within the batch at most {KEPT} below {harmony}'s."
    )


def _count(data: pd.Series, lost: Sequence[int]) -> str:
    """Return a sentence on how many comparisons are lost, and how many of these on real data."""
    each = len(_COMPARED)
    real = [n for name, n in zip(data, lost, strict=True) if not name.startswith("sim_")]
    said = f"{sum(lost)} of {each * len(lost)} comparisons lost"
    if 0 < len(real) < len(lost):
        said += f", on real data {sum(real)} of {each * len(real)}"
    names = ", ".join(promise.name for promise in _COMPARED)
    return f"The population target: {said} ({names} on each pair)."


def _said(means: pd.DataFrame, promises: Sequence[_Promise]) -> list[str]:
    found = ((promise, promise.missed(means[promise.metric])) for promise in promises)
    # A score that is not known may miss two promises; it is listed once.
    return list(dict.fromkeys(f"{promise.name} {said}" for promise, said in found if said))


def _joined(means: pd.Series, scores: Sequence[str]) -> str:
    return " / ".join(f"{means[score]:.3f}" for score in scores)
