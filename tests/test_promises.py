"""The promises of the population target, judged from rows that are made up so that the answer is known."""

import numpy as np
import pandas as pd
import pytest

from scbatchprox.evaluate.experiments import EXPERIMENTS
from scbatchprox.evaluate.experiments.promises import misses, promised

SCORES = ("macro_f1_split", "lobo_f1", "silhouette", "ilisi_30")
BASE = {
    "unrefined": (0.90, 0.80, 0.30, 0.10),
    "harmony": (0.85, 0.90, 0.25, 0.40),
    "batchprox": (0.88, 0.85, 0.28, 0.20),
}


def means(ours, **others):
    return pd.DataFrame(BASE | others | {"batchprox_population": ours}, index=SCORES).T


def test_as_good_as_the_better_of_both_is_kept():
    assert misses(means((0.90, 0.90, 0.30, 0.40))) == []
    # Just inside every bar: 0.01 below the better, 0.9 of Harmony's mixing.
    assert misses(means((0.891, 0.891, 0.291, 0.361))) == []


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ((0.88, 0.90, 0.30, 0.40), "F1 -0.020"),  # Harmony's is lower: the unrefined one counts
        ((0.90, 0.85, 0.30, 0.40), "leave-one-batch-out F1 -0.050"),  # here Harmony's counts
        ((0.90, 0.90, 0.20, 0.40), "silhouette -0.100"),
        ((0.90, 0.90, 0.30, 0.30), "iLISI 0.300, bar 0.360"),
    ],
)
def test_every_promise_can_be_missed(ours, said):
    assert misses(means(ours)) == [said]


def test_not_below_the_moment_target_where_it_helps():
    helps = (0.85, 0.99, 0.28, 0.20)
    (missed,) = misses(means((0.90, 0.92, 0.30, 0.40), batchprox=helps))
    assert missed.startswith("leave-one-batch-out F1 -0.070 from the moment target")
    assert misses(means((0.90, 0.988, 0.30, 0.40), batchprox=helps)) == []


@pytest.mark.parametrize("who", ["batchprox_population", "harmony"])
def test_a_score_that_is_missing_is_no_promise_kept(who):
    table = means((0.90, 0.90, 0.30, 0.40))
    table.loc[who, "lobo_f1"] = np.nan
    assert misses(table) == ["leave-one-batch-out F1 not known"]
    rows = rows_of({"d": BASE | {"batchprox_population": (0.90, 0.90, 0.30, 0.40)}})
    lost = (rows["method"] == who) & (rows["metric"] == "silhouette")
    found, (finding,) = promised(rows[~lost])
    assert found["missed"].tolist() == ["silhouette not known"]
    assert "on 0 of 1 pairs" in finding


def rows_of(tables, upstream="pca"):
    return pd.DataFrame(
        [
            {
                "experiment": "classify", "dataset": data, "upstream": upstream, "method": method,
                "condition": "", "step": "", "run": run, "metric": metric, "value": value,
            }
            for data, table in tables.items()
            for method, scores in table.items()
            for metric, value in zip(SCORES, scores, strict=True)
            for run in range(2 if metric == "macro_f1_split" else 1)
        ]
    )  # fmt: skip


def test_the_table_has_a_line_for_every_embedding_with_all_methods():
    rows = rows_of(
        {
            "good": BASE | {"batchprox_population": (0.90, 0.90, 0.30, 0.40)},
            "bad": BASE | {"batchprox_population": (0.50, 0.90, 0.30, 0.40)},
            "incomplete": BASE,
        }
    )
    table, (finding,) = promised(rows)
    assert table["dataset"].tolist() == ["good", "bad"]
    assert table["missed"].tolist() == ["none", "F1 -0.400"]
    assert table["unrefined"].tolist() == ["0.900 / 0.800 / 0.300 / 0.100"] * 2
    assert "on 1 of 2 pairs" in finding
    assert promised(rows_of({"incomplete": BASE})) is None


def test_the_page_of_classification_has_the_promises():
    tell, settings = EXPERIMENTS["classify"].tell, EXPERIMENTS["classify"].settings
    with_all = rows_of({"d": BASE | {"batchprox_population": (0.90, 0.90, 0.30, 0.40)}})
    assert "What the population target promises" in tell(with_all, settings).tables
    assert "What the population target promises" not in tell(rows_of({"d": BASE}), settings).tables


@pytest.mark.parametrize(("after", "word"), [(0.897, "kept"), (0.85, "missed")])
def test_the_page_of_imbalance_says_whether_the_affected_type_is_kept(after, word):
    experiment = EXPERIMENTS["imbalance"]
    rows = pd.DataFrame(
        [
            {
                "experiment": "imbalance", "dataset": "d", "upstream": "pca", "method": method,
                "condition": regime, "step": f"T in {batch}", "run": 0, "metric": "affected_f1",
                "value": 0.9 if regime == "balanced" else value,
            }
            for method, value in (("unrefined", 0.88), ("batchprox_population", after))
            for regime in ("balanced", "ablation")
            for batch in "ab"
        ]
    )  # fmt: skip
    said = [s for s in experiment.tell(rows, experiment.settings).findings if "Promise" in s]
    assert len(said) == 1
    assert f"{word} on d (PCA)" in said[0]
    assert "unrefined embedding by 0.020" in said[0]
    assert np.isclose(0.9 - after, float(said[0].split("falls by ")[1].split()[0]), atol=1e-3)
