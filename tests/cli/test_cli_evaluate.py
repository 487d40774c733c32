"""``scbatchprox evaluate``: the same numbers as the functions, as text, JSON and a table."""

import json
import subprocess
import sys

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import command_line
from scbatchprox import refine
from scbatchprox.errors import MissingExtra
from scbatchprox.evaluate import compare, ilisi, macro_f1, scib_scores, silhouette
from scbatchprox.evaluate.cells import ScoredCells, sample

pytestmark = pytest.mark.filterwarnings("ignore:.*zarr")
N = 150
REPS = ("X_pca", "X_pca_batchprox")


def needs_scib(test):
    """For tests of scores, which need scib-metrics; errors are found without it."""
    return pytest.mark.bench(pytest.mark.usefixtures("library")(test))


@pytest.fixture
def library():
    try:
        scib_scores.scib_library()
    except MissingExtra as error:
        pytest.skip(str(error))


@pytest.fixture
def adata(rng):
    cell_type, batch = rng.choice(["B", "NK", "T"], N), rng.choice(["s1", "s2"], N)
    Z = rng.normal(size=(N, 4))
    for labels in (cell_type, batch):
        for label in np.unique(labels):
            Z[labels == label] += 1.5 * rng.normal(size=4)
    cell_type = cell_type.astype(object)
    cell_type[:5] = "rare"
    cell_type[5:15] = None
    obs = pd.DataFrame(
        {"sample": batch, "site": "here", "type": pd.Categorical(cell_type)},
        index=[f"cell{i}" for i in range(N)],
    )
    adata = ad.AnnData(np.zeros((N, 1), np.float32), obs, obsm={"X_pca": Z})
    refine(adata, "sample", target="moment")
    return adata


@pytest.fixture
def path(adata, tmp_path):
    adata.write_h5ad(tmp_path / "cells.h5ad")
    return tmp_path / "cells.h5ad"


def run(*arguments, **options):
    return command_line.run("evaluate", *arguments, **options)


def scored(path, *more, reps="X_pca,X_pca_batchprox", **options):
    return run(
        path, "--batch-key", "sample", "--label-key", "type", "--reps", reps, *more, **options
    )


def expected(adata, rows, **options):
    obs = adata.obs.iloc[rows]
    embeddings = {rep: adata.obsm[rep][rows] for rep in REPS}
    return compare(embeddings, obs["sample"], obs["type"].astype(str), **options)


@needs_scib
def test_json_has_the_numbers_of_the_functions(path, adata):
    answer = json.loads(scored(path, "--json", "--runs", 2, "--seed", 3).stdout)
    labelled = np.flatnonzero(adata.obs["type"].notna())
    found = expected(adata, labelled, runs=2, seed=3)
    for rep in REPS:
        assert answer["scores"][rep] == pytest.approx(found.scores[rep].to_dict())
    assert answer["change"] == {REPS[1]: pytest.approx(found.change[REPS[1]].to_dict())}
    assert answer["baseline"] == "X_pca"
    assert (answer["n_cells"], answer["n_cells_in_file"], answer["n_unlabelled"]) == (140, 150, 10)
    assert answer["cell_types"] == ["B", "NK", "T", "rare"]
    rows = pd.DataFrame(answer["stability"][REPS[1]])
    np.testing.assert_allclose(rows["moved"], found.stability["moved"])
    assert set(rows["kind"]) == {"batch", "cell type", "rare type", "population"}
    # The model moved all 150 cells; the ten without a type are not counted here.
    assert rows["n"][:2].sum() == 140


@needs_scib
def test_text_has_scores_changes_and_movement(path, tmp_path):
    out = tmp_path / "scores.csv"
    printed = scored(path, "--out", out, "--runs", 2).stdout
    assert "140 cells, batches: 2, cell types: 4" in printed
    assert "10 cells without a type are left out" in printed
    table = pd.read_csv(out)
    overall = table[(table["rep"] == REPS[1]) & (table["score"] == "overall")].iloc[0]
    line = next(line.split() for line in printed.splitlines() if line.startswith("overall"))
    assert line[2] == f"{overall['value']:.3f}"
    assert float(line[3]) == pytest.approx(overall["change"], abs=6e-4)
    assert line[3][0] in "+-"
    rows = [line.split() for line in printed.splitlines()]
    assert [row[0] for row in rows if row[1:2] == ["batch"]] == ["s1", "s2"]
    assert [row[0] for row in rows if row[1:3] == ["rare", "type"]] == ["rare"]
    assert f"wrote {out}" in printed.replace("\n", "")


@needs_scib
def test_quiet_prints_nothing_and_writes(path, tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "scbatchprox", "evaluate", path, "--batch-key", "sample",
         "--label-key", "type", "--reps", "X_pca", "--out", tmp_path / "o.csv", "--quiet"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "")
    assert set(pd.read_csv(tmp_path / "o.csv")["rep"]) == {"X_pca"}


@needs_scib
def test_fast_reads_a_sample(path, adata, monkeypatch):
    monkeypatch.setattr("scbatchprox.evaluate.comparison.FAST_CELLS", 100)
    # Small chunks, so that the sample comes from many.
    monkeypatch.setattr("scbatchprox.cells.file.CHUNK_BYTES", 1024)
    answer = json.loads(scored(path, "--json", "--profile", "fast", "--runs", 1).stdout)
    labelled = np.flatnonzero(adata.obs["type"].notna())
    obs = adata.obs.iloc[labelled]
    cells = ScoredCells.of(adata.obsm["X_pca"][labelled], obs["sample"], obs["type"].astype(str))
    rows = labelled[sample(cells.batch, cells.cell_type, 100, seed=0)]
    found = expected(adata, rows, runs=1)
    assert answer["n_cells"] == rows.size < 110
    assert answer["scores"][REPS[1]] == pytest.approx(found.scores[REPS[1]].to_dict())
    assert "a sample of 140 cells" in scored(path, "--profile", "fast", "--runs", 1).stdout


@needs_scib
def test_unknown_scores_of_one_batch_are_null_or_a_dash(path):
    options = ("--batch-key", "site", "--label-key", "type", "--reps", "X_pca", "--runs", 1)
    answer = json.loads(run(path, *options, "--json").stdout)
    assert answer["scores"]["X_pca"]["overall"] is None
    assert answer["scores"]["X_pca"]["bio"] > 0
    lines = run(path, *options).stdout.splitlines()
    assert ["overall", "-"] in [line.split() for line in lines]


@needs_scib
def test_other_kinds_of_files(path, adata, tmp_path):
    """The same numbers from named arrays, and from columns of a table."""
    whole = json.loads(scored(path, "--json", "--runs", 1).stdout)["scores"]
    known = adata.obs["type"].notna().to_numpy()
    some = adata[known]
    np.savez(
        tmp_path / "cells.npz", before=some.obsm[REPS[0]], after=some.obsm[REPS[1]],
        sample=some.obs["sample"].to_numpy(str), type=some.obs["type"].to_numpy(str),
    )  # fmt: skip
    columns = {
        f"{name}{j}": adata.obsm[rep][:, j]
        for name, rep in zip("ab", REPS, strict=True)
        for j in range(4)
    }
    table = pd.DataFrame(columns).assign(
        **{key: adata.obs[key].to_numpy() for key in ("sample", "type")}
    )
    table.to_csv(tmp_path / "cells.csv", index=False)
    for name, reps in (("cells.npz", "before,after"), ("cells.csv", "a,b")):
        found = json.loads(scored(tmp_path / name, "--json", "--runs", 1, reps=reps).stdout)[
            "scores"
        ]
        for ours, theirs in zip(reps.split(","), REPS, strict=True):
            assert found[ours] == pytest.approx(whole[theirs])


class TestBadInput:
    def test_names_that_are_not_there(self, path):
        printed = scored(path, reps="X_pca,X_umap", code=2).output
        assert "found no 'X_umap'; available: 'X_pca', 'X_pca_batchprox'" in printed
        options = ("--batch-key", "sample", "--label-key", "kind", "--reps", "X_pca")
        printed = run(path, *options, code=2).output
        assert "Expected --label-key in obs, found no column 'kind'" in printed
        assert "'sample', 'site', 'type'" in printed

    def test_names_that_make_no_sense(self, path, tmp_path):
        assert "different embeddings" in scored(path, reps="X_pca,X_pca", code=2).output
        assert "names of embeddings" in scored(path, reps="X_pca,", code=2).output
        pd.DataFrame({"pca_1": [1.0], "pca_new_1": [1.0]}).to_csv(tmp_path / "t.csv", index=False)
        printed = scored(tmp_path / "t.csv", reps="pca_,pca_new_", code=2).output
        assert "not prefixes of each other, found 'pca_' and 'pca_new_'" in printed
        np.save(tmp_path / "z.npy", np.zeros((20, 2)))
        assert "embeddings by name, found z.npy" in scored(tmp_path / "z.npy", code=2).output

    def test_columns_of_different_lengths(self, tmp_path):
        where = tmp_path / "cells.npz"
        np.savez(where, X=np.zeros((20, 2)), sample=["a"] * 19, type=["T"] * 20)
        printed = scored(where, reps="X", code=2).output
        assert "per cell in cells.npz, found 19 batches and 20 types" in printed

    def test_places_that_cannot_be_written(self, path, tmp_path):
        before = path.read_bytes()
        for out in (tmp_path / "a.txt", tmp_path / "no" / "a.csv"):
            assert "place for a .csv as --out" in scored(path, "--out", out, code=2).output
        assert "different files" in scored(path, "--out", path, code=2).output
        assert path.read_bytes() == before

    def test_no_labels_at_all(self, adata, tmp_path):
        adata.obs["type"] = pd.Categorical([None] * N, categories=["a"])
        adata.write_h5ad(tmp_path / "c.h5ad")
        printed = scored(tmp_path / "c.h5ad", code=2).output
        assert "Expected cells with a type in 'type' of c.h5ad, found none" in printed


class TestMissingLibrary:
    @pytest.fixture(autouse=True)
    def nothing_installed(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "scib_metrics", None)

    def test_all_other_scores_are_there(self, path, adata):
        answer = json.loads(scored(path, "--json", "--runs", 1).stdout)
        means = ["bio", "batch", "overall"]
        assert answer["missing"] == ["clisi", "ilisi", "graph_connectivity", *means]
        labelled = adata[adata.obs["type"].notna().to_numpy()]
        Z, batch = labelled.obsm[REPS[1]], labelled.obs["sample"]
        types = labelled.obs["type"].astype(str)
        found = answer["scores"][REPS[1]]
        assert not set(found) & set(answer["missing"])
        assert found["macro_f1"] == macro_f1(Z, types)
        assert found["ilisi_30"] == pytest.approx(ilisi(Z, batch))
        assert found["silhouette"] == pytest.approx(silhouette(Z, types))
        for name in ("nmi", "ari", "isolated_f1", "asw_batch", "kbet", "pcr"):
            assert 0 < found[name] <= 1

    def test_the_text_names_the_extra(self, path, tmp_path):
        out = tmp_path / "scores.csv"
        printed = scored(path, "--runs", 1, "--out", out).stdout
        assert "overall need scib-metrics: pip install 'scbatchprox[scib]'." in printed
        assert "macro_f1" in set(pd.read_csv(out)["score"])


@needs_scib
def test_no_score_changes_without_the_library(path, monkeypatch):
    every = json.loads(scored(path, "--json", "--runs", 1).stdout)
    assert every["missing"] == []
    monkeypatch.setitem(sys.modules, "scib_metrics", None)
    some = json.loads(scored(path, "--json", "--runs", 1).stdout)
    assert set(every["scores"]["X_pca"]) == {*some["scores"]["X_pca"], *some["missing"]}
    for rep, scores in some["scores"].items():
        assert scores == {name: every["scores"][rep][name] for name in scores}


def test_headers_are_names_of_embeddings(path):
    lines = scored(path, "--runs", 1).stdout.splitlines()
    assert lines[1].split() == ["score", "X_pca", "X_pca_batchprox", "change"]
    moved = next(line for line in lines if line.startswith("name"))
    assert moved.split() == [
        "name",
        "kind",
        "cells",
        "moved",
        "per",
        "spread",
        "neighbours",
        "kept",
    ]
