"""The verdict on a whole data set, in plain words."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ..core.shown import names
from ..diagnosis.kept import MEASURES, Kept
from ..diagnosis.verdict import Level, clauses, judge_kept, verdicts_of
from ..diagnosis.verdict import Verdict as Found
from .facts import Facts

__all__ = ["Verdict", "levels_of", "verdict"]

#: Batches that a sentence names.
NAMED = 6
#: A score that gets worse by more than this is worth a sentence.
WORSE = 0.02


@dataclass(frozen=True)
class Verdict:
    """The verdict: how bad it is, one sentence, and sentences on what to do."""

    kind: Level
    headline: str
    advice: tuple[str, ...]


def levels_of(table: pd.DataFrame) -> list[Level]:
    """Return the level of every batch; what has none needs care."""
    return [Level.WEAK if found is None else found.level for found in verdicts_of(table)]


def verdict(facts: Facts) -> Verdict:
    """Return the verdict on a data set."""
    levels = levels_of(facts.table)
    if len(levels) < 2:
        return Verdict(
            Level.ALONE,
            "There is only one batch, so there is nothing to refine.",
            (f"Use the unrefined embedding ({facts.use_rep}).",),
        )
    kept, (worse, scores) = _kept(facts), _scores(facts)
    worst, headline = max(levels, key=lambda level: level.rank), _headline(levels)
    unrefined = f"the unrefined embedding ({facts.use_rep})"
    if any(len(judge_kept([column])) == len(MEASURES) for column in _columns(facts)):
        # Good scores are no reason to refine what no method can tell apart.
        return Verdict(worst, headline, (f"Use {unrefined}.", *kept))
    if not facts.table["moved"].any():
        return Verdict(worst, headline, (f"No cell was moved: use {unrefined}.", *kept))
    if worse:
        worst = max(worst, Level.WEAK, key=lambda level: level.rank)
        advice = f"Scores of cell types got worse. Keep {unrefined}, unless more mixing is worth that to you."
    else:
        advice = f"Use the refined embedding ({facts.key}) for clustering, neighbours and label transfer."
    return Verdict(worst, headline, (advice, *_attention(facts, levels), *kept, *scores))


def _headline(levels: list[Level]) -> str:
    """Return a sentence on how many batches have each level."""
    number = {level: levels.count(level) for level in Level if level in levels}
    if len(number) == 1:
        return f"All {len(levels)} batches: {levels[0]}."
    *first, last = [f"{n} with {level}" for level, n in number.items()]
    return f"Of {len(levels)} batches, {', '.join(first)} and {last}."


def _attention(facts: Facts, levels: list[Level]) -> list[str]:
    """Return sentences on the batches that somebody has to look at."""
    table, advice = facts.table, []
    care, alone = (
        table.index[[level.tone == tone for level in levels]].tolist() for tone in ("care", "alone")
    )
    if care:
        which = "each batch" if len(care) == len(levels) else names(care, NAMED)
        advice.append(f"Look at {which} before you rely on it: the table says why.")
    if alone:
        moved = table.loc[[level.needs_force for level in levels], "moved"].any()
        what = "Keep the unrefined coordinates of" if moved else "Left as they are:"
        advice.append(f"{what} {names(alone, NAMED)}. Compare them with the others with care.")
    return advice


def _columns(facts: Facts) -> list[Kept]:
    """Return what happens to the columns to keep."""
    return [Kept.of(facts.table, name) for name in facts.kept]


def _kept(facts: Facts) -> list[str]:
    """Return a sentence for each column to keep that a refinement harms, or that batches tell."""
    sentences = []
    for column in _columns(facts):
        found = Found(Level.WEAK, tuple(judge_kept([column])))
        for reason in clauses(found, column.numbers):
            sentences.append(
                f"{reason[0].upper()}{reason[1:]}. Compare the values of {column.name} on the unrefined "
                f"embedding."
            )
    return sentences


def _scores(facts: Facts) -> tuple[bool, list[str]]:
    """Return whether a score of cell types got worse, and sentences on those, or on the main one."""
    if facts.scores is None:
        return False, []
    table = facts.scores.table
    f1, over = table.loc["lobo_f1"], table.loc["over_correction"]
    sentences = []
    for row, what, sign in (
        (table.loc["f1_given_batch"], "cell types are harder to tell apart (F1 given batch", 1),
        (f1, "cell types transfer worse between batches (leave-one-batch-out F1", 1),
        (over, "cells have more neighbours of another type (over-correction", -1),
    ):
        if sign * (row["unrefined"] - row["refined"]) > WORSE:
            sentences.append(
                f"After refinement {what} {row['unrefined']:.2f} before, {row['refined']:.2f} after)."
            )
    if sentences or pd.isna(f1).any():
        return bool(sentences), sentences
    return False, [
        f"Labels in {facts.label_key} transfer between batches with F1 {f1['unrefined']:.2f} before and "
        f"{f1['refined']:.2f} after (1 is perfect)."
    ]
