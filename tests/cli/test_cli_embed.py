"""``scbatchprox embed``: from counts to an atlas, on the command line."""

import anndata as ad
import numpy as np
import pytest

from command_line import answer, run
from scbatchprox import Atlas
from scbatchprox.demo import Composition, simulate
from scbatchprox.upstream import PCAUpstream, load

TABLE = Composition("t", ("a", "b", "c"), ("T", "B", "NK"), np.full((3, 3), 40))


@pytest.fixture
def cells():
    cells = simulate(TABLE, n_genes=60, n_components=3, seed=4)
    del cells.obsm["X_pca"]
    cells.obs["batch"] = cells.obs["batch"].astype(str)
    return cells


@pytest.fixture
def files(cells, tmp_path, monkeypatch):
    """One file of counts per batch, the last without ten of the genes; the folder is the current one."""
    for name in "abc":
        part = cells[cells.obs["batch"] == name, 10 * (name == "c") :]
        part.copy().write_h5ad(tmp_path / f"{name}.h5ad")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_continual(files, cells):
    """A frozen PCA of the first two batches, and a third batch that arrives later."""
    shown = run("embed", "fit", "a.h5ad", "b.h5ad", "--out", "u.safetensors", "--coordinates", 5)
    assert "pca of 240 cells: 60 of 60 genes, 5 coordinates, fingerprint pca:" in shown.stdout
    run("atlas", "init", "lung", "--upstream", "u.safetensors")
    for name in "abc":
        shown = run("embed", "apply", f"{name}.h5ad", "--upstream", "u.safetensors", "--in-place")
        run("atlas", "add", "lung", f"{name}.h5ad", "--batch-key", "batch", "--force")
    assert "50 of the reference's 60 genes were found; the other 10" in shown.stdout

    parts = [cells[cells.obs["batch"] == name] for name in "abc"]
    upstream = PCAUpstream.fit(ad.concat(parts[:2]), n_components=5)
    assert load("u.safetensors").fingerprint == upstream.fingerprint == Atlas.open("lung").upstream
    for name, part in zip("abc", parts, strict=True):
        expected = upstream.embed(part[:, 10:] if name == "c" else part).Z
        np.testing.assert_array_equal(ad.read_h5ad(f"{name}.h5ad").obsm["X_pca"], expected)
    assert Atlas.open("lung").model.batches_.tolist() == ["a", "b", "c"]


def test_cumulative(files):
    """All batches are embedded again with another upstream, which the old atlas refuses."""
    run("embed", "fit", "a.h5ad", "--out", "1.safetensors", "--coordinates", 5)
    run("embed", "fit", "a.h5ad", "b.h5ad", "--out", "2.safetensors", "--coordinates", 5)
    run("atlas", "init", "first")
    run("embed", "apply", "a.h5ad", "--upstream", "1.safetensors", "--in-place")
    run("atlas", "add", "first", "a.h5ad", "--batch-key", "batch")
    for name in "ab":
        run("embed", "apply", f"{name}.h5ad", "--upstream", "2.safetensors", "--in-place")
    refused = run("atlas", "add", "first", "b.h5ad", code=2).stderr
    assert refused.startswith("Error: Expected the upstream of the atlas, 'pca:")
    run("atlas", "init", "second")
    for name in "ab":
        run("atlas", "add", "second", f"{name}.h5ad", "--batch-key", "batch", "--force")


def test_json(files):
    facts = answer("embed", "fit", "a.h5ad", "c.h5ad", "--out", "u.safetensors", "--coordinates", 4)
    assert (facts["method"], facts["coordinates"], facts["n_cells"]) == ("pca", 4, 240)
    assert (facts["n_genes"], facts["n_genes_used"]) == (50, 50)
    assert facts["fingerprint"] == load("u.safetensors").fingerprint
    facts = answer(
        "embed", "apply", "b.h5ad", "--upstream", "u.safetensors", "--out", "o.h5ad", "--key-added", "X_u"
    )  # fmt: skip
    assert (facts["written"], facts["genes"]["missing"]) == ("o.h5ad", [])
    assert ad.read_h5ad("o.h5ad").obsm["X_u"].shape == (120, 4)


def test_flagged_genes(files, cells):
    part = cells[cells.obs["batch"] == "a"].copy()
    part.var["highly_variable"] = np.arange(60) < 20
    part.write_h5ad("flagged.h5ad")
    run(
        "embed", "fit", "flagged.h5ad", "--genes", "flagged", "--out", "u.safetensors", "--coordinates", 3
    )  # fmt: skip
    found = load("u.safetensors")
    assert found.genes[found.used].tolist() == [f"gene{g}" for g in range(20)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["fit", "a.h5ad", "--out", "a.h5ad"], "Expected different files for IN and --out"),
        (["fit", "a.h5ad", "--out", "no/u.safetensors"], "Expected a place for a file as --out"),
        (["fit", "a.h5ad", "--out", "u", "--coordinates", "60"], "n_components between 1 and 59"),
        (["fit", "a.h5ad", "--out", "u", "--genes", "flagged"], "found none; available: 'baseline'"),
        (["fit", "a.h5ad", "--out", "u", "--layer", "raw"], "a layer of a.h5ad, found no 'raw'"),
        (["fit", "a.h5ad", "--out", "u", "--method", "scvi"], "Expected --batch-key for scVI"),
        (["fit", "a.h5ad", "--out", "u", "--batch-key", "batch"], "only with --method scvi"),
        (["fit", "none.h5ad", "--out", "u"], "found none at none.h5ad"),
        (["fit", "logged.h5ad", "--out", "u"], "Expected counts (whole numbers from 0 on)"),
        (["apply", "b.h5ad", "--upstream", "ref"], "Expected either --out or --in-place, found neither"),
        (["apply", "b.h5ad", "--upstream", "b.h5ad", "--in-place"], "Expected different files"),
        (["apply", "b.h5ad", "--upstream", "a.h5ad", "--in-place"], "Expected a saved upstream"),
        (["apply", "few.h5ad", "--upstream", "ref", "--in-place"], "found 20 (33%)"),
        (["apply", "c.h5ad", "--upstream", "ref", "--in-place", "--min-shared", "0.9"], "at least 90%"),
        (["apply", "logged.h5ad", "--upstream", "ref", "--in-place"], "Expected counts (whole"),
        (["apply", "b.h5ad", "--upstream", "ref", "--out", "o.zarr"], "the same kind as the input"),
        (["surgery", "b.h5ad", "--upstream", "ref", "--out", "u"], "Expected a saved scVI reference"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_sentence(files, cells, arguments, sentence):
    cells[:, :20].copy().write_h5ad("few.h5ad")
    cells.X.data = np.log1p(cells.X.data)
    cells.write_h5ad("logged.h5ad")
    run("embed", "fit", "a.h5ad", "--out", "ref", "--coordinates", 4)
    before = {p.name: p.read_bytes() for p in files.iterdir()}
    done = run("embed", *arguments, code=2)
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert {p.name: p.read_bytes() for p in files.iterdir()} == before


def test_every_command_has_an_example():
    for name in ("fit", "apply", "surgery"):
        shown = " ".join(run("embed", name, "--help").stdout.split())
        assert f"Example: scbatchprox embed {name}" in shown


@pytest.mark.scvi
def test_scvi_with_surgery(files):
    pytest.importorskip("scvi")
    options = ["--method", "scvi", "--batch-key", "batch", "--coordinates", 4, "--max-epochs", 2]
    run("embed", "fit", "a.h5ad", "b.h5ad", "--out", "u", *options)
    run("embed", "apply", "a.h5ad", "--upstream", "u", "--in-place")
    before = ad.read_h5ad("a.h5ad").obsm["X_scvi"]
    unseen = run("embed", "apply", "c.h5ad", "--upstream", "u", "--in-place", code=2).stderr
    assert "found new 'c'; add them by surgery first" in unseen
    shown = run("embed", "surgery", "c.h5ad", "--upstream", "u", "--out", "v", "--max-epochs", 2)
    assert "added weights for c to those of 2 batches" in shown.stdout
    assert shown.stderr == ""
    facts = answer("embed", "apply", "c.h5ad", "--upstream", "v", "--in-place")
    assert facts["fingerprint"] == load("u").fingerprint
    run("embed", "apply", "a.h5ad", "--upstream", "v", "--in-place")
    np.testing.assert_array_equal(ad.read_h5ad("a.h5ad").obsm["X_scvi"], before)
    run("atlas", "init", "lung", "--upstream", "u")
    for name in "ac":
        run(
            "atlas", "add", "lung", f"{name}.h5ad", "--batch-key", "batch", "--use-rep", "X_scvi", "--force"
        )  # fmt: skip
