"""The verdict on a whole data set, in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..core.shown import count, names
from ..diagnosis.judge import judge_kept
from ..diagnosis.kept import Kept
from ..diagnosis.levels import Level
from ..diagnosis.verdict import verdicts_of
from ..diagnosis.words import clauses
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
    return [Level.WITH_CARE if found is None else found.level for found in verdicts_of(table)]


def verdict(facts: Facts) -> Verdict:
    """Return the verdict on a data set."""
    levels = levels_of(facts.table)
    of: dict[str, list[Any]] = {level.tone: [] for level in Level}
    for batch, level in zip(facts.table.index, levels, strict=True):
        of[level.tone].append(batch)
    alone, care, safe = (len(of[tone]) for tone in ("alone", "care", "fine"))
    total = len(levels)
    if total < 2:
        return Verdict(
            Level.LEAVE_ALONE,
            "There is only one batch, so there is nothing to refine.",
            (f"Use the unrefined embedding ({facts.use_rep}).",),
        )
    kept, (worse, scores) = _kept(facts), _scores(facts)
    if 2 * alone >= total:
        found = count(alone, "batch", "batches")
        advice = [f"Use the unrefined embedding ({facts.use_rep})."]
        if not judge_kept(_columns(facts)).level.needs_force:  # no method can tell these apart
            advice = [f"{advice[0][:-1]}, or integrate with another method first."]
            advice.append(f"Left alone: {names(of['alone'], NAMED)}. The table says why.")
        # Good scores are no reason to refine what should be left alone.
        headline = f"{found} of {total} should be left alone: do not refine these data."
        return Verdict(Level.LEAVE_ALONE, headline, (*advice, *kept))
    kind = max(levels, key=lambda level: level.rank)
    refined = f"the refined embedding ({facts.key}) for clustering, neighbours and label transfer"
    if worse:
        kind = kind if alone else Level.WITH_CARE
        advice = [
            f"Scores of cell types got worse. Keep the unrefined embedding ({facts.use_rep}), unless more "
            f"mixing is worth that to you."
        ]
    else:
        advice = [f"Use {refined}."]
    if care == total:
        advice.append("Look at each batch before you rely on it: the table says why.")
    elif care:
        advice.append(
            f"Look at the batches that need care before you rely on them: "
            f"{names(of['care'], NAMED)}."
        )
    if alone:
        advice.append(
            f"Keep the unrefined coordinates of {names(of['alone'], NAMED)}, or leave these "
            f"batches out and refine again."
        )
    return Verdict(kind, _headline(safe, care, alone), (*advice, *kept, *scores))


def _headline(safe: int, care: int, alone: int) -> str:
    """Return a sentence on how many batches can be refined."""
    total = safe + care + alone
    if safe == total:
        return f"All {total} batches can be refined safely."
    if care == total:
        return f"All {total} batches can be refined, but with care."
    how = "safely" if safe else "with care"
    first = f"{count(safe or care, 'batch', 'batches')} of {total} can be refined {how}"
    rest = [f"{care} with care"] * (care > 0 and safe > 0)
    rest += [f"{alone} should be left alone"] * (alone > 0)
    return f"{', '.join([first, *rest[:-1]])}{', and ' + rest[-1] if rest else ''}."


def _columns(facts: Facts) -> list[Kept]:
    """Return what happens to the columns to keep."""
    return [Kept.of(facts.table, name) for name in facts.kept]


def _kept(facts: Facts) -> list[str]:
    """Return a sentence for each column to keep that a refinement harms, or that batches tell."""
    sentences = []
    for column in _columns(facts):
        for reason in clauses(judge_kept([column]), column.numbers):
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
