import pandas as pd
import pytest

from scbatchprox.diagnosis import Level
from scbatchprox.reporting.contents import Contents, Drawn, Scores
from scbatchprox.reporting.page import batch_table, composition, verdict

SAFE = f"{Level.REMOVED}: its centres agree on a displacement (8.10)"
SAME, CARE, ALONE = f"{Level.NO_EFFECT}: x", f"{Level.WEAK}: y", f"{Level.ALONE}: z"


def facts_of(*verdicts, kept=None, scores=None, **columns):
    names = [f"batch{i}" for i in range(len(verdicts))]
    table = pd.DataFrame(
        {"n_cells": 10, "moved": 0.1, "matched": 1.0, "verdict": verdicts, **columns}, index=names
    )
    return Contents(
        "cells.h5ad", 100, 5, "X_pca", "X_pca_batchprox", False, None, "batch", "type", table,
        Drawn(None, None, None, None, None, ""), pd.DataFrame(), "type", kept or {},
        None if scores is None else Scores(scores, 100),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("verdicts", "kind", "headline"),
    [
        ([SAFE] * 3, Level.REMOVED, f"All 3 batches: {Level.REMOVED}."),
        ([SAFE, CARE, SAFE], Level.WEAK,
         f"Of 3 batches, 2 with {Level.REMOVED} and 1 with {Level.WEAK}."),
        ([CARE] * 2, Level.WEAK, f"All 2 batches: {Level.WEAK}."),
        ([SAFE, SAME, SAFE, CARE, ALONE], Level.ALONE,
         f"Of 5 batches, 1 with {Level.NO_EFFECT}, 2 with {Level.REMOVED}, 1 with {Level.WEAK} and 1 with "
         f"{Level.ALONE}."),
        ([SAFE], Level.ALONE, "There is only one batch, so there is nothing to refine."),
    ],
)  # fmt: skip
def test_headlines(verdicts, kind, headline):
    found = verdict(facts_of(*verdicts))
    assert (found.kind, found.headline) == (kind, headline)


def test_advice_names_batches_but_not_dozens():
    advice = " ".join(verdict(facts_of(*[CARE] * 20, *[SAFE] * 20)).advice)
    assert "batch0, batch1, batch2, batch3, batch4, batch5 and 14 more" in advice


def test_the_table_is_named_if_all_batches_need_care():
    advice = " ".join(verdict(facts_of(*[CARE] * 20)).advice)
    assert "the table says why" in advice
    assert "batch0" not in advice


@pytest.mark.parametrize(
    ("confounded", "removed", "said"),
    [
        (1.0, 0.25, "Each batch has one value of 'condition', so the two cannot be told apart; the "
         "refinement removes 25% of the variance between its values."),
        (0.95, 0.1, "Each batch has almost one value of 'condition'"),
        (1.0, 0.9, "and the refinement removes 90% of the variance"),
        (0.2, 0.7, "The refinement removes 70% of the variance between the values of 'condition'."),
        (0.2, 0.1, None),
    ],
)  # fmt: skip
def test_columns_to_keep_are_judged_as_in_the_diagnosis(confounded, removed, said):
    columns = {"condition confounded": confounded, "condition removed": removed}
    counts = pd.DataFrame({"a": [5, 1], "b": [0, 5]})
    advice = verdict(facts_of(CARE, SAFE, kept={"condition": counts}, **columns)).advice
    assert said is None or said in " ".join(advice)
    # If no method can tell the two apart, no batch is looked at.
    apart = not (confounded > 0.9 and removed > 0.5)
    assert len(advice) == 1 + apart + (said is not None)


def scores(macro, lobo, over):
    rows = {"f1_given_batch": macro, "lobo_f1": lobo, "over_correction": over}
    return pd.DataFrame(rows, index=["unrefined", "refined"]).T


def test_scores_that_got_worse_are_said():
    found = verdict(facts_of(SAFE, SAFE, scores=scores((0.9, 0.8), (0.7, 0.7), (0.1, 0.3))))
    assert found.kind == Level.WEAK
    assert found.advice[0].startswith(
        "Scores of cell types got worse. Keep the unrefined embedding"
    )
    assert "F1 given batch 0.90 before, 0.80 after" in found.advice[1]
    assert "over-correction 0.10 before, 0.30 after" in found.advice[2]


def test_scores_that_did_not_get_worse_are_not_praised():
    found = verdict(facts_of(SAFE, SAFE, scores=scores((0.9, 0.9), (0.02, 0.03), (0.1, 0.1))))
    assert found.kind == Level.REMOVED
    assert found.advice[0].startswith("Use the refined embedding (X_pca_batchprox)")
    assert found.advice[1] == (
        "Labels in type transfer between batches with F1 0.02 before and 0.03 after (1 is perfect)."
    )


def test_nothing_to_use_if_no_cell_was_moved():
    better = scores((0.8, 0.9), (0.7, 0.8), (0.1, 0.1))
    for verdicts in ([ALONE, ALONE], [SAME, SAME, ALONE]):
        found = verdict(facts_of(*verdicts, moved=0.0, scores=better))
        assert found.advice == ("No cell was moved: use the unrefined embedding (X_pca).",)


@pytest.mark.parametrize(
    ("moved", "said"),
    [(0.0, "Left as they are: batch0."), (0.2, "Keep the unrefined coordinates of batch0.")],
)
def test_batches_that_have_nothing_to_compare_with(moved, said):
    advice = verdict(facts_of(ALONE, SAFE, SAFE, moved=[moved, 0.1, 0.1])).advice
    assert advice[1].startswith(said)


def test_nothing_is_advised_if_the_batch_is_what_must_be_kept():
    columns = {"condition confounded": 1.0, "condition removed": 0.9}
    counts = pd.DataFrame({"a": [5, 0], "b": [0, 5]})
    advice = verdict(facts_of(ALONE, ALONE, kept={"condition": counts}, **columns)).advice
    assert advice[0] == "Use the unrefined embedding (X_pca)."
    assert len(advice) == 2


def test_columns_on_kept_labels_are_shown_if_a_diagnosis_has_them():
    columns = {"condition confounded": [1.0, 1.0], "condition removed": [0.4, 0.4]}
    grid = batch_table(facts_of(SAFE, CARE, **columns))
    titles = [title for title, _ in grid.titles]
    assert titles[-2:] == list(columns)
    assert grid.rows[0] == [
        "batch1",
        Level.WEAK,
        "y",
        "10",
        "0.10",
        "100%",
        "100%",
        "40%",
    ]


def test_large_compositions_are_cut():
    counts = pd.DataFrame(1, index=range(100), columns=[f"t{i}" for i in range(50)])
    counts.iloc[70] = 9
    titles, rows, note = composition(counts)
    assert len(titles) == 30
    assert titles[-1] == "all others"
    assert len(rows) == 60
    assert "70" in [batch for batch, *_ in rows]
    assert note == "21 small columns are shown as one; the 60 largest of 100 batches are shown"


def test_unmatched_batches_have_no_shares():
    nan = float("nan")
    _, rows, _ = composition(pd.DataFrame({"1": [3.0, nan], "2": [1.0, nan]}, index=["a", "b"]))
    assert [cell.text for cell in rows[0][2]] == ["75%", "25%"]
    assert rows[1][1] == "unmatched"
    assert [cell.text for cell in rows[1][2]] == ["–", "–"]
