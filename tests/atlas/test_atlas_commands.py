"""``scbatchprox atlas`` on files."""

import os
import subprocess
import sys

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest

import command_line
from atlas_cells import assert_same_model, content, fitted, of
from scbatchprox import Atlas, BatchProx
from scbatchprox.atlas import core


def run(*arguments, **options):
    return command_line.run("atlas", *arguments, **options)


def answer(*arguments, **options):
    return command_line.answer("atlas", *arguments, **options)


class TestCommands:
    def test_five_arrivals_a_removal_and_a_rollback(self, files, c):
        at = files / "lung"
        assert (
            "created"
            in run(
                "init", at, "--upstream", "PCA of March", "--rounds", 2, "--target", "moment"
            ).stdout
        )
        assert (
            "is first: the atlas has no batches"
            in run("add", at, files / "a.h5ad", "--batch-key", "donor").stdout
        )
        run("add", at, files / "b.h5ad", "--policy", "refit")  # with the key of the latest arrival
        for name in "cde":
            assert (
                "is close"
                in run("add", at, files / f"{name}.h5ad", "--upstream", "PCA of March").stdout
            )
        model = fitted(c, "a", "b", rounds=2)
        for name in "cde":
            Z, batch = of(c, name)
            model.partial_fit(Z, batch=batch)
        found = Atlas.open(at).model
        np.testing.assert_allclose(found.scale_, model.scale_, rtol=1e-10)
        np.testing.assert_allclose(found.shift_, model.shift_, rtol=1e-9, atol=1e-12)

        assert "forgot c: version 7" in run("forget", at, "c").stdout
        assert_same_model(Atlas.open(at).model, Atlas.open(at).model_at(6).forget("c"))
        shown = run("diff", at, 6, 7).stdout
        assert "removed: c (25)" in shown
        assert "batches in both versions: 4, of which 4 are identical" in shown
        assert answer("diff", at, 6, 7)["rows"][0]["batch"] == "a"

        assert "version 8 is the same as version 6" in run("rollback", at, 6).stdout
        assert_same_model(Atlas.open(at).model, Atlas.open(at).model_at(6))
        shown = run("log", at).stdout
        for words in (
            "init",
            "add (frozen)",
            "add (refit)",
            "forget (frozen)",
            "rollback to 6",
            "c (25)",
        ):
            assert words in shown
        log = answer("log", at)
        assert log["version"] == 8
        assert log["upstream"] == "PCA of March"
        assert log["versions"][7]["sha256"] == log["versions"][5]["sha256"]
        assert log["versions"][1]["source"] == {
            "name": "a.h5ad", "batch_key": ["donor"], "use_rep": "X_pca",
        }  # fmt: skip

        before = (files / "c.h5ad").read_bytes()
        run("apply", at, files / "c.h5ad", "--out", files / "out.h5ad")
        assert (files / "c.h5ad").read_bytes() == before
        refined = ad.read_h5ad(files / "out.h5ad")
        Z, batch = of(c, "c")
        np.testing.assert_array_equal(
            refined.obsm["X_pca_batchprox"], found.transform(Z, batch=batch)
        )
        assert refined.uns["X_pca_batchprox"]["atlas_version"] == 8
        run("apply", at, files / "c.h5ad", "--in-place")
        assert "X_pca_batchprox" in ad.read_h5ad(files / "c.h5ad").obsm

    def test_dry_run_prints_a_judgement_and_changes_nothing(self, files, c):
        at = files / "lung"
        run("init", at)
        run("add", at, files / "a.h5ad", "--batch-key", "donor")
        before = content(at)
        shown = run("add", at, files / "b.h5ad", "--dry-run").stdout
        assert "b (40 cells) is close: its mean lies" in shown
        assert "the adapter moves it by" in shown
        assert "are far from all batches of the atlas (score above 2.5)" in shown
        assert "nothing was added" in shown
        facts = answer("add", at, files / "b.h5ad", "--dry-run")
        assert (facts["added"], facts["version"]) == (False, 2)
        assert facts["judgement"][0]["level"] == "close"
        assert content(at) == before
        # The first batches have nothing to be compared with.
        run("init", files / "new")
        assert (
            "is first"
            in run(
                "add", files / "new", files / "a.h5ad", "--batch-key", "donor", "--dry-run"
            ).stdout
        )

    @pytest.mark.parametrize("target", ["moment", "population"])
    def test_advice_before_anything_is_added(self, target, tmp_path, rng):
        """Three batches with known advice: the same types, partly new types, and no common type."""
        # No two pairs of types have the same way between them: that would be evidence of a shift.
        types = 12.0 * np.array([[0, 0, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0], [1, 1, 1, -1]])
        make = {"first": [0, 1, 2], "same": [0, 1, 2], "partly": [2, 3, 3], "other": [3]}
        for name, kinds in make.items():
            Z = np.concatenate([types[k] + rng.normal(size=(80, 4)) for k in kinds])
            obs = pd.DataFrame({"donor": name}, index=[f"{name}{i}" for i in range(len(Z))])
            ad.AnnData(obs=obs, obsm={"X_pca": Z}).write_h5ad(tmp_path / f"{name}.h5ad")
        at = tmp_path / "atlas"
        run("init", at, "--target", target)
        run("add", at, tmp_path / "first.h5ad", "--batch-key", "donor")
        before = content(at)
        shown, advice = {}, {}
        for name in ("same", "partly", "other"):
            shown[name] = run("add", at, tmp_path / f"{name}.h5ad", "--dry-run").stdout
            (row,) = answer("add", at, tmp_path / f"{name}.h5ad", "--dry-run")["judgement"]
            advice[name] = row["advice"]
            assert f"Advice: {row['advice']}." in " ".join(shown[name].split())
            assert ("matched" in row) == (target == "population")
            share = "of its cells meet the atlas."
            assert (share in " ".join(shown[name].split())) == (target == "population")
        assert content(at) == before
        if target == "population":
            assert advice["same"].startswith(("no effect found", "effect removed"))
            # There is no effect, and a type that is only there is no reason to find one.
            assert advice["partly"].startswith(("no effect found", "nothing to compare with"))
            assert advice["other"].startswith("nothing to compare with: ")
        else:
            assert advice["same"] == "effect removed"
            assert advice["other"].startswith(("weak evidence: ", "nothing to compare with: "))

    def test_scores_in_a_table_and_in_obs(self, files, c, monkeypatch):
        monkeypatch.setattr("scbatchprox.cells.file.CHUNK_BYTES", 4 * 8 * 7)  # several chunks
        at = files / "lung"
        run("init", at)
        run("add", at, files / "a.h5ad", "--batch-key", "donor")
        adata = ad.read_h5ad(files / "b.h5ad")
        adata.obsm["X_pca"][3] = 50.0
        adata.write_h5ad(files / "b.h5ad")
        expected = Atlas.open(at).cell_scores(adata.obsm["X_pca"])
        for _ in range(2):  # the second run replaces the columns
            shown = run(
                "add", at, files / "b.h5ad", "--dry-run", "--mark", "--scores", files / "s.csv"
            )
            assert "1 cells (2.5%) are far" in shown.stdout
        table = pd.read_csv(files / "s.csv", index_col="row")
        marked = ad.read_h5ad(files / "b.h5ad").obs
        assert list(marked.columns) == ["donor", "age", "atlas_distance", "atlas_far"]
        for found in (table, marked):
            np.testing.assert_allclose(found["atlas_distance"], expected, rtol=1e-12)
            assert found["atlas_far"].tolist() == [i == 3 for i in range(40)]
        assert Atlas.open(at).version == 2
        np.testing.assert_array_equal(
            ad.read_h5ad(files / "b.h5ad").obsm["X_pca"], adata.obsm["X_pca"]
        )

    @pytest.mark.parametrize("more", [["--mark"], ["--scores", "s.csv"], []])
    def test_cells_that_are_replaced_meanwhile(self, files, c, monkeypatch, more):
        """Scores, marks and moments of other cells are not written."""
        monkeypatch.chdir(files)
        run("init", "lung")
        run("add", "lung", "a.h5ad", "--batch-key", "donor")
        before, other = content(files / "lung"), (files / "c.h5ad").read_bytes()
        place, name = (core, "far_cells") if more else (BatchProx, "describe")
        real = getattr(place, name)

        def replacing(*arguments):
            found = real(*arguments)
            (files / "new.h5ad").write_bytes(other)
            os.replace(files / "new.h5ad", files / "b.h5ad")
            return found

        monkeypatch.setattr(place, name, replacing)
        done = run("add", "lung", "b.h5ad", *more, code=2)
        assert "found that it was changed since" in done.stderr
        assert (files / "b.h5ad").read_bytes() == other
        assert not (files / "s.csv").exists()
        assert content(files / "lung") == before

    def test_cells_that_are_replaced_before_they_are_marked(self, files, c, monkeypatch):
        monkeypatch.chdir(files)
        run("init", "lung")
        run("add", "lung", "a.h5ad", "--batch-key", "donor")
        other, real = (files / "c.h5ad").read_bytes(), core.write_scores

        def late(*arguments):
            (files / "new.h5ad").write_bytes(other)
            os.replace(files / "new.h5ad", files / "b.h5ad")
            real(*arguments)

        monkeypatch.setattr(core, "write_scores", late)
        done = run("add", "lung", "b.h5ad", "--mark", code=2)
        assert "found that it was changed since" in done.stderr
        assert (files / "b.h5ad").read_bytes() == other

    def test_names_of_columns_that_are_paths(self, files, c):
        run("init", files / "lung")
        run("add", files / "lung", files / "a.h5ad", "--batch-key", "donor")
        with h5py.File(files / "b.h5ad", "r+") as file:
            file["obs"].attrs["column-order"] = ["donor", "../../x"]
        before = (files / "b.h5ad").read_bytes()
        done = run("add", files / "lung", files / "b.h5ad", "--dry-run", "--mark", code=2)
        assert "'../../x', a path to another place (in b.h5ad)" in done.stderr
        assert (files / "b.h5ad").read_bytes() == before

    def test_refused_unless_forced(self, files, c):
        at = files / "lung"
        run("init", at)
        run("add", at, files / "a.h5ad", "--batch-key", "donor")
        adata = ad.read_h5ad(files / "b.h5ad")
        adata.obsm["X_pca"] += 100
        adata.write_h5ad(files / "b.h5ad")
        before = content(at)
        done = run("add", at, files / "b.h5ad", "--mark", code=2)
        assert "found 'b' very far: its mean lies" in done.stderr
        assert done.stderr.count("\n") == 1
        assert content(at) == before
        assert ad.read_h5ad(files / "b.h5ad").obs["atlas_far"].all()
        run("add", at, files / "b.h5ad", "--force")
        assert "add (frozen, forced)" in run("log", at).stdout

    def test_numbers_as_batches(self, tmp_path, rng):
        at = tmp_path / "lung"
        run("init", at)
        for k in (1, 2, 3):
            np.savez(tmp_path / f"{k}.npz", Z=rng.normal(size=(20, 3)), plate=np.full(20, k))
            # 20 cells of one type have no geometry to compare.
            run("add", at, tmp_path / f"{k}.npz", "--batch-key", "plate", "--force")
        run("forget", at, "2", "--policy", "refit")
        assert answer("log", at)["batches"] == [1, 3]

    def test_defaults_are_those_of_the_latest_file_of_the_same_kind(self, files, c):
        at = files / "narrow"
        run("init", at, "--target", "moment")
        run("add", at, files / "a.h5ad", "--batch-key", "donor", "--use-rep", "narrow")
        run("add", at, files / "b.h5ad")
        Z, batch = of(c, "c")
        pd.DataFrame({"PC1": Z[:, 0], "PC2": Z[:, 1], "donor": batch}).to_csv(
            files / "c.csv", index=False
        )
        run("add", at, files / "c.csv")
        np.save(files / "d.npy", of(c, "d")[0][:, :2])
        pd.DataFrame({"donor": of(c, "d")[1]}).to_csv(files / "d.csv", index=False)
        run("add", at, files / "d.npy", "--labels", files / "d.csv")
        assert answer("log", at)["batches"] == ["a", "b", "c", "d"]

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["add", "lung", "b.h5ad", "--use-rep", "narrow"], "as the atlas has, found 2 in b.h5ad"),
            (["add", "lung", "a.h5ad"], "found 'a' in the atlas already"),
            (["add", "lung", "b.h5ad", "--upstream", "scVI"], "'PCA', found 'scVI'"),
            (["add", "lung", "b.h5ad", "--batch-key", "no"], "no column 'no'; available: 'donor', 'age'"),
            (["add", "lung", "b.h5ad", "--scores", "x.txt"], "Expected a .csv for the scores"),
            (["add", "lung", "b.h5ad", "--scores", "no/x.csv"], "Expected a folder for the scores"),
            (["add", "lung", "t.csv", "--scores", "t.csv"], "different files for the scores and the input"),
            (["add", "lung", "t.csv", "--mark"], "Expected an .h5ad file to mark cells in"),
            (["add", "lung", "none.h5ad"], "found none at none.h5ad"),
            (["add", "lung", "empty.h5ad"], "Expected at least one cell"),
            (["add", "a.h5ad", "b.h5ad"], "(a folder with atlas.json), found none at a.h5ad"),
            (["add", "fresh", "a.h5ad"], "Expected --batch-key, found none"),
            (["add", "fresh", "a.h5ad", "--batch-key", "donor", "--mark"], "found one without any"),
            (["forget", "lung", "z"], "Expected a batch of the atlas, found 'z'; available: 'a'"),
            (["apply", "lung", "b.h5ad", "--in-place"], "found unseen 'b'; available: 'a'"),
            (["apply", "lung", "a.h5ad"], "Expected either --out or --in-place"),
            (["apply", "fresh", "a.h5ad", "--in-place", "--batch-key", "donor"], "found one without any"),
            (["log", "."], "Expected an atlas"),
            (["diff", "lung", "1", "7"], "found 7; available: 1 to 2"),
            (["rollback", "lung", "7"], "found 7; available: 1 to 2"),
            (["init", "lung"], "new or empty folder"),
            (["init", "x", "--mu", "-1"], "Expected --mu"),
        ],
    )  # fmt: skip
    def test_wrong_use_is_one_sentence(self, files, arguments, sentence, monkeypatch):
        monkeypatch.chdir(files)
        ad.read_h5ad("b.h5ad")[:0].copy().write_h5ad("empty.h5ad")
        (files / "t.csv").write_text("donor,PC1\nx,1.0\n")
        run("init", "lung", "--upstream", "PCA")
        run("init", "fresh")
        run("add", "lung", "a.h5ad", "--batch-key", "donor")
        before = content(files)
        done = run(*arguments, code=2)
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
        assert content(files) == before

    @pytest.mark.slow
    def test_real_process_and_lock(self, files):
        at = files / "lung"
        command = [sys.executable, "-m", "scbatchprox", "atlas"]
        assert subprocess.run([*command, "init", at, "--quiet"]).returncode == 0
        with Atlas.open(at)._writing():
            done = subprocess.run([*command, "add", at, files / "a.h5ad", "--batch-key", "donor"],
                                  capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 2
        assert done.stderr.startswith("Error: Expected the atlas")
        assert done.stderr.count("\n") == 1

    def test_every_command_has_an_example(self):
        for name in ("init", "add", "forget", "apply", "log", "diff", "rollback"):
            shown = " ".join(run(name, "--help").stdout.split())
            assert f"Example: scbatchprox atlas {name}" in shown
