"""Experiments: rows that survive, numbers that follow from cells, sentences that follow from numbers."""

import json
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from scbatchprox import BatchProx, MomentTarget
from scbatchprox.bench.baselines import Embedding
from scbatchprox.bench.compositions import Composition
from scbatchprox.bench.datasets import Dataset
from scbatchprox.bench.experiments import EXPERIMENTS, paper, read_config, run
from scbatchprox.bench.experiments.arrival import (
    ArrivalSettings,
    FrozenReference,
    add_and_refit,
    add_frozen,
    orders_of,
)
from scbatchprox.bench.experiments.evolving_page import wall_clock
from scbatchprox.bench.experiments.imbalance import Case, perturbed
from scbatchprox.bench.experiments.journal import COLUMNS, Job, Journal, Key, digest
from scbatchprox.bench.experiments.page import beside, summary
from scbatchprox.bench.experiments.settings import Settings
from scbatchprox.bench.experiments.trial import EmbeddingStore, Trial, fingerprint_of, sample
from scbatchprox.bench.experiments.verdict import MARGIN, compare
from scbatchprox.bench.simulate import simulate
from scbatchprox.errors import BadFile, BadKey, BadValue, InUse
from scbatchprox.evaluate.metrics import macro_f1
from scbatchprox.upstream import PCAUpstream

SMALL = Composition(
    "small", ("a", "b", "c"), ("T", "B", "NK"), np.array([[60, 40, 20], [30, 30, 0], [20, 20, 20]])
)


@pytest.fixture(scope="module")
def cells():
    adata = simulate(SMALL, n_genes=80, n_components=5)
    del adata.obsm["X_pca"]
    return Dataset("small", adata, True, None)


def trial_of(dataset, tmp_path, settings, experiment="classify"):
    return Trial(experiment, dataset, settings, EmbeddingStore(tmp_path / "embeddings"))


def job(work=None, fingerprint="f", **key):
    named = {"experiment": "e", "dataset": "d", "upstream": "u", "method": "m"} | key
    return Job(Key(**named), fingerprint, work or dict)


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


class TestSettings:
    def config(self, tmp_path, text, *names):
        (tmp_path / "c.toml").write_text(text)
        known = {name: EXPERIMENTS[name].settings for name in names or ("classify",)}
        return read_config(tmp_path / "c.toml", known)

    def test_tables_win_over_what_is_for_all(self, tmp_path):
        text = 'runs = 2\nfirst = 3\nreference = ["a"]\n[classify]\nruns = 7\n[rounds]\nruns = 9\n'
        found = self.config(tmp_path, text, "classify", "continual")
        assert found == {
            "classify": {"runs": 7, "reference": ("a",)},
            "continual": {"runs": 2, "first": 3, "reference": ("a",)},
        }

    def test_unknown_settings_are_an_error_that_lists_the_known(self, tmp_path):
        with pytest.raises(BadKey, match="'epochs'; available: .*'scvi_epochs'"):
            self.config(tmp_path, "epochs = 3")
        with pytest.raises(BadKey, match="'first'"):  # of another experiment
            self.config(tmp_path, "first = 3")
        with pytest.raises(BadKey, match="setting of classify .*'grid'"):
            self.config(tmp_path, "[classify]\ngrid = [1]")

    @pytest.mark.parametrize(
        "text",
        ['runs = "5"', "runs = 2.0", "controls = 1", 'data = "pbmc4"', "data = [1]", "seed = true"],
    )
    def test_other_types_are_an_error(self, tmp_path, text):
        with pytest.raises(BadValue, match="Expected .* in .*c.toml to be"):
            self.config(tmp_path, text)

    def test_files_that_are_none(self, tmp_path):
        with pytest.raises(BadFile, match="no file"):
            read_config(tmp_path / "none.toml", {})
        with pytest.raises(BadValue, match="TOML"):
            self.config(tmp_path, "runs = = 3")

    def test_values_that_make_no_sense(self):
        for change in ({"runs": 0}, {"seed": -1}, {"profile": "slow"}, {"n_components": 0}):
            with pytest.raises(BadValue, match=next(iter(change))):
                replace(Settings(), **change)
        with pytest.raises(BadValue, match="'combat'; available: .*'harmony'"):
            Settings(methods=("combat",))
        with pytest.raises(BadValue, match="'umap'; available: 'pca'"):
            Settings(upstreams=("umap",))

    def test_which_rows_there_are_does_not_change_a_row(self):
        base = Settings()
        for change in ({"runs": 2}, {"data": ("x",)}, {"methods": ("harmony",)}):
            assert replace(base, **change).of_a_row() == base.of_a_row()
        for change in ({"seed": 2}, {"n_components": 3}, {"profile": "fast"}, {"scvi_epochs": 1}):
            assert replace(base, **change).of_a_row() != base.of_a_row()


class TestJournal:
    def test_rows_come_back_in_long_form(self, tmp_path):
        jobs = [job(run=0), job(run=1), job(run=2)]
        with Journal.open(tmp_path / "j") as journal:
            journal.finish(jobs[0], {"f1": 0.5, "seconds": np.float32(2.0)})
            journal.fail(jobs[1], "no such thing")
            journal.finish(jobs[2], {"f1": float("nan")})
        with Journal.open(tmp_path / "j") as journal:
            rows = journal.rows([j.mark for j in jobs])
        assert list(rows.columns) == COLUMNS
        assert rows["metric"].tolist() == ["f1", "seconds", "", "f1"]
        np.testing.assert_array_equal(rows["value"], [0.5, 2.0, np.nan, np.nan])
        assert rows["status"].tolist() == ["ok", "ok", "failed", "ok"]
        assert rows["reason"].tolist() == ["", "", "no such thing", ""]

    def test_a_torn_line_is_done_again_and_the_others_are_kept(self, tmp_path):
        with Journal.open(tmp_path / "j") as journal:
            journal.finish(job(run=0), {"f1": 0.25})
            journal.finish(job(run=1), {"f1": 0.75})
        whole = (tmp_path / "j").read_bytes()
        first = whole.index(b"\n") + 1
        for cut in range(first, len(whole)):
            (tmp_path / "j").write_bytes(whole[:cut])
            with Journal.open(tmp_path / "j") as journal:
                assert journal.is_done(job(run=0))
                assert not journal.is_done(job(run=1))
                journal.finish(job(run=1), {"f1": 0.75})
            assert (tmp_path / "j").read_bytes() == whole

    def test_a_damaged_line_in_the_middle_costs_only_its_own_row(self, tmp_path):
        with Journal.open(tmp_path / "j") as journal:
            for at in range(3):
                journal.finish(job(run=at), {"f1": at / 4})
        lines = (tmp_path / "j").read_bytes().splitlines(keepends=True)
        (tmp_path / "j").write_bytes(lines[0] + b"\0" * 20 + b"\n" + lines[2])
        with Journal.open(tmp_path / "j") as journal:
            assert [journal.is_done(job(run=at)) for at in range(3)] == [True, False, True]

    def test_failed_and_other_rows_are_not_done(self, tmp_path):
        with Journal.open(tmp_path / "j") as journal:
            journal.fail(job(), "reason")
            assert not journal.is_done(job())
            journal.finish(job(), {"f1": 1.0})
            assert journal.is_done(job())
            assert not journal.is_done(job(fingerprint="of another configuration"))
            assert not journal.is_done(job(step="2"))

    def test_two_writers_are_told(self, tmp_path):
        with (
            Journal.open(tmp_path / "j"),
            pytest.raises(InUse, match="in use elsewhere"),
            Journal.open(tmp_path / "j"),
        ):
            pass

    def test_fingerprints_tell_contents_apart(self):
        a = np.arange(6.0)
        assert digest(a) == digest(a.copy())
        others = [a.reshape(2, 3), a.astype(np.float32), -a, a[:5], "x"]
        assert len({digest(a), *(digest(other) for other in others)}) == 6
        assert digest("ab", "c") != digest("a", "bc")


def frame(values, metric="f1", **same):
    """Rows of methods by group: {(dataset, method): values over runs}."""
    rows = [
        Key("e", dataset, "pca", method, run=at)._asdict()
        | {"metric": metric, "value": value}
        | same
        for (dataset, method), several in values.items()
        for at, value in enumerate(several)
    ]
    return pd.DataFrame(rows)


class TestVerdict:
    def test_better_worse_and_level(self):
        rows = frame(
            {
                ("up", "m"): [0.9, 0.91],
                ("up", "base"): [0.8, 0.81],
                ("down", "m"): [0.8],
                ("down", "base"): [0.9],
                ("margin", "m"): [0.5 + 0.9 * MARGIN],
                ("margin", "base"): [0.5],
                ("noisy", "m"): [0.9, 0.1],  # higher by 0.1 in the mean, by no means in both
                ("noisy", "base"): [0.4, 0.4],
                ("alone", "m"): [0.9],
            }
        )
        found = compare(rows, "f1", "m", "base")
        assert (found.better, found.worse, found.even) == (1, 1, 2)
        assert "above base on 1 of 4" in found.sentence()
        assert "does not support" in found.on("it is better")

    def test_pairs_share_a_split(self):
        # Splits differ far more than methods do: only pairs can tell.
        base = np.array([0.3, 0.9, 0.5, 0.7])
        rows = frame({("d", "m"): base + 0.02, ("d", "base"): base})
        assert compare(rows, "f1", "m", "base").better == 1

    def test_what_it_says_of_the_paper(self):
        for values, word in (
            ({("x", "m"): [1.0], ("x", "b"): [0.0]}, "agrees with"),
            (
                {("x", "m"): [1.0], ("x", "b"): [0.0], ("y", "m"): [0.5], ("y", "b"): [0.5]},
                "agrees only in part",
            ),
            ({("x", "m"): [0.0], ("x", "b"): [1.0]}, "does not support"),
            (  # better once and level twice is no support for "better"
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
            ({("x", "m"): [0.0]}, "Nothing here speaks"),
        ):
            assert word in compare(frame(values), "f1", "m", "b").on("c")

    def test_summaries_are_means_and_sample_deviations(self):
        rows = frame({("d", "m"): [0.1, 0.2, 0.6], ("d", "b"): [0.5]})
        table = summary(rows, ["dataset", "method"], ["f1", "none"])
        assert table["f1"].tolist() == [beside(0.3, np.std([0.1, 0.2, 0.6], ddof=1)), "0.500"]
        assert table["none"].tolist() == ["", ""]


class TestCells:
    def test_a_sample_keeps_shares_and_rare_groups(self, cells):
        few = sample(cells, 60, seed=0)
        found = pd.crosstab(few.adata.obs["batch"], few.adata.obs["cell_type"]).to_numpy()
        expected = np.where(SMALL.counts > 0, np.maximum(5, np.round(SMALL.counts * 60 / 240)), 0)
        np.testing.assert_array_equal(found, expected)
        assert fingerprint_of(few) == fingerprint_of(sample(cells, 60, seed=0))
        assert fingerprint_of(few) != fingerprint_of(sample(cells, 60, seed=1))
        assert sample(cells, 240, seed=0) is cells

    def test_perturbations_take_cells_of_one_type_and_batch_only(self, cells, rng):
        obs, case = cells.adata.obs, Case("T", "a")
        before = pd.crosstab(obs["batch"], obs["cell_type"])
        for regime, left in (("balanced", 60), ("downsample", 6), ("ablation", 0)):
            kept = obs[perturbed(obs, case, regime, 0.1, rng)]
            after = pd.crosstab(kept["batch"], kept["cell_type"])
            expected = before.copy()
            expected.loc["a", "T"] = left
            pd.testing.assert_frame_equal(after, expected)

    def test_some_cells_are_embedded_as_if_there_were_no_others(self, cells, tmp_path):
        trial = trial_of(cells, tmp_path, Settings(n_components=4))
        chosen = (cells.adata.obs["batch"] != "b").to_numpy()
        counts = cells.adata[chosen].copy()
        expected = PCAUpstream.fit(counts, n_components=4).embed(counts).Z
        np.testing.assert_array_equal(trial.embed_some(chosen, "pca").Z, expected)

    def test_embeddings_are_made_once(self, tmp_path):
        made, said = [], []

        def make():
            made.append(1)
            return Embedding(np.eye(3), 2.0, 1.0)

        for _ in range(2):  # the second one as after a restart
            store = EmbeddingStore(tmp_path, said.append)
            for _ in range(2):
                found = store.get("scvi", ("data", {"epochs": 3}), make, "scVI of it")
        assert (len(made), said) == (1, ["scVI of it"])
        np.testing.assert_array_equal(found.Z, np.eye(3))
        assert (found.seconds, found.before) == (2.0, 1.0)
        store.get("scvi", ("data", {"epochs": 4}), make)
        assert len(made) == 2

    def test_what_cannot_be_embedded_is_tried_once_a_run(self, tmp_path):
        tried = []

        def make():
            tried.append(1)
            raise BadValue("no counts")

        store = EmbeddingStore(tmp_path)
        for _ in range(2):
            with pytest.raises(BadValue, match="no counts"):
                store.get("pca", ("x",), make)
        assert len(tried) == 1

    def test_the_unrefined_embedding_is_always_there(self, cells, tmp_path):
        trial = trial_of(cells, tmp_path, Settings(methods=("harmony",)))
        assert trial.methods_on("pca") == ("unrefined", "harmony")
        assert trial.methods_on("labels") == ("unrefined",)

    def test_data_without_counts_bring_their_upstream(self, cells, tmp_path, rng):
        adata = cells.adata.copy()
        adata.obsm["X_mine"] = rng.normal(size=(adata.n_obs, 3))
        bare = Dataset("bare", adata, False, "X_mine")
        trial = trial_of(bare, tmp_path, Settings())
        assert trial.upstreams == ("X_mine",)
        np.testing.assert_array_equal(trial.embed("X_mine").Z, adata.obsm["X_mine"])
        both = trial_of(replace(bare, counts=True), tmp_path, Settings())
        assert both.upstreams == ("pca", "scvi")
        asked = trial_of(replace(bare, counts=True), tmp_path, Settings(use_rep="X_mine"))
        assert asked.upstreams == ("X_mine",)


class TestArrival:
    def test_both_orders(self, cells, tmp_path):
        trial = trial_of(cells, tmp_path, ArrivalSettings(order=("c", "a", "b")))
        assert orders_of(trial) == {"forward": ("c", "a", "b"), "reverse": ("b", "a", "c")}
        for settings in (
            ArrivalSettings(order=("a", "b")),
            ArrivalSettings(order=("a", "b", "b")),
            ArrivalSettings(order=("a", "b", "x")),
            ArrivalSettings(first=3),
            ArrivalSettings(first=0),
        ):
            with pytest.raises(BadValue, match="Expected (an order of all batches|first between)"):
                orders_of(trial_of(cells, tmp_path, settings))

    def test_a_frozen_reference_never_sees_what_comes_later(self, cells, tmp_path):
        trial = trial_of(cells, tmp_path, ArrivalSettings(n_components=4))
        reference = FrozenReference(trial, "pca", ("a", "b"))
        batch = cells.adata.obs["batch"]
        first, later = (cells.adata[batch.isin(names)].copy() for names in (["a", "b"], ["c"]))
        model = PCAUpstream.fit(first, n_components=4)
        np.testing.assert_array_equal(reference.part(("a", "b")).Z, model.embed(first).Z)
        np.testing.assert_array_equal(reference.part(("c",)).Z, model.embed(later).Z)
        # After a restart all parts are there, and no reference is fitted.
        again = FrozenReference(trial, "pca", ("a", "b"))
        again.part(("c",))
        assert "model" not in vars(again)

    @pytest.mark.parametrize("params", [{}, {"target": "population", "rounds": "auto"}])
    def test_frozen_arrivals_move_no_old_cell(self, params, rng):
        parts = [rng.normal(at, 1 + at, (30 + at, 4)) for at in range(4)]
        batches = [np.repeat(["a", "b"], 15), *(np.full(30 + at, f"new{at}") for at in range(1, 4))]
        before, _ = add_frozen(parts[:2], batches[:2], **params)
        after, seconds = add_frozen(parts, batches, **params)
        np.testing.assert_array_equal(after[: len(before)], before)
        assert seconds > 0
        swapped, _ = add_frozen(
            [parts[at] for at in (0, 2, 1, 3)], [batches[at] for at in (0, 2, 1, 3)], **params
        )
        np.testing.assert_array_equal(swapped[30:62], after[61:93])

    @pytest.mark.parametrize("params", [{}, {"target": "population", "rounds": "auto"}])
    def test_refitted_arrivals_are_a_fit_to_all(self, params, rng):
        parts = [rng.normal(at, 1 + at, (30, 4)) for at in range(3)]
        batches = [np.full(30, name) for name in "abc"]
        found, _ = add_and_refit(parts, batches, **params)
        expected = BatchProx(**params).fit_transform(
            np.concatenate(parts), batch=np.repeat(list("abc"), 30)
        )
        np.testing.assert_allclose(found, expected, atol=1e-10)

    def test_the_wall_clock_adds_up_each_order_and_method(self):
        rows = []
        for order, upstream, method, seconds in (
            ("forward", "pca", "unrefined", [1.0, 2.0, 4.0]),
            ("reverse", "pca", "unrefined", [3.0, 3.0, 3.0]),
            ("forward", "pca", "batchprox_adam", [0.5, 0.25, 0.125]),
        ):
            for at, value in enumerate(seconds):
                key = Key("cumulative", "d", upstream, method, order, str(at + 1))._asdict()
                rows += [key | {"metric": "seconds", "value": value}]
                rows += [key | {"metric": "seconds_total", "value": value + 10}]
        table = wall_clock(pd.DataFrame(rows))
        assert table["Run"].tolist() == [1, 2, 4, 3, 3, 3, 0.5, 0.25, 0.125]
        assert table["Cum."].tolist() == [1, 3, 7, 3, 6, 9, 0.5, 0.75, 0.875]
        np.testing.assert_array_equal(table["Total"], table["Run"] + 10)
        theirs = table["paper's Run / Total / Cum."]
        assert theirs.iloc[1] == "0.24 / 236.19 / 0.41"
        assert theirs.iloc[6] == "3.35 / 14.93 / 3.35"
        assert "paper" not in " ".join(wall_clock(pd.DataFrame(rows), frozen=True))


@dataclass
class Calls:
    """Counts what a method does, and can fail."""

    n: int = 0
    fail: BaseException | None = None

    def __call__(self, Z, batch, seed):
        self.n += 1
        if self.fail is not None:
            raise self.fail
        return Z - Z.mean(0)


@pytest.fixture
def calls(monkeypatch):
    from scbatchprox.bench.baselines import METHODS

    found = Calls()
    monkeypatch.setitem(METHODS, "harmony", found)
    return found


@pytest.fixture(scope="module")
def path(cells, tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "small.h5ad"
    cells.adata.write_h5ad(path)
    return path


@pytest.fixture
def settings(path):
    return replace(
        EXPERIMENTS["classify"].settings,
        data=(str(path),),
        upstreams=("pca",),
        methods=("unrefined", "harmony", "batchprox"),
        controls=False,
        runs=2,
        n_components=5,
    )


CLASSIFY = EXPERIMENTS["classify"]


class TestRun:
    def test_rows_are_scores_of_what_they_say(self, cells, settings, calls, tmp_path):
        done = run(CLASSIFY, settings, tmp_path)
        assert calls.n == 2
        counts = cells.adata
        Z = PCAUpstream.fit(counts, n_components=5).embed(counts).Z
        refined = BatchProx().fit_transform(Z, batch=counts.obs["batch"])
        f1 = done.rows[
            (done.rows["method"] == "batchprox") & (done.rows["metric"] == "macro_f1_split")
        ]
        expected = [macro_f1(refined, counts.obs["cell_type"], seed=seed) for seed in (0, 1)]
        np.testing.assert_allclose(f1["value"], expected)
        again = pd.read_csv(
            tmp_path / "classify.csv", keep_default_na=False, na_values={"value": ""}
        )
        assert again.columns.tolist() == COLUMNS
        np.testing.assert_allclose(again["value"], done.rows["value"])

    def test_finished_rows_are_not_computed_again(self, settings, calls, tmp_path):
        first = run(CLASSIFY, settings, tmp_path)
        again = run(CLASSIFY, settings, tmp_path)
        assert calls.n == 2
        assert (first.reused, again.reused) == (0, 6)
        pd.testing.assert_frame_equal(first.rows, again.rows)
        more = run(CLASSIFY, replace(settings, runs=3), tmp_path)
        assert calls.n == 3
        assert (more.reused, more.rows["run"].max()) == (6, 2)

    @pytest.mark.parametrize("change", [{"n_components": 4}, {"seed": 5}])
    def test_another_configuration_takes_no_stale_row(self, settings, calls, tmp_path, change):
        run(CLASSIFY, settings, tmp_path)
        other = run(CLASSIFY, replace(settings, **change), tmp_path)
        assert other.reused == 0
        assert calls.n == 4
        assert run(CLASSIFY, settings, tmp_path).reused == 6  # and the old ones are still there

    def test_other_cells_under_the_same_name_take_no_stale_row(
        self, cells, settings, calls, tmp_path
    ):
        other = tmp_path / "small.h5ad"
        changed = cells.adata.copy()
        changed.X[0, 0] += 1
        changed.write_h5ad(other)
        run(CLASSIFY, settings, tmp_path / "out")
        assert run(CLASSIFY, replace(settings, data=(str(other),)), tmp_path / "out").reused == 0

    def test_a_failed_method_is_a_row_with_its_reason(self, settings, calls, tmp_path):
        calls.fail = RuntimeError("did not\n  converge")
        done = run(CLASSIFY, settings, tmp_path)
        failed = done.rows[done.rows["status"] == "failed"]
        assert failed["method"].tolist() == ["harmony"] * 2
        assert set(failed["reason"]) == {"RuntimeError: did not converge"}
        assert set(done.rows.loc[done.rows["status"] == "ok", "method"]) == {
            "unrefined",
            "batchprox",
        }
        page = (tmp_path / "classify.md").read_text()
        assert "2 rows failed (small, PCA, Harmony): RuntimeError: did not converge" in page
        calls.fail = None
        again = run(CLASSIFY, settings, tmp_path)
        assert again.reused == 4
        assert (again.rows["status"] == "ok").all()
        assert "failed" not in (tmp_path / "classify.md").read_text()

    def test_a_missing_package_is_a_row_that_names_the_extra(self, settings, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "harmonypy", None)
        done = run(CLASSIFY, settings, tmp_path)
        reasons = set(done.rows.loc[done.rows["method"] == "harmony", "reason"])
        assert len(reasons) == 1
        assert "pip install 'scbatchprox[bench]'" in reasons.pop()

    @pytest.mark.parametrize("how", [KeyboardInterrupt, SystemExit])
    def test_an_interrupted_run_is_usable_and_goes_on(self, settings, calls, tmp_path, how):
        calls.fail = how()
        with pytest.raises(KeyboardInterrupt):
            run(CLASSIFY, settings, tmp_path)
        rows = pd.read_csv(tmp_path / "classify.csv")
        assert set(rows["method"]) == {"unrefined"}
        assert "Incomplete: 4 rows" in (tmp_path / "classify.md").read_text()
        calls.fail = None
        done = run(CLASSIFY, settings, tmp_path)
        assert done.reused == 2
        assert "Incomplete" not in (tmp_path / "classify.md").read_text()

    def test_data_that_are_not_there_are_left_out_with_a_reason(self, settings, calls, tmp_path):
        both = replace(settings, data=("cell_lines", *settings.data))
        empty = tmp_path / "empty"
        empty.mkdir()
        done = run(CLASSIFY, both, tmp_path / "out", data_dir=empty)
        assert list(done.left_out) == ["cell_lines"]
        page = (tmp_path / "out" / "classify.md").read_text()
        assert "- cell_lines: Expected cell_lines.h5ad in the data folder, found none" in page
        assert str(tmp_path) not in page
        with pytest.raises(BadFile, match="cell_lines"):
            run(CLASSIFY, both, tmp_path / "out", data_dir=empty, insist=True)

    def test_the_same_name_twice_is_an_error(self, settings, calls, tmp_path):
        with pytest.raises(BadValue, match="different names, found 'small' twice"):
            run(CLASSIFY, replace(settings, data=settings.data * 2), tmp_path, insist=True)

    def test_progress_reaches_the_end(self, settings, calls, tmp_path):
        seen = []
        run(CLASSIFY, settings, tmp_path, progress=lambda *step: seen.append(step))
        assert seen[0] == ("classify small", 0, 6)
        assert seen[-1] == ("classify small", 6, 6)
        assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)

    def test_controls_bound_the_scores(self, settings, calls, tmp_path):
        done = run(CLASSIFY, replace(settings, controls=True, runs=1), tmp_path)
        f1 = done.rows[done.rows["metric"] == "macro_f1"].set_index(["upstream", "method"])["value"]
        assert f1["labels", "unrefined"] == 1.0
        assert f1["random", "unrefined"] < f1["pca", "unrefined"]

    def test_the_papers_number_stands_beside_ours(self, cells, settings, calls, tmp_path):
        cells.adata.write_h5ad(tmp_path / "pbmc4.h5ad")
        done = run(
            CLASSIFY, replace(settings, data=(str(tmp_path / "pbmc4.h5ad"),)), tmp_path / "out"
        )
        page = (tmp_path / "out" / "classify.md").read_text()
        (harmony,) = [
            line for line in page.splitlines() if line.startswith("| pbmc4 | PCA | Harmony")
        ]
        ours = done.rows[(done.rows["method"] == "harmony") & (done.rows["metric"] == "macro_f1")]
        assert f"| {beside(ours['value'].mean(), 0.0)} | 0.663 ± 0.004 |" in harmony

    def test_imbalance_finds_what_it_took_away(self, path, calls, tmp_path):
        experiment = EXPERIMENTS["imbalance"]
        settings = replace(
            experiment.settings,
            data=(str(path),), runs=1, methods=("harmony", "batchprox"), n_components=5, max_cases=3,
        )  # fmt: skip
        done = run(experiment, settings, tmp_path)
        # The most frequent pairs of a type and a batch, of types that two batches have.
        assert set(done.rows["step"]) == {"T in a", "B in a", "T in b"} or set(done.rows["step"]) == {
            "T in a", "B in a", "B in b",
        }  # fmt: skip
        assert set(done.rows["condition"]) == {"balanced", "downsample", "ablation"}
        assert len(done.rows.drop_duplicates(list(Key._fields))) == 3 * 3 * 3
        assert (done.rows["status"] == "ok").all()

    def test_ablation_runs_the_papers_variants(self, cells, path, tmp_path):
        experiment = EXPERIMENTS["ablation"]
        settings = replace(experiment.settings, data=(str(path),), runs=1, n_components=5)
        done = run(experiment, settings, tmp_path)
        counts = cells.adata
        Z = PCAUpstream.fit(counts, n_components=5).embed(counts).Z
        exact = done.rows[
            (done.rows["method"] == "batchprox") & (done.rows["metric"] == "ilisi_30")
        ]
        from scbatchprox.evaluate.metrics import ilisi

        for variant, params in {
            "full": {},
            "mean-only": {"target": MomentTarget(variance_matching=False)},
            "w/o FedProx": {"mu": 0.0},
            "w/o identity": {"lambda_id": 0.0},
        }.items():
            refined = BatchProx(**params).fit_transform(Z, batch=counts.obs["batch"])
            (found,) = exact.loc[exact["condition"] == variant, "value"]
            assert found == pytest.approx(ilisi(refined, counts.obs["batch"]))


@pytest.mark.bench
class TestWithScib:
    """Experiments whose scores need scib-metrics."""

    @pytest.fixture(autouse=True)
    def _library(self):
        pytest.importorskip("scib_metrics")

    def test_rounds_start_at_the_unrefined_embedding(self, path, tmp_path):
        experiment = EXPERIMENTS["rounds"]
        settings = replace(experiment.settings, data=(str(path),), grid=(0, 3), n_components=5)
        done = run(experiment, settings, tmp_path)
        assert (done.rows["status"] == "ok").all()
        wide = done.rows.pivot_table(
            index="metric", columns=["upstream", "method", "step"], values="value"
        )
        wide = wide.drop(index="seconds")
        pd.testing.assert_series_equal(
            wide["pca", "batchprox", "0"], wide["pca", "batchprox_adam", "0"], check_names=False
        )
        assert (
            wide.loc["ilisi_30", ("pca", "batchprox", "3")]
            > wide.loc["ilisi_30", ("pca", "batchprox", "0")]
        )
        assert ("pca", "batchprox", "fixed point") in wide

    @pytest.mark.parametrize("name", ["continual", "cumulative"])
    def test_both_settings_end_with_all_cells(self, name, path, calls, tmp_path):
        experiment = EXPERIMENTS[name]
        settings = replace(
            experiment.settings,
            data=(str(path),),
            upstreams=("pca",),
            n_components=5,
            controls=False,
        )
        done = run(experiment, settings, tmp_path)
        assert (done.rows["status"] == "ok").all()
        overall = done.rows[done.rows["metric"] == "overall"].set_index(
            ["condition", "method", "step"]
        )["value"]
        assert set(overall.index.get_level_values("step")) == {"1", "2"}
        if name == "cumulative":  # all cells embedded together: the order of arrival is forgotten
            for method in ("unrefined", "batchprox"):
                assert overall["forward", method, "2"] == pytest.approx(
                    overall["reverse", method, "2"]
                )
        else:
            assert overall["forward", "unrefined", "2"] != overall["reverse", "unrefined", "2"]

    def test_molecules_are_classified_by_size(self, tmp_path):
        pytest.importorskip("rdkit")
        chain = ["C" * n + end for n in range(1, 14) for end in ("", "O", "N", "F", "Cl", "S")]
        (tmp_path / "mine.csv").write_text("smiles\n" + "\n".join(chain) + "\n")
        experiment = EXPERIMENTS["molecules"]
        settings = replace(
            experiment.settings, data=(str(tmp_path / "mine.csv"),), runs=1, methods=("batchprox",)
        )
        done = run(experiment, settings, tmp_path / "out")
        assert (done.rows["status"] == "ok").all()
        assert set(done.rows["dataset"]) == {"mine"}
        f1 = done.rows[done.rows["metric"] == "macro_f1"].set_index(["upstream", "method"])["value"]
        assert f1["labels", "unrefined"] == 1.0
        assert f1["X_morgan", "unrefined"] > 0.5


def test_every_page_says_where_the_paper_has_no_support():
    """The claims that pages judge are judged by numbers: none is decided in the text."""
    rows = frame({("d", "unrefined"): [0.9, 0.9], ("d", "harmony"): [0.9, 0.9]}, "macro_f1_split")
    worse = frame(
        {("d", "batchprox"): [0.5, 0.5], ("d", "batchprox_adam"): [0.5, 0.5]}, "macro_f1_split"
    )
    better = worse.assign(value=0.99)
    for ours, word in ((worse, "does not support"), (better, "agrees with")):
        story = CLASSIFY.tell(pd.concat([rows, ours]), CLASSIFY.settings)
        judged = [finding for finding in story.findings if finding.startswith("This")]
        assert len(judged) == 2
        assert all(word in finding for finding in judged)


def test_the_journal_is_plain_text(settings, calls, tmp_path):
    run(CLASSIFY, settings, tmp_path)
    records = [
        json.loads(line) for line in (tmp_path / "work" / "classify.jsonl").read_text().splitlines()
    ]
    assert len(records) == 6
    assert {record["status"] for record in records} == {"ok"}


def test_the_documented_settings_exist(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "results" / "README.md").read_text()
    (tmp_path / "c.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    known = {name: experiment.settings for name, experiment in EXPERIMENTS.items()}
    for name, changes in read_config(tmp_path / "c.toml", known).items():
        assert changes["n_components"] == 30
        replace(known[name], **changes)
    listed = page.split("All of them:")[1]
    for name in (field.name for field in fields(Settings)):
        assert f"`{name}`" in listed
