"""Planted effects: the truth undoes them, nothing else is changed, and scores follow from the truth."""

import itertools
import re
from dataclasses import replace

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scbatchprox import diagnose
from scbatchprox.bench.experiments import EXPERIMENTS, run
from scbatchprox.bench.experiments.classify import REAL
from scbatchprox.bench.experiments.journal import Key
from scbatchprox.bench.experiments.planted import PlantedSettings
from scbatchprox.bench.experiments.planted_page import HALVES, VERDICTS, half_of, harms
from scbatchprox.bench.planted import KINDS, displacement_error, plant, possible, type_distance
from scbatchprox.errors import BadKey, BadValue
from scbatchprox.evaluate.metrics import (
    leave_one_batch_out_f1,
    macro_f1,
    neighbours_kept,
    over_correction,
    variance_kept,
)

NULL = ("null", "null_unequal", "null_many_10", "null_many_30")
ABSENT = ("missing_one", "missing_several", "private")
SIZES = {"shift_0.1": 0.1, "shift_0.3": 0.3, "shift_1": 1.0, "shift_3": 3.0, "shift_10": 10.0}


@pytest.fixture(scope="module")
def source():
    """Five types of one batch, the last of them too rare to be taken away."""
    rng = np.random.default_rng(7)
    types = rng.permutation(np.repeat(["B", "NK", "T", "mono", "rare"], [500, 400, 300, 200, 6]))
    means = dict(zip(np.unique(types), 4.0 * rng.normal(size=(5, 6)), strict=True))
    return np.array([means[t] for t in types]) + rng.normal(size=(types.size, 6)), types


def composition(planted):
    return pd.crosstab(planted.batch, planted.cell_type)


def centred(X):
    return X - X.mean(0)


def sides(planted, values):
    return [values[planted.batch == b] for b in np.unique(planted.batch)]


class TestTruth:
    @pytest.mark.parametrize("kind", KINDS)
    def test_undoes_the_effect(self, source, kind):
        Z, types = source
        planted = plant(Z, types, kind, seed=3)
        back = planted.Z + planted.truth
        np.testing.assert_allclose(centred(back), centred(Z[planted.rows]), atol=1e-9)
        np.testing.assert_array_equal(planted.cell_type, types[planted.rows])
        assert (np.diff(planted.rows) > 0).all()
        assert displacement_error(planted, back) == pytest.approx(0.0, abs=1e-12)

    @pytest.mark.parametrize("kind", [*NULL, *ABSENT])
    def test_is_none_where_nothing_is_displaced(self, source, kind):
        planted = plant(*source, kind)
        assert KINDS[kind].null
        assert not planted.truth.any()
        np.testing.assert_array_equal(planted.Z, source[0][planted.rows])

    def test_every_other_kind_displaces(self, source):
        for kind in set(KINDS) - {*NULL, *ABSENT}:
            assert not KINDS[kind].null
            planted = plant(*source, kind)
            assert displacement_error(planted, planted.Z) > 0.01

    @pytest.mark.parametrize("kind", KINDS)
    def test_is_that_of_the_seed(self, source, kind):
        one, same, other = (plant(*source, kind, seed=seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one.Z, same.Z)
        np.testing.assert_array_equal(one.batch, same.batch)
        differs = one.batch.shape != other.batch.shape or (one.batch != other.batch).any()
        assert differs

    def test_kinds_that_split_alike_share_their_batches(self, source):
        whole = [plant(*source, kind) for kind in ("null", *SIZES, "type_shift", "field", "scale")]
        for planted in whole[1:]:
            np.testing.assert_array_equal(planted.batch, whole[0].batch)
        directions = [p.truth / SIZES[kind] for kind, p in zip(SIZES, whole[1:], strict=False)]
        for other in directions[1:]:
            np.testing.assert_allclose(other, directions[0])


class TestSplits:
    def test_sizes(self, source):
        n = len(source[0])
        sizes = {
            kind: sorted(pd.Series(plant(*source, kind).batch).value_counts()) for kind in NULL
        }
        assert sizes["null"] == [n // 2, n - n // 2]
        assert sizes["null_unequal"] == [30, n - 30]  # a 51st would be fewer
        assert len(sizes["null_many_10"]) == 10
        assert len(sizes["null_many_30"]) == 30
        for kind in ("null_many_10", "null_many_30"):
            assert sizes[kind][0] >= 40
            assert sizes[kind][-1] - sizes[kind][0] <= 1

    def test_one_to_fifty_where_there_are_cells(self, rng):
        planted = plant(rng.normal(size=(5100, 2)), ["a", "b"] * 2550, "null_unequal")
        assert sorted(pd.Series(planted.batch).value_counts()) == [100, 5000]

    def test_as_many_as_cells_allow(self, rng):
        for n, kind, found in ((480, "null_many_30", 12), (200, "null_many_10", 5)):
            planted = plant(rng.normal(size=(n, 2)), ["a", "b"] * (n // 2), kind)
            assert len(set(planted.batch)) == found

    def test_batches_are_random_and_not_by_place(self, source):
        """Whether a cell is in the second half says nothing of its coordinates, nor its type."""
        Z, types = source
        first = plant(Z, types, "null").batch == "b00"
        error = Z.std(0) * np.sqrt(1 / first.sum() + 1 / (~first).sum())
        assert (np.abs(Z[first].mean(0) - Z[~first].mean(0)) < 4 * error).all()

    @pytest.mark.parametrize(
        ("kind", "lost"), [("missing_one", 1), ("missing_several", 2), ("shift_missing", 2)]
    )
    def test_types_are_gone_from_one_side(self, source, kind, lost):
        for seed in range(5):
            whole, left = (composition(plant(*source, k, seed=seed)) for k in ("null", kind))
            pd.testing.assert_series_equal(left.loc["b00"], whole.loc["b00"])
            gone = left.columns[left.loc["b01"] == 0]
            assert len(set(gone) - {"rare"}) == lost
            kept = left.columns.difference(gone)
            pd.testing.assert_series_equal(left.loc["b01", kept], whole.loc["b01", kept])
            assert "rare" not in gone or whole.loc["b01", "rare"] == 0

    def test_each_side_has_lost_a_type_of_its_own(self, source):
        for seed in range(5):
            left = composition(plant(*source, "private", seed=seed)).drop(columns="rare")
            gone = [list(left.columns[left.loc[b] == 0]) for b in ("b00", "b01")]
            assert [len(g) for g in gone] == [1, 1]
            assert gone[0] != gone[1]

    def test_what_cells_do_not_allow_is_said(self, rng):
        few = np.repeat(["a", "b"], 50)
        for kind, reason in (
            ("null_many_10", "cells for 3 batches of 40, found 100"),
            ("missing_several", "more than 2 types of 10 cells to take 2 away, found 2"),
            ("private", "three types of 10 cells, found 2"),
            ("missing_one", "30 cells to be left without 1 of the types"),
        ):
            assert reason in possible(few, kind)
            with pytest.raises(BadValue, match=reason):
                plant(rng.normal(size=(100, 2)), few, kind)
        assert possible(few, "null") is None
        assert "batches of 30 cells, found 59" in possible(few[:59], "null")


class TestEffects:
    @pytest.mark.parametrize("kind", SIZES)
    def test_shifts_have_their_size(self, source, kind):
        planted = plant(*source, kind)
        still, moved = sides(planted, planted.truth)
        assert not still.any()
        lengths = np.linalg.norm(moved, axis=1) / planted.unit
        np.testing.assert_allclose(lengths, SIZES[kind])
        np.testing.assert_allclose(moved, np.broadcast_to(moved[0], moved.shape))
        # Two halves, one of them off by s: about the mean, all cells are off by s / 2.
        assert displacement_error(planted, planted.Z) == pytest.approx(SIZES[kind] / 2, rel=1e-3)

    def test_each_of_many_goes_its_own_way(self, source):
        planted = plant(*source, "shift_many")
        ways = np.array([side[0] for side in sides(planted, planted.truth)]) / planted.unit
        np.testing.assert_allclose(np.linalg.norm(ways, axis=1), [0.0, *[1.0] * 9])
        assert np.linalg.matrix_rank(ways) == 6

    def test_types_go_a_little_apart(self, source):
        planted = plant(*source, "type_shift")
        common = plant(*source, "shift_1")
        rest = (planted.truth - 0.5 * common.truth) / planted.unit
        still, moved = sides(planted, rest)
        assert not still.any()
        np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 0.25)
        types = sides(planted, planted.cell_type)[1]
        assert len(np.unique(moved.round(9), axis=0)) == len(set(types))
        for t in set(types):
            assert np.ptp(moved[types == t], axis=0).max() < 1e-9

    def test_the_field_is_smooth(self, source):
        """Near cells move alike, far ones do not; the size is half of the unit."""
        planted = plant(*source, "field")
        Z, truth = (sides(planted, X)[1] for X in (planted.Z + planted.truth, planted.truth))
        assert not sides(planted, planted.truth)[0].any()
        assert np.sqrt((truth**2).sum(1).mean()) == pytest.approx(0.5 * planted.unit)
        D, T = (np.linalg.norm(X[:, None] - X[None], axis=2) / planted.unit for X in (Z, truth))
        near, far = (D > 0) & (D < 0.15), D > 1.0
        assert near.sum() > 20
        assert np.median(T[near]) < 0.3 * np.median(T[far])

    def test_coordinates_are_scaled_about_the_mean(self, source):
        planted = plant(*source, "scale")
        was, now = (sides(planted, X)[1] for X in (planted.Z + planted.truth, planted.Z))
        factor = now.std(0) / was.std(0)
        assert ((factor >= 0.7) & (factor <= 1.4)).all()
        assert np.ptp(factor) > 0.1
        np.testing.assert_allclose(centred(now), factor * centred(was), atol=1e-9)
        assert np.linalg.norm(now.mean(0) - was.mean(0)) == pytest.approx(0.5 * planted.unit)


class TestScores:
    def test_the_unit_is_a_median_over_pairs_of_types(self, source):
        Z, types = source
        means = [Z[types == t].mean(0) for t in np.unique(types)]
        pairs = [np.linalg.norm(a - b) for a, b in itertools.combinations(means, 2)]
        assert type_distance(Z, types) == pytest.approx(np.median(pairs))
        assert plant(Z, types, "missing_several").unit == pytest.approx(np.median(pairs))

    def test_error_is_the_definition(self, source, rng):
        planted = plant(*source, "type_shift")
        after = planted.Z + rng.normal(size=planted.Z.shape)
        off = [a - z - t for a, z, t in zip(after, planted.Z, planted.truth, strict=True)]
        mean = sum(off) / len(off)
        squares = [((o - mean) ** 2).sum() for o in off]
        expected = np.sqrt(sum(squares) / len(squares)) / type_distance(*source)
        assert displacement_error(planted, after) == pytest.approx(expected)

    def test_moving_all_cells_alike_is_neither_right_nor_wrong(self, source, rng):
        planted = plant(*source, "field")
        after = planted.Z + rng.normal(size=planted.Z.shape)
        error = displacement_error(planted, after)
        assert displacement_error(planted, after + 50.0) == pytest.approx(error)
        scaled = replace(planted, Z=3 * planted.Z, truth=3 * planted.truth, unit=3 * planted.unit)
        assert displacement_error(scaled, 3 * after) == pytest.approx(error)

    def test_bad_input(self, source):
        Z, types = source
        with pytest.raises(
            BadKey, match="a kind of planted set, found 'shif'; available: 'null', "
        ):
            plant(Z, types, "shif")
        with pytest.raises(BadValue, match=r"one cell type per cell \(1406\), found 1405"):
            plant(Z, types[1:], "null")
        with pytest.raises(BadValue, match="two cell types at some distance, found 1"):
            plant(Z, ["T"] * len(Z), "null")
        planted = plant(Z, types, "null")
        with pytest.raises(BadValue, match=r"planted cells, \(1406, 6\), .*found \(1405, 6\)"):
            displacement_error(planted, planted.Z[1:])


class TestHarm:
    def sets(self, **changes):
        """Scores of one planted set, as good as unrefined but for these."""
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
    def test_any_score_may_tell(self, changes, harm):
        found = harms(self.sets(**changes), "ours")
        assert found.any(axis=1).tolist() == [harm]
        if len(changes) == 1:
            assert found[next(iter(changes))].tolist() == [harm]


def test_halves_alternate_in_alphabetical_order():
    assert HALVES["choosing"] == (
        *("bbbc021_moa", "covid_pbmc_pca", "hematopoiesis_scvi"),
        *("kang_ifnb", "pancreas_scvi", "sc_mixology"),
    )
    assert HALVES["confirming"] == (
        *("cell_lines", "fsdd_speech", "hmp16s_bodysites"),
        *("optimalflow37", "pancreas_wang_xin", "synovium"),
    )
    assert {half_of(name) for name in REAL} == set(HALVES)
    assert half_of("mine") == "other data"
    quick = EXPERIMENTS["planted"].quick["data"]
    assert not set(quick) & set(HALVES["confirming"])


EXPERIMENT = EXPERIMENTS["planted"]


@pytest.fixture(scope="module")
def path(source, tmp_path_factory):
    """The source as a small batch among others, under a name of the choosing half."""
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
    adata.X[0, 0] = 0.5  # no counts
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


class TestExperiment:
    def test_rows_are_scores_of_what_they_say(self, path, settings, tmp_path):
        from scbatchprox import BatchProx

        done = run(EXPERIMENT, settings, tmp_path)
        rows = done.rows
        assert (rows["status"] == "ok").all()
        # The largest batch has one type; of the others, no 11 batches of 40 cells can be made.
        assert set(rows["step"]) == {"large", "small"}
        assert set(rows["condition"]) == {"null", "missing_one", "shift_1"}
        assert len(rows.drop_duplicates(list(Key._fields))) == 2 * 3 * 4
        assert value(rows, "displacement_error", "unrefined", "null") == 0.0
        assert np.isnan(value(rows, "displacement_relative", "batchprox", "null"))
        adata = ad.read_h5ad(path)
        small = adata[adata.obs["batch"] == "small"]
        planted = plant(small.obsm["X_pca"], small.obs["cell_type"], "shift_1")
        Z, batch, cell_type = planted.Z, planted.batch, planted.cell_type
        after = BatchProx(rounds=3).fit_transform(Z, batch=batch)
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
        verdicts = diagnose(Z, batch, target="population")["verdict"].str.split(":").str[0]
        for words in VERDICTS:
            found = value(rows, f"verdict_{words}", "diagnose", "shift_1", "small")
            assert found == (verdicts == words).sum()

    def test_the_page(self, settings, tmp_path):
        done = run(EXPERIMENT, settings, tmp_path)
        page = (tmp_path / "planted.md").read_text()
        for words in (
            "### Choosing: means and spread over data sets",
            "### Choosing: harm",
            "### Choosing: verdicts of the diagnosis",
            "| shift_1 | scBatchProx population |",
            "choosing: bbbc021_moa, ",
            "cell_lines and synovium too",
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
        safe = wide["verdict_safe", "diagnose"]
        told = f"{safe[~harm].sum():.0f} of {safe.sum():.0f} batches (choosing)"
        assert any(told in finding for finding in done.findings if "`safe` was safe" in finding)
        told = f"{harm.sum()} of 6 (choosing)"
        assert any(told in f for f in done.findings if "population does harm" in f)

    def test_kinds_are_in_their_order_on_the_page(self, settings, tmp_path):
        """Even where the first data set has no cells for some of them."""
        done = run(EXPERIMENT, settings, tmp_path)
        late = done.rows[done.rows["step"] == "small"].assign(condition="null_many_30")
        story = EXPERIMENT.tell(pd.concat([done.rows, late]), settings)
        table = story.tables["Choosing: means and spread over data sets"]
        expected = ["null", "null_many_30", "missing_one", "shift_1"]
        assert list(dict.fromkeys(table["planted"])) == expected

    def test_no_finding_is_of_both_halves(self, settings, tmp_path):
        """What the other half says changes nothing that is said of the first."""
        rows = run(EXPERIMENT, settings, tmp_path).rows
        other = rows.assign(dataset="synovium", value=rows["value"] * 0.5)
        alone = EXPERIMENT.tell(rows, settings)
        both = EXPERIMENT.tell(pd.concat([other, rows]), settings)
        for before, after in zip(alone.findings, both.findings, strict=True):
            said = re.findall(r"[\d.]+(?: of \d+)?(?: batches)? \(choosing\)", before)
            assert said
            assert said == re.findall(r"[\d.]+(?: of \d+)?(?: batches)? \(choosing\)", after)
        for name, table in alone.tables.items():
            pd.testing.assert_frame_equal(table, both.tables[name])
        assert any(name.startswith("Confirming") for name in both.tables)

    def test_finished_rows_are_not_computed_again(self, settings, tmp_path):
        first = run(EXPERIMENT, settings, tmp_path)
        again = run(EXPERIMENT, replace(settings, runs=2), tmp_path)
        assert (first.reused, again.reused) == (0, 24)
        assert len(again.rows.drop_duplicates(list(Key._fields))) == 48
        other = run(EXPERIMENT, replace(settings, cells=200), tmp_path)
        assert other.reused == 0

    def test_without_the_population_target_nothing_is_diagnosed(self, settings, tmp_path):
        done = run(EXPERIMENT, replace(settings, methods=("batchprox",)), tmp_path)
        assert set(done.rows["method"]) == {"unrefined", "batchprox"}
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
        with pytest.raises(
            BadValue, match="kinds that there are, found 'shift'; available: 'null'"
        ):
            PlantedSettings(kinds=("null", "shift"))
        for change in ({"batches": 0}, {"cells": 10}, {"runs": 0}):
            with pytest.raises(BadValue, match=next(iter(change))):
                PlantedSettings(**change)

    @pytest.mark.parametrize("verdicts", [["safe", "who knows"], [None, "safe"]])
    def test_verdicts_of_other_words_are_an_error_not_a_count(
        self, settings, tmp_path, monkeypatch, verdicts
    ):
        monkeypatch.setattr(
            "scbatchprox.bench.experiments.planted.diagnose",
            lambda *args, **kwargs: pd.DataFrame({"verdict": verdicts}),
        )
        done = run(EXPERIMENT, replace(settings, kinds=("null",), batches=1), tmp_path)
        failed = done.rows[done.rows["status"] == "failed"]
        assert failed["method"].tolist() == ["diagnose"]
        assert "Expected verdicts that begin with 'safe'" in failed["reason"].item()


def test_a_quick_look_at_simulated_counts(tmp_path):
    """As the command does, on what needs no data; Harmony may be missing, which is a row."""
    settings = replace(EXPERIMENT.settings, **EXPERIMENT.quick)
    settings = replace(settings, data=("sim_balanced2",))
    done = run(EXPERIMENT, settings, tmp_path)
    rows = done.rows[done.rows["method"] != "harmony"]
    assert (rows["status"] == "ok").all()
    assert set(rows["condition"]) == set(EXPERIMENT.quick["kinds"])
    assert "Other data: means" in (tmp_path / "planted.md").read_text()
