"""Every constant halved and doubled: the changes, and the page."""

from dataclasses import asdict

import pandas as pd
import pytest

from research.experiments.sensitivity import SENSITIVITY, varied
from scbatchprox import PopulationSettings

USUAL = asdict(PopulationSettings())


#: All but flags, which cannot be halved.
CONSTANTS = [name for name, value in USUAL.items() if not isinstance(value, bool)]


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_constant_is_halved_and_doubled_alone(name):
    changed = {word: found for word, found in varied().items() if word.split()[0] == name}
    # This constant is a share, which cannot exceed 1.
    assert {word.split()[1] for word in changed} >= (
        {"half"} if name == "apart" else {"half", "double"}
    )
    for word, settings in changed.items():
        now = asdict(settings)
        assert [key for key in USUAL if now[key] != USUAL[key]] == [name]
        before, after = (x[name][0] if name == "coarse" else x[name] for x in (USUAL, now))
        assert after == pytest.approx(before * (0.5 if "half" in word else 2.0), abs=0.5)


def row(condition, metric, value, dataset="d"):
    method = "batchprox_population" if condition else "unrefined"
    return {
        "dataset": dataset,
        "upstream": "pca",
        "method": method,
        "condition": condition,
        "metric": metric,
        "value": value,
    }


def test_the_page_has_the_largest_change():
    metrics = ("lobo_f1", "silhouette", "mixing_within_types", "over_correction")
    metrics += ("variance_kept", "neighbours_kept_in_batch")
    values = dict.fromkeys(["", *varied()], 0.5) | {"prior half": 0.75}
    rows = pd.DataFrame([
        row(condition, metric, value, dataset)
        for condition, value in values.items()
        for metric in metrics
        for dataset in ("d", "e")
    ])  # fmt: skip
    report = SENSITIVITY.report(rows, SENSITIVITY.settings)
    expected = f"1 of {len(varied()) - 1} changes move its mean by more than 0.01; "
    expected += "the largest is +0.250 (prior half)"
    assert all(expected in finding for finding in report.findings)
    table = report.tables["Means over data sets"].set_index("changed")
    assert table.loc["prior half"].tolist() == [*[0.75] * 6, 0.25]
    assert table.drop(index="prior half").iloc[:, :6].eq(0.5).all(axis=None)
