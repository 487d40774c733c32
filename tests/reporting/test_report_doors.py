"""Reports of AnnData and of files of all kinds, which are never changed."""

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import scbatchprox
from command_line import answer, run
from report_cells import make_cells
from scbatchprox import refine, report

OPTIONS = {"view": "pca", "target": "population"}


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def verdicts(html):
    """The rows of the plain table."""
    return re.findall(r'<tr><th scope="row">.*?</td></tr>', html)


@pytest.fixture
def plain():
    return make_cells(600, batches=["a", "b", "c"], types=["T", "B", "NK"])


def test_a_file_gives_what_an_anndata_gives_and_stays_as_it_is(plain, tmp_path):
    path = tmp_path / "cells.h5ad"
    plain.write_h5ad(path)
    before = digest(path)
    out = report(path, "batch", label_key="type", out=tmp_path / "report.html", **OPTIONS)
    assert out == tmp_path / "report.html"
    expected = report(plain, "batch", label_key="type", **OPTIONS)
    assert verdicts(out.read_text()) == verdicts(expected)
    assert len(verdicts(expected)) >= 3
    assert digest(path) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cells.h5ad", "report.html"]


@pytest.mark.parametrize("kind", ["zarr", "csv", "npz", "parquet"])
def test_other_kinds_of_files(plain, tmp_path, kind):
    path = tmp_path / f"cells.{kind}"
    Z, obs = plain.obsm["X_pca"], plain.obs[["batch", "type"]]
    if kind == "zarr":
        plain.write_zarr(path)
    elif kind == "npz":
        np.savez(path, X_pca=Z, **{name: obs[name].to_numpy(str) for name in obs})
    else:
        table = pd.DataFrame(Z, columns=[f"PC{i}" for i in range(6)]).join(
            obs.reset_index(drop=True)
        )
        table.to_csv(path, index=False) if kind == "csv" else table.to_parquet(path)
    options = {"label_key": "type", **OPTIONS}
    found = report(path, "batch", **options)
    assert verdicts(found) == verdicts(report(plain, "batch", **options))


def test_labels_that_are_numbers_are_no_coordinates_of_a_table(plain, tmp_path):
    path = tmp_path / "cells.csv"
    table = pd.DataFrame(plain.obsm["X_pca"], columns=[f"PC{i}" for i in range(6)])
    table = table.assign(batch=plain.obs["batch"].to_numpy(), leiden=np.arange(600) % 4)
    table.to_csv(path, index=False)
    assert "6 coordinates" in report(path, "batch", label_key="leiden", **OPTIONS)


def test_labels_in_a_second_file(plain, tmp_path):
    np.save(tmp_path / "cells.npy", plain.obsm["X_pca"])
    plain.obs.to_csv(tmp_path / "labels.csv", index=False)
    options = {"label_key": "type", "labels": tmp_path / "labels.csv", **OPTIONS}
    html = report(tmp_path / "cells.npy", "batch", **options)
    assert verdicts(html) == verdicts(report(plain, "batch", label_key="type", **OPTIONS))


@pytest.mark.parametrize("target", ["moment", "population"])
@pytest.mark.parametrize("kind", ["memory", "h5ad", "zarr"])
def test_a_refined_embedding_with_its_record_is_shown(plain, tmp_path, kind, target):
    refine(plain, "batch", target=target, strength=0.5, diagnose=True)
    expected = pd.DataFrame(plain.uns["X_pca_batchprox"]["diagnosis"])
    source = plain
    if kind != "memory":
        source = tmp_path / f"cells.{kind}"
        plain.write_h5ad(source) if kind == "h5ad" else plain.write_zarr(source)
    html = report(source, "batch", view="pca")
    assert "was in the data, with a record" in html
    assert "<dt>strength</dt><dd>0.5</dd>" in html
    shown = sorted(
        re.findall(r'class="number">(\d\.\d\d)</td>', row)[0] for row in verdicts(html)[:3]
    )
    assert shown == sorted(f"{moved:.2f}" for moved in expected["moved"])


def test_the_stored_embedding_itself_is_drawn(plain):
    from scbatchprox.reporting.contents import gather
    from scbatchprox.reporting.source import opened

    refine(plain, "batch", target="population")
    plain.obsm["X_pca_batchprox"] = plain.obsm["X_pca"] + 1.0
    with opened(plain, "batch", [], None, None, None, None, lambda n: None) as source:
        drawn = gather(source, "batch", None, [], {}, view="pca").drawn
    shift = drawn.after - drawn.before
    np.testing.assert_allclose(shift, np.broadcast_to(shift[0], shift.shape), atol=1e-5)


def test_a_record_without_a_diagnosis_is_diagnosed(plain):
    refine(plain, "batch", target="moment", diagnose=False)
    html = report(plain, "batch", view="pca")
    assert "was in the data, with a record" in html
    assert len(verdicts(html)) >= 3


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("row_batch", ["a", "b", "z"], "found a damaged one"),
        ("scale", np.ones((3, 2)), "found a damaged one"),
        ("scale", "text", "found a damaged one"),
        ("shift", np.full((3, 6), np.nan), "found a damaged one"),
        ("batches", 5, None),
        ("params", "text", None),
    ],
)
def test_damaged_records(plain, name, value, message):
    refine(plain, "batch", target="moment", diagnose=False)
    del plain.uns["X_pca_batchprox"]["model"]  # as of version 0.2.0
    plain.uns["X_pca_batchprox"][name] = value
    if message is None:
        assert "was not written anywhere" in report(plain, "batch", view="pca")
    else:
        with pytest.raises(scbatchprox.InputError, match=message):
            report(plain, "batch", view="pca")


@pytest.mark.parametrize("name", ["scale", "shift", "model"])
def test_damaged_records_with_a_model(plain, name):
    refine(plain, "batch", target="moment", diagnose=False)
    plain.uns["X_pca_batchprox"][name] = np.full((3, 6), np.nan)
    with pytest.raises(scbatchprox.InputError, match="found a damaged one"):
        report(plain, "batch", view="pca")


@pytest.mark.parametrize("change", ["params", "no record", "other key", "other batches"])
def test_why_a_refined_embedding_is_not_shown(plain, change):
    refine(plain, "batch" if change != "other key" else "sex", target="moment", diagnose=False)
    options = {"view": "pca"}
    if change == "params":
        options["target"] = "population"
    elif change == "no record":
        plain.uns["X_pca_batchprox"] = {"model": "m.safetensors", "inverse": False}
    elif change == "other batches":
        plain = plain[plain.obs["batch"] != "a"].copy()
    html = report(plain, "batch", **options)
    reason = {
        "params": "but parameters were given",
        "no record": "without a record of the adapter",
        "other key": "made for other batches (sex)",
        "other batches": "made when there were other batches",
    }[change]
    assert reason in html
    assert "was not written anywhere" in html


def test_cells_without_a_type_are_named(plain):
    plain.obs["type"] = plain.obs["type"].astype("category")
    plain.obs.loc[plain.obs_names[:40], "type"] = np.nan
    html = report(plain, "batch", label_key="type", **OPTIONS)
    assert "no label" in html
    assert "On 560 of the drawn cells" in html


def test_stored_umaps_are_drawn(plain, rng):
    plain.obsm["X_umap"] = rng.normal(size=(600, 2))
    plain.obsm["X_umap_batchprox"] = rng.normal(size=(600, 2))
    assert "two UMAPs from the data" in report(plain, "batch", target="population")


def test_one_batch_and_few_cells():
    cells = make_cells(12, batches=["only"], types=["T", "B"])
    html = report(cells, "batch", label_key="type", **OPTIONS)
    assert "There is only one batch" in html


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_key": "kind"}, "found no column 'kind'"),
        ({"keep": ["kind"]}, "found no column 'kind'"),
        ({"use_rep": "X_tsne"}, "found no 'X_tsne'; available: 'X_pca'"),
        ({"out": "report.pdf"}, "Expected a report that ends in .html, found 'report.pdf'"),
        ({"out": "nowhere/report.html"}, "Expected a folder for the report"),
        ({"view": "tsne"}, "view to be one of"),
        ({"labels": "labels.csv"}, "only for a file, found an AnnData"),
        ({"target": "mean"}, "target to be one of"),
    ],
)
def test_errors_come_before_the_work(plain, options, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(scbatchprox.InputError, match=message):
        report(plain, "batch", **options)
    assert not list(tmp_path.iterdir())


def test_arrays_are_refused(plain):
    with pytest.raises(TypeError, match="Expected an AnnData or the path of a file, found ndarray"):
        report(plain.obsm["X_pca"], "batch")


def test_the_command_writes_a_report(plain, tmp_path):
    path, out = tmp_path / "cells.h5ad", tmp_path / "report.html"
    plain.write_h5ad(path)
    words = ["report", path, "--batch-key", "batch", "--label-key", "type", "--keep", "condition"]
    words += ["--target", "population", "--view", "pca"]
    facts = answer(*words, "-o", out)
    assert facts == {"written": str(out), "bytes": out.stat().st_size}
    assert "Labels to keep" in out.read_text()
    assert str(tmp_path) not in out.read_text()
    error = run(*words, "-o", path, code=2).stderr
    assert "Expected different files for IN and --out" in error
    error = run(*[*words[:4], "--label-key", "kind"], "-o", out, code=2).stderr
    assert "Expected columns of labels in obs, found no column 'kind'" in error


@pytest.mark.slow
def test_a_missing_bokeh_is_named():
    script = (
        "import sys; sys.modules['bokeh'] = None\n"
        "from report_cells import make_cells\n"
        "import scbatchprox\n"
        "try:\n    scbatchprox.report(make_cells(), 'batch')\n"
        "except ImportError as error:\n    print(error)\n"
    )
    folder = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=folder
    )
    expected = (
        "Expected bokeh to make a report with, found none: pip install 'scbatchprox[report]'.\n"
    )
    assert done.stdout == expected


@pytest.mark.slow
def test_the_name_is_a_function_whatever_was_imported_before():
    script = "import scbatchprox.reporting.report, scbatchprox; assert callable(scbatchprox.report)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_lazy_cells(plain, tmp_path):
    path = tmp_path / "cells.h5ad"
    plain.write_h5ad(path)
    lazy = ad.experimental.read_lazy(path)
    found = report(lazy, "batch", label_key="type", **OPTIONS)
    assert verdicts(found) == verdicts(report(plain, "batch", label_key="type", **OPTIONS))


def distances(page):
    """The limit of the colours of distances, in spreads of a batch."""
    return float(re.search(r"([\d.]+) of the batch’s spread, or more", page)[1])


def batch_rows(page):
    """The rows of the plain table of batches, without their titles."""
    plain = page[page.index('<details class="plain">') : page.index("</details>")]
    return [
        re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", row)
        for row in re.findall(r"<tr>(.*?)</tr>", plain, re.DOTALL)[1:]
    ]


class TestRefinedBefore:
    """Reports of cells that ``refine`` wrote to tell the same as reports that refine for themselves."""

    @pytest.mark.parametrize("target", ["population", "moment"])
    def test_equal_to_a_new_refinement(self, target):
        adata = make_cells()
        new = report(adata, "batch", keep="sex", view="pca", target=target)
        refine(adata, "batch", target=target, diagnose=True)
        stored = report(adata, "batch", keep="sex", view="pca")
        assert "was in the data" in stored
        assert batch_rows(stored) == batch_rows(new)
        assert distances(stored) == distances(new)

    def test_distances_are_those_of_the_cells(self):
        adata = make_cells()
        refine(adata, "batch")
        before, after = (np.asarray(adata.obsm[k], float) for k in ("X_pca", "X_pca_batchprox"))
        far = np.linalg.norm(after - before, axis=1)
        for batch in adata.obs["batch"].unique():
            own = adata.obs["batch"] == batch
            far[own] /= np.sqrt(before[own].var(axis=0).sum())
        shown = distances(report(adata, "batch", view="pca"))
        assert shown == pytest.approx(np.quantile(far, 0.98), abs=0.006)

    def test_without_a_diagnosis(self):
        adata = make_cells()
        refine(adata, "batch", diagnose=False)
        assert len(batch_rows(report(adata, "batch", keep="sex", view="pca"))) == 3

    def test_some_cells_are_gone(self):
        adata = make_cells()
        refine(adata, "batch")
        some = adata[:400].copy()
        page = report(some, "batch", view="pca")
        assert "was in the data" in page
        cells = [int(row[3]) for row in batch_rows(page)]
        assert sorted(cells) == sorted(some.obs["batch"].value_counts())

    @pytest.mark.filterwarnings("ignore:To keep")
    def test_a_column_to_keep_has_changed(self):
        adata = make_cells()
        refine(adata, "batch", keep="condition")
        assert "Batches tell 100% of condition" in report(
            adata, "batch", keep="condition", view="pca"
        )
        adata.obs["condition"] = adata.obs["sex"]
        page = report(adata, "batch", keep="condition", view="pca")
        assert "Batches tell 0% of condition" in page
        assert "cannot be told apart" not in page

    def test_the_record_tells_what_was_refined(self):
        adata = make_cells()
        adata.obsm["X_scVI"] = 5 * adata.obsm["X_pca"]
        refine(adata, "batch", use_rep="X_scVI", key_added="X_ref")
        page = report(adata, "batch", key_added="X_ref", view="pca")
        assert "Before: X_scVI" in page
        other = report(adata, "batch", key_added="X_ref", use_rep="X_pca", view="pca")
        assert "that was made from &#39;X_scVI&#39;, not from &#39;X_pca&#39;" in other
        del adata.obsm["X_pca"]
        assert "After: X_ref" in report(adata, "batch", view="pca")


def test_populations_and_adam():
    adata = make_cells()
    page = report(adata, "batch", population_key="type", view="pca")
    assert "population_key=&#39;type&#39;" in page
    refine(adata, "batch", population_key="type")
    assert batch_rows(report(adata, "batch", view="pca")) == batch_rows(page)
    assert "adam" in report(adata, "batch", target="moment", solver="adam", view="pca")


def test_too_few_cells_for_a_umap():
    page = report(make_cells(12, batches=["one"]), "batch")
    assert "principal axes" in page
    assert "There is only one batch" in page


def test_a_misspelt_option():
    with pytest.raises(TypeError, match=r"found 'tagret'; available: .*view.*target"):
        report(make_cells(), "batch", tagret="moment")
