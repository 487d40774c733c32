"""Runs of experiments: rows, pages, and runs that continue."""

import json
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from research.experiments import EXPERIMENTS, run
from research.experiments.journal import COLUMNS, Key
from research.experiments.page import with_sd
from scbatchprox import BatchProx, MomentTarget
from scbatchprox.errors import BadFile, BadValue
from scbatchprox.evaluate import macro_f1
from scbatchprox.upstream import PCAUpstream

CLASSIFY = EXPERIMENTS["classify"]


class TestRun:
    def test_rows_equal_direct_computations(self, cells, settings, calls, tmp_path):
        done = run(CLASSIFY, settings, tmp_path)
        assert calls.n == 2
        counts = cells.adata
        Z = PCAUpstream.fit(counts, n_components=5).embed(counts).Z
        refined = BatchProx(target="moment").fit_transform(Z, batch=counts.obs["batch"])
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
    def test_other_settings_reuse_no_row(self, settings, calls, tmp_path, change):
        run(CLASSIFY, settings, tmp_path)
        other = run(CLASSIFY, replace(settings, **change), tmp_path)
        assert other.reused == 0
        assert calls.n == 4
        assert run(CLASSIFY, settings, tmp_path).reused == 6  # the old rows are still there

    def test_other_cells_with_the_same_name_reuse_no_row(self, cells, settings, calls, tmp_path):
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
    def test_an_interrupted_run_can_be_continued(self, settings, calls, tmp_path, how):
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

    def test_missing_data_are_left_out_with_a_reason(self, settings, calls, tmp_path):
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

    def test_the_table_has_the_papers_number(self, cells, settings, calls, tmp_path):
        cells.adata.write_h5ad(tmp_path / "pbmc4.h5ad")
        done = run(
            CLASSIFY, replace(settings, data=(str(tmp_path / "pbmc4.h5ad"),)), tmp_path / "out"
        )
        page = (tmp_path / "out" / "classify.md").read_text()
        (harmony,) = [
            line for line in page.splitlines() if line.startswith("| pbmc4 | PCA | Harmony")
        ]
        ours = done.rows[(done.rows["method"] == "harmony") & (done.rows["metric"] == "macro_f1")]
        assert f"| {with_sd(ours['value'].mean(), 0.0)} | 0.663 ± 0.004 |" in harmony

    def test_imbalance_perturbs_the_most_frequent_pairs(self, path, calls, tmp_path):
        experiment = EXPERIMENTS["imbalance"]
        settings = replace(
            experiment.settings,
            data=(str(path),), runs=1, methods=("harmony", "batchprox"), n_components=5, max_cases=3,
        )  # fmt: skip
        done = run(experiment, settings, tmp_path)
        # The most frequent pairs of a type and a batch, for types in at least two batches.
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
        from scbatchprox.evaluate import ilisi

        for variant, params in {
            "full": {},
            "mean-only": {"target": MomentTarget(variance_matching=False)},
            "w/o FedProx": {"mu": 0.0},
            "w/o identity": {"lambda_id": 0.0},
        }.items():
            refined = BatchProx(**{"target": "moment"} | params).fit_transform(
                Z, batch=counts.obs["batch"]
            )
            (found,) = exact.loc[exact["condition"] == variant, "value"]
            assert found == pytest.approx(ilisi(refined, counts.obs["batch"]))


def test_the_journal_is_plain_text(settings, calls, tmp_path):
    run(CLASSIFY, settings, tmp_path)
    records = [
        json.loads(line) for line in (tmp_path / "work" / "classify.jsonl").read_text().splitlines()
    ]
    assert len(records) == 6
    assert {record["status"] for record in records} == {"ok"}


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
        if name == "cumulative":  # all cells are embedded together, so the order does not matter
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
