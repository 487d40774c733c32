"""The experiment on planted effects: its rows, page and settings."""

import re
from dataclasses import replace

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from planted_data import one_batch
from research.experiments import EXPERIMENTS, run
from research.experiments.classify import LATER, REAL
from research.experiments.journal import Key
from research.experiments.page import NO_EFFECT
from research.experiments.planted import PlantedSettings
from research.experiments.planted_page import HALVES, half_of, harms
from research.planted import displacement_error, knowing_types, plant
from scbatchprox import diagnose
from scbatchprox.diagnosis import Level
from scbatchprox.errors import BadValue
from scbatchprox.evaluate import (
    leave_one_batch_out_f1,
    macro_f1,
    neighbours_kept,
    over_correction,
    variance_kept,
)

EXPERIMENT = EXPERIMENTS["planted"]


@pytest.fixture(scope="module")
def source():
    return one_batch()


@pytest.fixture(scope="module")
def path(source, tmp_path_factory):
    """Write the cells as batches of a file, under the name of a set for choosing."""
    Z, types = source
    rng = np.random.default_rng(1)
    obs = pd.DataFrame(
        {
            "batch": np.repeat(["one type", "large", "small"], [500, 400, 200]),
            "cell_type": np.concatenate([["T"] * 500, types[:600]]),
        },
        index=[f"cell{i}" for i in range(1100)],
    )
    first = Z[types == "T"][rng.integers(0, 300, 500)] + rng.normal(size=(500, 6))
    adata = ad.AnnData(np.zeros((1100, 1), np.float32), obs)
    adata.X[0, 0] = 0.5  # not counts
    adata.obsm["X_pca"] = np.concatenate([first, Z[:400], Z[400:600] + 20.0])
    path = tmp_path_factory.mktemp("data") / "sc_mixology.h5ad"
    adata.write_h5ad(path)
    return path


@pytest.fixture
def settings(path):
    return replace(
        EXPERIMENT.settings,
        data=(str(path),),
        methods=("batchprox", "batchprox_population"),
        kinds=("null", "missing_one", "shift_1", "null_many_30"),
        cells=250,
        batches=2,
    )


def value(rows, metric, method, condition, step="large"):
    chosen = rows[(rows["metric"] == metric) & (rows["method"] == method)]
    (found,) = chosen[(chosen["condition"] == condition) & (chosen["step"] == step)]["value"]
    return found


class TestHarm:
    def sets(self, **changes):
        """Return scores of one planted set, equal to unrefined except for these."""
        base = {"lobo_f1": 0.9, "over_correction": 0.1, "displacement_error": 0.5}
        found = {(m, "unrefined"): v for m, v in base.items()}
        found |= {(m, "ours"): changes.get(m, v) for m, v in base.items()}
        return pd.DataFrame([found])

    @pytest.mark.parametrize(
        ("changes", "harm"),
        [
            ({}, False),
            ({"lobo_f1": 0.891, "over_correction": 0.109, "displacement_error": 0.599}, False),
            ({"lobo_f1": 0.889}, True),
            ({"over_correction": 0.111}, True),
            ({"displacement_error": 0.601}, True),
            ({"lobo_f1": 1.0, "over_correction": 0.0, "displacement_error": 0.0}, False),
            ({"over_correction": np.nan}, False),
        ],
    )
    def test_each_score_can_show_harm(self, changes, harm):
        found = harms(self.sets(**changes), "ours")
        assert found.any(axis=1).tolist() == [harm]
        if len(changes) == 1:
            assert found[next(iter(changes))].tolist() == [harm]

    @pytest.mark.parametrize(
        ("changes", "harm"),
        [
            ({"over_correction": 0.25, "lobo_f1": 0.845}, False),  # as the truth has
            ({"over_correction": 0.27}, True),
            ({"lobo_f1": 0.83}, True),
        ],
    )
    def test_what_the_same_cells_have_without_the_effect_is_no_harm(self, changes, harm):
        sets = self.sets(**changes)
        sets["over_correction", NO_EFFECT], sets["lobo_f1", NO_EFFECT] = 0.25, 0.85
        assert harms(sets, "ours").any(axis=1).tolist() == [harm]


def test_halves_alternate_in_alphabetical_order():
    assert HALVES["choosing"] == (
        *("bbbc021_moa", "covid_pbmc_pca", "hematopoiesis_scvi"),
        *("kang_ifnb", "pancreas_scvi", "sc_mixology"),
        *("cytof8", "mesc2", "onek1k40", "primates9"),
    )
    assert HALVES["confirming"] == (
        *("cell_lines", "fsdd_speech", "hmp16s_bodysites"),
        *("optimalflow37", "pancreas_wang_xin", "synovium"),
        *("glioblastoma10", "mtbls79", "panc8_small"),
    )
    assert {half_of(name) for name in (*REAL, *LATER)} == set(HALVES)
    assert half_of("mine") == "other data"
    quick = EXPERIMENTS["planted"].quick["data"]
    assert not set(quick) & set(HALVES["confirming"])


class TestExperiment:
    def test_rows_equal_direct_computations(self, path, settings, tmp_path):
        from scbatchprox import BatchProx

        done = run(EXPERIMENT, settings, tmp_path)
        rows = done.rows
        assert (rows["status"] == "ok").all()
        # The largest batch has one type. The others have too few cells for 11 batches of 40.
        assert set(rows["step"]) == {"large", "small"}
        assert set(rows["condition"]) == {"null", "missing_one", "shift_1"}
        # Unrefined, two methods and verdicts; of shifts also the truth, and one who knows the types.
        assert len(rows.drop_duplicates(list(Key._fields))) == 2 * (3 * 4 + 2)
        assert value(rows, "displacement_error", "unrefined", "null") == 0.0
        assert np.isnan(value(rows, "displacement_relative", "batchprox", "null"))
        adata = ad.read_h5ad(path)
        small = adata[adata.obs["batch"] == "small"]
        planted = plant(small.obsm["X_pca"], small.obs["cell_type"], "shift_1")
        Z, batch, cell_type = planted.Z, planted.batch, planted.cell_type
        after = BatchProx(rounds=3, target="moment").fit_transform(Z, batch=batch)
        original = Z + planted.truth
        for metric, score in (
            ("over_correction", over_correction(original, batch, cell_type)),
            ("lobo_f1", leave_one_batch_out_f1(original, cell_type, batch)),
        ):
            assert value(rows, metric, NO_EFFECT, "shift_1", "small") == pytest.approx(score)
        expected = {
            "displacement_error": displacement_error(planted, after),
            "displacement_relative": displacement_error(planted, after)
            / displacement_error(planted, Z),
            "macro_f1": macro_f1(after, cell_type),
            "lobo_f1": leave_one_batch_out_f1(after, cell_type, batch),
            "over_correction": over_correction(after, batch, cell_type),
            "variance_kept": variance_kept(Z, after, batch, cell_type),
            "neighbours_kept_in_batch": neighbours_kept(Z, after, batch=batch).mean(),
        }
        for metric, number in expected.items():
            assert value(rows, metric, "batchprox", "shift_1", "small") == pytest.approx(number)
        known = displacement_error(planted, knowing_types(planted))
        assert value(rows, "displacement_error", "types known", "shift_1", "small") == known
        verdicts = diagnose(Z, batch, target="population")["verdict"].str.split(":").str[0]
        for level in Level:
            found = value(rows, f"verdict_{level}", "diagnose", "shift_1", "small")
            assert found == (verdicts == level).sum()

    def test_the_page(self, settings, tmp_path):
        done = run(EXPERIMENT, settings, tmp_path)
        page = (tmp_path / "planted.md").read_text()
        for words in (
            "### Choosing: means and spread over data sets",
            "### Choosing: harm",
            "### Choosing: verdicts of the diagnosis",
            "| shift_1 | scBatchProx population |",
            "choosing: bbbc021_moa, ",
            "cell_lines and synovium were also used",
            "planted in large (2",
            "too few for null_many_30",
        ):
            assert words in page
        assert "Confirming:" not in page
        assert (tmp_path / "planted.png").read_bytes().startswith(b"\x89PNG")
        wide = done.rows.pivot_table(
            index=["condition", "step"], columns=["metric", "method"], values="value"
        )
        harm = harms(wide, "batchprox_population").any(axis=1)
        for level in Level:
            assert f"| {level} |" in page
            said = wide[f"verdict_{level}", "diagnose"]
            expected = f"{said[~harm].sum():.0f} of {said.sum():.0f} batches (choosing)"
            assert any(expected in f for f in done.findings if f"with `{level}`" in f)
        expected = f"{harm.sum()} of 6 (choosing)"
        assert any(expected in f for f in done.findings if "population does harm" in f)

    def test_kinds_are_in_their_order_on_the_page(self, settings, tmp_path):
        """Also if the first data set has too few cells for some kinds."""
        done = run(EXPERIMENT, settings, tmp_path)
        late = done.rows[done.rows["step"] == "small"].assign(condition="null_many_30")
        report = EXPERIMENT.report(pd.concat([done.rows, late]), settings)
        table = report.tables["Choosing: means and spread over data sets"]
        expected = ["null", "null_many_30", "missing_one", "shift_1"]
        assert list(dict.fromkeys(table["planted"])) == expected

    def test_halves_are_never_pooled(self, settings, tmp_path):
        """Findings on one half do not depend on the other."""
        rows = run(EXPERIMENT, settings, tmp_path).rows
        other = rows.assign(dataset="synovium", value=rows["value"] * 0.5)
        one = EXPERIMENT.report(rows, settings)
        both = EXPERIMENT.report(pd.concat([other, rows]), settings)
        for before, after in zip(one.findings, both.findings, strict=True):
            said = re.findall(r"[\d.]+(?: of \d+)?(?: batches)? \(choosing\)", before)
            assert said
            assert said == re.findall(r"[\d.]+(?: of \d+)?(?: batches)? \(choosing\)", after)
        for name, table in one.tables.items():
            pd.testing.assert_frame_equal(table, both.tables[name])
        assert any(name.startswith("Confirming") for name in both.tables)

    @pytest.mark.slow
    def test_finished_rows_are_not_computed_again(self, settings, tmp_path):
        first = run(EXPERIMENT, settings, tmp_path)
        again = run(EXPERIMENT, replace(settings, runs=2), tmp_path)
        assert (first.reused, again.reused) == (0, 28)
        assert len(again.rows.drop_duplicates(list(Key._fields))) == 56
        other = run(EXPERIMENT, replace(settings, cells=200), tmp_path)
        assert other.reused == 0

    def test_without_the_population_target_nothing_is_diagnosed(self, settings, tmp_path):
        done = run(EXPERIMENT, replace(settings, methods=("batchprox",)), tmp_path)
        assert set(done.rows["method"]) == {"unrefined", "batchprox", NO_EFFECT, "types known"}
        assert "verdicts" not in (tmp_path / "planted.md").read_text()

    def test_no_batch_to_plant_in(self, settings, tmp_path, rng):
        obs = pd.DataFrame({"batch": ["x", "y"] * 100, "cell_type": ["T", "B"] * 100})
        obs.index = obs.index.astype(str)
        adata = ad.AnnData(np.full((200, 1), 0.5, np.float32), obs)
        adata.obsm["X_pca"] = rng.normal(size=(200, 3))
        adata.write_h5ad(tmp_path / "apart.h5ad")
        with pytest.raises(BadValue, match="10 of each of two types, in apart, found none"):
            run(
                EXPERIMENT,
                replace(settings, data=(str(tmp_path / "apart.h5ad"),)),
                tmp_path / "out",
                insist=True,
            )

    def test_settings_that_make_no_sense(self):
        with pytest.raises(BadValue, match="known kinds, found 'shift'; available: 'null'"):
            PlantedSettings(kinds=("null", "shift"))
        for change in ({"batches": 0}, {"cells": 10}, {"runs": 0}):
            with pytest.raises(BadValue, match=next(iter(change))):
                PlantedSettings(**change)

    @pytest.mark.parametrize("levels", [[Level.REMOVED, "who knows"], [None, Level.REMOVED]])
    def test_unknown_levels_are_an_error(self, settings, tmp_path, monkeypatch, levels):
        monkeypatch.setattr(
            "research.experiments.planted.diagnose",
            lambda *args, **kwargs: pd.DataFrame({"level": levels}),
        )
        done = run(EXPERIMENT, replace(settings, kinds=("null",), batches=1), tmp_path)
        failed = done.rows[done.rows["status"] == "failed"]
        assert failed["method"].tolist() == ["diagnose"]
        assert f"Expected levels '{next(iter(Level))}'" in failed["reason"].item()


@pytest.mark.slow
def test_a_quick_run_on_simulated_counts(tmp_path):
    """As the command does, on simulated data; rows of Harmony may fail if it is not installed."""
    settings = replace(EXPERIMENT.settings, **EXPERIMENT.quick)
    settings = replace(settings, data=("sim_balanced2",))
    done = run(EXPERIMENT, settings, tmp_path)
    rows = done.rows[done.rows["method"] != "harmony"]
    assert (rows["status"] == "ok").all()
    assert set(rows["condition"]) == set(EXPERIMENT.quick["kinds"])
    assert "Other data: means" in (tmp_path / "planted.md").read_text()
