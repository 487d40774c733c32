"""Data sets by name and by file: labels, counts, embeddings, and what is said when they are missing."""

import os
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scbatchprox.bench.datasets import PRESETS, data_folder, load
from scbatchprox.bench.simulate import simulate
from scbatchprox.errors import BadFile, BadKey, BadValue, InputError

REAL = os.environ.get("SCBATCHPROX_DATA")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path_factory):
    """No data folder but those that tests name, and a cache of their own."""
    monkeypatch.delenv("SCBATCHPROX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def counts(n=12, genes=5, seed=0):
    return np.random.default_rng(seed).poisson(2.0, (n, genes)).astype(np.float32)


def cells(n=12, genes=5, **obs):
    obs = {"batch": ["a", "b"] * (n // 2), "cell_type": ["T"] * n} | obs
    names = [f"cell{i}" for i in range(n)]
    return ad.AnnData(
        counts(n, genes),
        pd.DataFrame(obs, index=names),
        pd.DataFrame(index=[f"g{j}" for j in range(genes)]),
    )


def written(adata, tmp_path, name="mine.h5ad"):
    path = tmp_path / name
    adata.write_zarr(path) if path.suffix == ".zarr" else adata.write_h5ad(path)
    return path


@pytest.mark.parametrize("suffix", [".h5ad", ".zarr"])
def test_any_file(tmp_path, suffix):
    adata = cells(donor=[1, 2, 3] * 4, annotation=["x", "y"] * 6)
    path = written(adata, tmp_path, f"mine{suffix}")
    data = load(path, batch_key="donor", label_key="annotation")
    assert (data.name, data.counts, data.rep) == ("mine", True, None)
    assert list(data.adata.obs["batch"]) == ["1", "2", "3"] * 4
    assert list(data.adata.obs["cell_type"]) == ["x", "y"] * 6
    assert all(data.adata.obs[key].dtype == "category" for key in ("batch", "cell_type"))
    np.testing.assert_array_equal(data.adata.X, adata.X)


def test_keys_may_be_in_each_others_place(tmp_path):
    adata = cells(batch=["T", "B"] * 6, cell_type=["p", "q", "r"] * 4)
    data = load(written(adata, tmp_path), batch_key="cell_type", label_key="batch")
    assert list(data.adata.obs["batch"]) == ["p", "q", "r"] * 4
    assert list(data.adata.obs["cell_type"]) == ["T", "B"] * 6


def test_several_batch_keys_are_combined(tmp_path):
    adata = cells(donor=["d", "e"] * 6, lane=["1"] * 6 + ["2"] * 6)
    data = load(written(adata, tmp_path), batch_key=["donor", "lane"])
    assert list(data.adata.obs["batch"]) == ["d | 1", "e | 1"] * 3 + ["d | 2", "e | 2"] * 3


def test_cells_without_a_type_are_left_out_and_counted(tmp_path):
    types = pd.Categorical(["T", "B", None] * 4, categories=["never", "T", "B"])
    adata = cells(cell_type=types)
    adata.obsm["X_pca"] = np.arange(24.0).reshape(12, 2)
    data = load(written(adata, tmp_path))
    kept = [i for i in range(12) if i % 3 != 2]
    assert "4 cells without a cell type left out" in data.note
    assert list(data.adata.obs_names) == [f"cell{i}" for i in kept]
    np.testing.assert_array_equal(data.adata.X, adata.X[kept])
    np.testing.assert_array_equal(data.adata.obsm["X_pca"], adata.obsm["X_pca"][kept])
    assert list(data.adata.obs["cell_type"].cat.categories) == ["T", "B"]


def test_a_batch_that_loses_all_of_its_cells_is_gone(tmp_path):
    adata = cells(batch=["a"] * 6 + ["b"] * 6, cell_type=["T"] * 6 + [None] * 6)
    assert list(load(written(adata, tmp_path)).adata.obs["batch"].cat.categories) == ["a"]


@pytest.mark.parametrize("place", ["X", "sparse X", "integers", "layer", "raw"])
def test_counts_are_found(tmp_path, place):
    adata, expected = cells(), counts()
    if place == "sparse X":
        adata.X = sp.csr_matrix(expected)
    elif place == "integers":
        adata.X = expected.astype(np.int64)
    elif place == "layer":
        adata.layers["counts"] = sp.csr_matrix(expected)
        adata.X = np.log1p(expected)
    elif place == "raw":
        adata.raw = adata.copy()
        adata = adata[:, :3].copy()
        adata.X = np.log1p(adata.X)
    data = load(written(adata, tmp_path))
    X = data.adata.X
    assert data.counts
    np.testing.assert_array_equal(X.toarray() if sp.issparse(X) else X, expected)
    assert ("counts from" in data.note) == (place in ("layer", "raw"))


@pytest.mark.parametrize(
    "change",
    [np.log1p, lambda X: X - 1, lambda X: np.where(X > 3, np.nan, X), lambda X: X + 0.5, None],
    ids=["logarithms", "negative", "nan", "halves", "no X"],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_not_counts(tmp_path, change, sparse):
    adata = cells()
    adata.obsm["X_pca"] = np.zeros((12, 2))
    X = None if change is None else change(counts())
    if X is None:
        adata = ad.AnnData(obs=adata.obs, obsm=adata.obsm)
    else:
        adata.X = sp.csr_matrix(X) if sparse else X
    data = load(written(adata, tmp_path))
    assert (data.counts, data.rep) == (False, "X_pca")


def test_the_last_value_counts_too(tmp_path):
    adata = cells(2000, 600)
    adata.X[-1, -1] = 0.5  # beyond what is looked at first
    adata.obsm["X_pca"] = np.zeros((2000, 2))
    assert not load(written(adata, tmp_path)).counts


@pytest.mark.parametrize(
    ("stored", "asked", "expected"),
    [
        (["X_harmony", "X_pca", "X_scvi"], None, "X_pca"),
        (["X_harmony", "X_scVI"], None, "X_scVI"),
        (["X_umap", "X_geneformer"], None, "X_geneformer"),
        (["X_umap", "X_tsne"], None, None),
        (["X_a", "X_b"], None, None),
        (["X_pca", "X_umap"], "X_umap", "X_umap"),
    ],
)
def test_which_embedding(tmp_path, stored, asked, expected):
    adata = cells()
    for key in stored:
        adata.obsm[key] = np.zeros((12, 2))
    assert load(written(adata, tmp_path), use_rep=asked).rep == expected


def test_an_embedding_is_a_dense_array_whatever_it_was(tmp_path):
    Z = np.arange(24.0, dtype=np.float32).reshape(12, 2)
    for kind in (
        sp.csr_matrix,
        lambda z: pd.DataFrame(z, index=cells().obs_names, columns=["x", "y"]),
    ):
        adata = cells()
        adata.obsm["X_pca"] = kind(Z)
        stored = load(written(adata, tmp_path)).adata.obsm["X_pca"]
        assert isinstance(stored, np.ndarray)
        np.testing.assert_array_equal(stored, Z)


def no_counts(**obsm):
    return ad.AnnData(obs=cells().obs, obsm=obsm)


@pytest.mark.parametrize(
    ("adata", "options", "error", "words"),
    [
        (cells(), {"label_key": "kind"}, BadKey, ["label_key", "'kind'", "'batch', 'cell_type'"]),
        (cells(), {"batch_key": "lane"}, BadKey, ["batch_key", "'lane'", "'batch', 'cell_type'"]),
        (cells(), {"use_rep": "X_pca"}, BadKey, ["use_rep", "'X_pca'", "available: none"]),
        (no_counts(), {}, BadValue, ["counts or one embedding", "available: none"]),
        (
            no_counts(X_a=np.zeros((12, 2)), X_b=np.zeros((12, 2))),
            {},
            BadValue,
            ["use_rep", "'X_a', 'X_b'"],
        ),
        (cells(cell_type=[np.nan] * 12), {}, BadValue, ["cell types", "none in 12 cells"]),
        (cells(batch=["a", None] * 6), {}, BadValue, ["batch", "6 of 12"]),
    ],
)
def test_what_is_missing_is_said(tmp_path, adata, options, error, words):
    path = written(adata, tmp_path)
    before = path.read_bytes()
    with pytest.raises(error) as caught:
        load(path, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert path.read_bytes() == before


def test_labels_that_read_the_same_are_refused():
    from scbatchprox.bench.datasets.dataset import Dataset, Keys

    adata = cells(batch=pd.Categorical([1, "1"] * 6))  # no file can hold these, an AnnData can
    with pytest.raises(BadValue, match="differ as text"):
        Dataset.of("mine", adata, Keys())


def test_files_that_are_none(tmp_path):
    with pytest.raises(BadFile, match="found none at"):
        load(tmp_path / "absent.h5ad")
    (tmp_path / "text.h5ad").write_text("not HDF5")
    with pytest.raises(BadValue, match="damaged or of another kind"):
        load(tmp_path / "text.h5ad")
    with pytest.raises(BadValue, match="found 'pbmc5'; available: sim_pbmc4, .*qm8"):
        load("pbmc5")


def test_where_data_is_looked_for(tmp_path, monkeypatch):
    folders = {}
    for i, name in enumerate(["given", "named", "cache/scbatchprox"], 1):
        folders[name] = tmp_path / name
        folders[name].mkdir(parents=True)
        written(cells(2 * i), folders[name], "cell_lines.h5ad")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert load("cell_lines").adata.n_obs == 6
    monkeypatch.setenv("SCBATCHPROX_DATA", str(tmp_path / "named"))
    assert load("cell_lines").adata.n_obs == 4
    assert load("cell_lines", data_dir=tmp_path / "given").adata.n_obs == 2


def test_a_file_of_the_data_folder_by_its_name(tmp_path):
    written(cells(4), tmp_path, "ours.h5ad")
    assert load("ours", data_dir=tmp_path).adata.n_obs == 4


def test_folders_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setenv("SCBATCHPROX_DATA", str(tmp_path / "gone"))
    with pytest.raises(BadFile, match=r"\$SCBATCHPROX_DATA .*found none at .*gone"):
        load("cell_lines")
    with pytest.raises(BadFile, match="data_dir .*found none at .*away"):
        load("cell_lines", data_dir=tmp_path / "away")
    monkeypatch.delenv("SCBATCHPROX_DATA")
    with pytest.raises(
        BadFile, match=r"cell_lines\.h5ad in .*scbatchprox, found none; put it there"
    ):
        load("cell_lines")
    assert not data_folder().exists()  # made by the first download, not by looking


def test_the_cache_of_each_system(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv("LOCALAPPDATA", raising=False)
    for system, folder in [
        ("linux", ".cache"),
        ("darwin", "Library/Caches"),
        ("win32", "AppData/Local"),
    ]:
        monkeypatch.setattr("sys.platform", system)
        assert data_folder() == tmp_path / folder / "scbatchprox"


def test_simulated_sets_need_no_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("SCBATCHPROX_DATA", str(tmp_path / "gone"))
    data, same = load("sim_balanced2", seed=3), simulate("balanced2", seed=3)
    assert (data.counts, data.rep) == (True, "X_pca")
    assert "simulated" in data.note
    assert "seed 3" in data.note
    assert (data.adata.X != same.X).nnz == 0
    np.testing.assert_array_equal(data.adata.obsm["X_pca"], same.obsm["X_pca"])
    assert list(data.adata.obs["cell_type"]) == list(same.obs["cell_type"])


def maan(folder, *batches):
    """One file per batch, as Maan et al. share them; genes differ in order and number."""
    folder.mkdir(parents=True)
    for i, genes in enumerate(batches):
        part = cells(4, len(genes), batch=[f"stage {i}"] * 4, celltype=["A", "A", "B", "C"])
        del part.obs["cell_type"]
        part.var_names = list(genes)
        part.X = counts(4, len(genes), seed=i)
        written(part, folder, f"{i}.h5ad")


@pytest.mark.parametrize("inside", ["", "resources/h5ad_files/int_datasets"])
def test_one_file_per_batch(tmp_path, inside):
    maan(tmp_path / inside / "pbmc_4_batch", "wxyz", "zyv", "yz")
    data = load("pbmc4", data_dir=tmp_path)
    assert data.counts
    assert set(data.adata.var_names) == {"y", "z"}
    got = data.adata.to_df()
    for i, genes in enumerate(["wxyz", "zyv", "yz"]):
        expected = pd.DataFrame(counts(4, len(genes), seed=i), columns=list(genes))
        rows = got[(data.adata.obs["batch"] == f"stage {i}").to_numpy()]
        np.testing.assert_array_equal(rows[["y", "z"]], expected[["y", "z"]])
    assert list(data.adata.obs["cell_type"]) == ["A", "A", "B", "C"] * 3
    assert data.adata.obs_names.is_unique
    assert "2 genes that all 3 files have" in data.note
    assert "batches of 4 + 4 + 4 cells, where the paper has 526 + 526 + 3,222 + 3,773" in data.note


def test_one_file_per_batch_without_what_it_needs(tmp_path):
    maan(tmp_path / "pbmc_4_batch", "ab", "cd")
    with pytest.raises(BadValue, match="genes in common"):
        load("pbmc4", data_dir=tmp_path)
    (tmp_path / "mouse_hindbrain_6_batch").mkdir()
    with pytest.raises(BadFile, match="one per batch, found none in"):
        load("mhd6", data_dir=tmp_path)
    written(cells(), tmp_path / "mouse_hindbrain_6_batch", "a.h5ad")
    with pytest.raises(BadKey, match="no 'celltype'; available: 'batch', 'cell_type'"):
        load("mhd6", data_dir=tmp_path)


def scarches(n=10):
    """Five studies with the labels of the scArches pancreas; counts are in raw alone."""
    names = ["inDrop", "CelSeq", "CelSeq2", "Fluidigm C1", "SS2"]
    adata = cells(
        n,
        batch=["0"] * (n - 2) + ["1"] * 2,
        study=np.repeat([f"Pancreas {name}" for name in names], n // 5),
        cell_type=["Pancreas Beta", "Pancreas  Stellate"] * (n // 2),
    )
    adata.raw = adata.copy()
    adata.X = np.log1p(adata.X)
    adata.obsm["X_pca"] = np.zeros((n, 2))
    return adata


@pytest.mark.parametrize("file", ["pancreas_normalized.h5ad", "pancreas.h5ad"])
def test_the_pancreas_of_scarches(tmp_path, file):
    written(scarches(), tmp_path, file)
    two, five = load("hpms2", data_dir=tmp_path), load("pancreas5", data_dir=tmp_path)
    for data in (two, five):
        assert data.counts
        np.testing.assert_array_equal(data.adata.X, counts(10))
        assert list(data.adata.obs["cell_type"]) == ["Beta", "Stellate"] * 5
        assert data.rep is None  # what its authors computed is not where the paper starts
    assert load("hpms2", data_dir=tmp_path, use_rep="X_pca").rep == "X_pca"
    assert list(two.adata.obs["batch"]) == ["0"] * 8 + ["1"] * 2
    assert "batches of 2 + 8 cells, where the paper has 2,961 + 12,720" in two.note
    order = ["inDrop", "CEL-Seq", "CEL-Seq2", "Fluidigm C1", "Smart-seq2"]
    assert list(five.adata.obs["batch"].cat.categories) == order
    assert list(five.adata.obs["batch"]) == list(np.repeat(order, 2))


def test_another_pancreas_is_not_taken_for_it(tmp_path):
    adata = scarches()
    adata.obs["study"] = ["Pancreas SS2"] * 9 + ["Pancreas Drop-seq"]
    written(adata, tmp_path, "pancreas.h5ad")
    with pytest.raises(BadValue, match="'inDrop', .*found 'Drop-seq'"):
        load("pancreas5", data_dir=tmp_path)
    del adata.obs["study"]
    written(adata, tmp_path, "pancreas.h5ad")
    with pytest.raises(BadKey, match="column 'study'"):
        load("hpms2", data_dir=tmp_path)


def test_originals_with_cells_that_have_no_type(tmp_path):
    adata = scarches()
    adata.obs["cell_type"] = pd.Categorical(["Pancreas Beta", None] * 5)
    written(adata, tmp_path, "pancreas.h5ad")
    maan(tmp_path / "pbmc_4_batch", "ab")
    part = ad.read_h5ad(tmp_path / "pbmc_4_batch" / "0.h5ad")
    part.obs["celltype"] = pd.Categorical(["A", None, "B", None])
    written(part, tmp_path / "pbmc_4_batch", "0.h5ad")
    for name, n, types in [
        ("hpms2", 5, {"Beta"}),
        ("pancreas5", 5, {"Beta"}),
        ("pbmc4", 2, {"A", "B"}),
    ]:
        data = load(name, data_dir=tmp_path)
        assert f"{n} cells without a cell type left out" in data.note
        assert data.adata.n_obs == n
        assert set(data.adata.obs["cell_type"].cat.categories) == types


def test_ones_own_version_of_an_original_comes_first(tmp_path):
    written(scarches(), tmp_path, "pancreas.h5ad")
    written(cells(4), tmp_path, "hpms2.h5ad")
    assert load("hpms2", data_dir=tmp_path).adata.n_obs == 4


def test_every_preset_says_what_it_is():
    assert all(len(preset.about) > 10 for preset in PRESETS.values())


class TestWideData:
    """Presets that start from principal components, in files of our own under their names."""

    def expected(self, X, width):
        """Coordinates up to sign, from the singular values of all cells."""
        U, s, _ = np.linalg.svd(X - X.mean(0), full_matrices=False)
        return np.abs(U * s)[:, :width]

    @pytest.mark.parametrize("width", [60, 8])
    def test_of_the_embedding(self, tmp_path, rng, width):
        adata = cells(100, 0)
        adata.obsm["X_emb"] = rng.normal(size=(100, width)).astype(np.float32)
        written(adata, tmp_path, "fsdd_speech.h5ad")
        data = load("fsdd_speech", data_dir=tmp_path)
        n = min(40, width - 1)
        assert (data.rep, data.counts) == ("X_pca", False)
        assert f"{n} principal components of its X_emb ({width} columns)" in data.note
        expected = self.expected(adata.obsm["X_emb"].astype(float), n)
        np.testing.assert_allclose(np.abs(data.adata.obsm["X_pca"]), expected, atol=1e-6)
        asked = load("fsdd_speech", data_dir=tmp_path, use_rep="X_emb")
        np.testing.assert_array_equal(asked.adata.obsm[asked.rep], adata.obsm["X_emb"])
        assert "principal" not in asked.note

    @pytest.mark.parametrize("sparse", [False, True])
    def test_of_values_that_are_no_counts(self, tmp_path, sparse):
        adata = cells(80, 60)
        logged = np.log1p(adata.X)
        adata.X = sp.csr_matrix(logged) if sparse else logged
        written(adata, tmp_path, "pancreas_wang_xin.h5ad")
        data = load("pancreas_wang_xin", data_dir=tmp_path)
        assert (data.rep, data.counts) == ("X_pca", False)
        assert data.note == "40 principal components of its X (60 columns)"
        found = np.abs(data.adata.obsm["X_pca"])
        np.testing.assert_allclose(found, self.expected(logged.astype(float), 40), atol=1e-6)

    def test_what_is_there_is_taken(self, tmp_path, rng):
        adata = cells(20, 0)
        adata.obsm["X_emb"], adata.obsm["X_pca"] = rng.normal(size=(2, 20, 5))
        written(adata, tmp_path, "bbbc021_moa.h5ad")
        data = load("bbbc021_moa", data_dir=tmp_path)
        np.testing.assert_array_equal(data.adata.obsm["X_pca"], adata.obsm["X_pca"])
        assert data.note == ""

    def test_nothing_to_take_them_of(self, tmp_path, rng):
        adata = cells(20, 0)
        written(adata, tmp_path, "bbbc021_moa.h5ad")
        with pytest.raises(BadValue, match="an embedding or values in X in bbbc021_moa"):
            load("bbbc021_moa", data_dir=tmp_path)
        adata.obsm["X_a"], adata.obsm["X_b"] = rng.normal(size=(2, 20, 5))
        written(adata, tmp_path, "bbbc021_moa.h5ad")
        with pytest.raises(BadValue, match="one embedding in bbbc021_moa .*found 'X_a', 'X_b'"):
            load("bbbc021_moa", data_dir=tmp_path)


@pytest.mark.skipif(REAL is None, reason="SCBATCHPROX_DATA names no folder with real data")
@pytest.mark.parametrize(
    ("name", "shape", "n_batches", "n_types", "with_counts", "rep"),
    [
        ("cell_lines", (2370, 20), 3, 2, False, "X_pca"),
        ("sc_mixology", (1916, 728), 6, 5, True, None),
        ("pancreas_scvi", (7095, 30), 4, 7, False, "X_scvi"),
        ("hematopoiesis_scvi", (4649, 30), 2, 7, False, "X_scvi"),
        ("kang_ifnb", (13729, 12542), 2, 12, True, None),
        ("synovium", (5265, 20), 24, 4, False, "X_pca"),
        ("optimalflow37", (19943, 10), 37, 19, False, "X_emb"),
        ("covid_pbmc_pca", (10000, 50), 20, 18, False, "X_emb"),
        ("bbbc021_moa", (632, 40), 10, 13, False, "X_pca"),
        ("fsdd_speech", (3000, 40), 6, 10, False, "X_pca"),
        ("pancreas_wang_xin", (1175, 40), 2, 7, False, "X_pca"),
        ("hmp16s_bodysites", (7295, 2392), 7, 14, True, None),
    ],
)
def test_real_files(name, shape, n_batches, n_types, with_counts, rep):
    data = load(name, data_dir=REAL)
    assert (data.counts, data.rep) == (with_counts, rep)
    assert (data.adata.X if with_counts else data.adata.obsm[rep]).shape == shape
    assert data.adata.obs["batch"].nunique() == n_batches
    assert data.adata.obs["cell_type"].nunique() == n_types
    assert not data.adata.obs[["batch", "cell_type"]].isna().any(axis=None)


@pytest.mark.skipif(REAL is None, reason="SCBATCHPROX_DATA names no folder with real data")
def test_a_real_file_without_types():
    with pytest.raises(InputError, match="no column 'cell_type'; available: 'batch'"):
        load("pbmc_3500", data_dir=REAL)
    assert (
        load("pancreas_scvi", data_dir=REAL, batch_key="protocol").adata.obs["batch"].nunique() == 3
    )
