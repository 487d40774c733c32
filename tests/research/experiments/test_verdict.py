"""The paper's numbers, and sentences that follow from numbers."""

import numpy as np
import pandas as pd

from experiment_rows import frame
from research.experiments import EXPERIMENTS, paper
from research.experiments.page import summary, with_sd
from research.experiments.verdict import MARGIN, compare

CLASSIFY = EXPERIMENTS["classify"]


class TestPaper:
    def test_cumulative_seconds_are_sums_of_the_runs(self):
        for steps in paper.WALL_CLOCK.values():
            runs, totals, cumulative = np.array(steps).T
            np.testing.assert_allclose(np.cumsum(runs), cumulative, atol=0.015)
            assert (totals > runs).all()

    def test_the_papers_claims_hold_in_the_papers_own_numbers(self):
        ours = {key: row[0] for key, row in paper.CLASSIFY.items() if key[2] == "batchprox"}
        assert len(ours) == 6
        for (dataset, upstream, _), f1 in ours.items():
            assert f1 > paper.CLASSIFY[dataset, upstream, "harmony"][0]
        assert paper.MOLECULES["batchprox"][0] > paper.MOLECULES["harmony"][0]

    def test_simulated_sets_stand_for_originals(self):
        assert {paper.original(name) for name in ("sim_pbmc4", "pbmc4")} == {"pbmc4"}


class TestVerdict:
    def test_better_worse_and_not_clear(self):
        rows = frame(
            {
                ("up", "m"): [0.9, 0.91],
                ("up", "base"): [0.8, 0.81],
                ("down", "m"): [0.8],
                ("down", "base"): [0.9],
                ("margin", "m"): [0.5 + 0.9 * MARGIN],
                ("margin", "base"): [0.5],
                ("noisy", "m"): [0.9, 0.1],  # higher by 0.1 in the mean, but not in both
                ("noisy", "base"): [0.4, 0.4],
                ("unpaired", "m"): [0.9],
            }
        )
        found = compare(rows, "f1", "m", "base")
        assert (found.better, found.worse, found.even) == (1, 1, 2)
        assert "above base on 1 of 4" in found.sentence()
        assert "does not support" in found.on("it is better")

    def test_pairs_share_a_split(self):
        # Splits differ far more than methods do: only pairs show the difference.
        base = np.array([0.3, 0.9, 0.5, 0.7])
        rows = frame({("d", "m"): base + 0.02, ("d", "base"): base})
        assert compare(rows, "f1", "m", "base").better == 1

    def test_sentence_on_a_claim(self):
        for values, word in (
            ({("x", "m"): [1.0], ("x", "b"): [0.0]}, "This supports"),
            (
                {("x", "m"): [1.0], ("x", "b"): [0.0], ("y", "m"): [0.5], ("y", "b"): [0.5]},
                "This partly supports",
            ),
            ({("x", "m"): [0.0], ("x", "b"): [1.0]}, "does not support"),
            (  # better in one of three comparisons
                {
                    ("x", "m"): [1.0],
                    ("x", "b"): [0.0],
                    ("y", "m"): [0.5],
                    ("y", "b"): [0.5],
                    ("z", "m"): [0.5],
                    ("z", "b"): [0.5],
                },
                "does not support",
            ),
            ({("x", "m"): [0.0]}, "There is no data"),
        ):
            assert word in compare(frame(values), "f1", "m", "b").on("c")

    def test_summaries_are_means_and_sample_deviations(self):
        rows = frame({("d", "m"): [0.1, 0.2, 0.6], ("d", "b"): [0.5]})
        table = summary(rows, ["dataset", "method"], ["f1", "none"])
        assert table["f1"].tolist() == [with_sd(0.3, np.std([0.1, 0.2, 0.6], ddof=1)), "0.500"]
        assert table["none"].tolist() == ["", ""]


def test_pages_state_whether_claims_are_supported():
    """Sentences on claims depend on the numbers: none is fixed text."""
    rows = frame({("d", "unrefined"): [0.9, 0.9], ("d", "harmony"): [0.9, 0.9]}, "macro_f1_split")
    worse = frame(
        {("d", "batchprox"): [0.5, 0.5], ("d", "batchprox_adam"): [0.5, 0.5]}, "macro_f1_split"
    )
    better = worse.assign(value=0.99)
    for ours, word in ((worse, "does not support"), (better, "This supports")):
        report = CLASSIFY.report(pd.concat([rows, ours]), CLASSIFY.settings)
        judged = [finding for finding in report.findings if finding.startswith("This")]
        assert len(judged) == 2
        assert all(word in finding for finding in judged)
