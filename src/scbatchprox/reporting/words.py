"""The verdict on a whole data set, in plain words."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ..core.shown import count, names
from ..diagnosis.kept import Kept
from ..diagnosis.levels import LEVELS, level_of
from .facts import Facts

__all__ = ["KINDS", "Verdict", "kind_of_verdict", "kinds", "verdict"]

#: Kinds of verdicts on a batch, the worst first.
KINDS = LEVELS[::-1]
#: Batches that a sentence names.
NAMED = 6
#: A score that gets worse by more than this is worth a sentence.
WORSE = 0.02


@dataclass(frozen=True)
class Verdict:
    """The verdict: how bad it is (one of ``KINDS``), one sentence, and sentences on what to do."""

    kind: str
    headline: str
    advice: tuple[str, ...]


def kind_of_verdict(text: str) -> str:
    """Return the kind of a verdict on a batch."""
    return level_of(text, "move with care")


def kinds(table: pd.DataFrame) -> pd.Series:
    """Return the kind of verdict of every batch."""
    return table["verdict"].map(kind_of_verdict)


def verdict(facts: Facts) -> Verdict:
    """Return the verdict on a data set."""
    kind_of = kinds(facts.table)
    of = {kind: kind_of.index[kind_of == kind].tolist() for kind in KINDS}
    alone, care, safe = (len(of[kind]) for kind in KINDS)
    total = len(kind_of)
    if total < 2:
        return Verdict(
            "leave alone",
            "There is only one batch, so there is nothing to refine.",
            (f"Use the unrefined embedding ({facts.use_rep}).",),
        )
    refined = f"the refined embedding ({facts.key})"
    if alone == 0 and care == 0:
        kind, headline = "safe", f"All {total} batches can be refined safely."
        advice = [f"Use {refined} for clustering, neighbours and label transfer."]
    elif 2 * alone >= total:
        kind = "leave alone"
        found = count(alone, "batch", "batches")
        headline = f"{found} of {total} should be left alone: do not refine these data."
        advice = [
            f"Use the unrefined embedding ({facts.use_rep}), or integrate with another method first.",
            f"Left alone: {names(of['leave alone'], NAMED)}. The table says why.",
        ]
    else:
        kind = "leave alone" if alone else "move with care"
        found = count(safe or care, "batch", "batches")
        first = f"{found} of {total} can be refined {'safely' if safe else 'with care'}"
        if care == total:
            first = f"All {total} batches can be refined, but with care"
        rest = [f"{care} with care"] * (care > 0 and safe > 0)
        rest += [f"{alone} should be left alone"] * (alone > 0)
        headline = f"{', '.join([first, *rest[:-1]])}{', and ' + rest[-1] if rest else ''}."
        advice = []
        if care == total:
            advice.append(
                f"Use {refined}, and look at each batch before you rely on it: the table says why."
            )
        elif care:
            advice.append(
                f"Use {refined}, and look at the batches that need care before you rely on them: "
                f"{names(of['move with care'], NAMED)}."
            )
        else:
            advice.append(f"Use {refined} for the safe batches.")
        if alone:
            advice.append(
                f"Keep the unrefined coordinates of {names(of['leave alone'], NAMED)}, or leave these "
                f"batches out and refine again."
            )
    kept = _kept(facts)
    # Good scores are no reason to refine what should be left alone.
    scores = [] if 2 * alone >= total else _scores(facts)
    return Verdict(kind, headline, (*advice, *kept, *scores))


def _kept(facts: Facts) -> list[str]:
    """Return a sentence for each column to keep that a refinement harms, or that batches tell."""
    sentences = []
    for column in (Kept.of(facts.table, name) for name in facts.kept):
        reason = column.against or column.care
        if reason is not None:
            sentences.append(
                f"{reason[0].upper()}{reason[1:]}. Compare the values of {column.name} on the unrefined "
                f"embedding."
            )
    return sentences


def _scores(facts: Facts) -> list[str]:
    """Return a sentence on scores of cell types that got worse, or on the main ones."""
    if facts.scores is None:
        return []
    table = facts.scores.table
    f1, over = table.loc["lobo_f1"], table.loc["over_correction"]
    sentences = []
    for row, what, sign in (
        (table.loc["macro_f1"], "cell types are harder to tell apart (macro-F1", 1),
        (f1, "cell types transfer worse between batches (leave-one-batch-out F1", 1),
        (over, "cells have more neighbours of another type (over-correction", -1),
    ):
        if sign * (row["unrefined"] - row["refined"]) > WORSE:
            sentences.append(
                f"After refinement {what} {row['unrefined']:.2f} before, {row['refined']:.2f} after)."
            )
    if sentences or pd.isna(f1).any():
        return sentences
    return [
        f"The cell types in {facts.label_key} agree: labels transfer between batches with F1 "
        f"{f1['unrefined']:.2f} before and {f1['refined']:.2f} after."
    ]
