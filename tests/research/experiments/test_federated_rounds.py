"""Sums of a federated fit, counted on a user's file."""

from dataclasses import replace

import pandas as pd

from research.experiments import EXPERIMENTS, run

EXPERIMENT = EXPERIMENTS["federated_rounds"]


def test_a_page_on_a_file_of_the_user(path, tmp_path):
    settings = replace(EXPERIMENT.settings, data=(str(path),), n_components=5)
    done = run(EXPERIMENT, settings, tmp_path)
    assert set(done.rows["status"]) == {"ok"}
    rows = pd.read_csv(tmp_path / "federated_rounds.csv", keep_default_na=False)
    sums = rows[rows["metric"] == "sums"].set_index("condition")["value"].astype(float)
    assert sums["1 rounds"] < sums["default"]
    page = (tmp_path / "federated_rounds.md").read_text()
    assert "### Number of sums, other data sets" in page
    assert "nan" not in page.split("## How it was measured")[0]
