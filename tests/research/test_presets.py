"""Data sets by name: the paper's public ones, and files of the data folder."""

import os

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from dataset_files import cells, counts, written
from research.datasets import PRESETS, load
from scbatchprox.errors import BadFile, BadKey, BadValue, InputError

REAL = os.environ.get("SCBATCHPROX_DATA")


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path_factory):
    """Unset the data folder, and use a temporary cache."""
    monkeypatch.delenv("SCBATCHPROX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def maan(folder, *batches):
    """Write one file per batch, as Maan et al. published them; genes differ in order and number."""
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
    assert "batches of 4 + 4 + 4 cells; the paper has 526 + 526 + 3,222 + 3,773" in data.note


def test_one_file_per_batch_without_what_it_needs(tmp_path):
    maan(tmp_path / "pbmc_4_batch", "ab", "cd")
    with pytest.raises(BadValue, match="with shared genes"):
        load("pbmc4", data_dir=tmp_path)
    (tmp_path / "mouse_hindbrain_6_batch").mkdir()
    with pytest.raises(BadFile, match="one per batch, found none in"):
        load("mhd6", data_dir=tmp_path)
    written(cells(), tmp_path / "mouse_hindbrain_6_batch", "a.h5ad")
    with pytest.raises(BadKey, match="no 'celltype'; available: 'batch', 'cell_type'"):
        load("mhd6", data_dir=tmp_path)


def scarches(n=10):
    """Return five studies with the labels of the scArches pancreas; counts are only in raw."""
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
        assert data.rep is None  # the paper does not start from the embedding of the authors
    assert load("hpms2", data_dir=tmp_path, use_rep="X_pca").rep == "X_pca"
    assert list(two.adata.obs["batch"]) == ["0"] * 8 + ["1"] * 2
    assert "batches of 2 + 8 cells; the paper has 2,961 + 12,720" in two.note
    order = ["inDrop", "CEL-Seq", "CEL-Seq2", "Fluidigm C1", "Smart-seq2"]
    assert list(five.adata.obs["batch"].cat.categories) == order
    assert list(five.adata.obs["batch"]) == list(np.repeat(order, 2))


def test_another_pancreas_is_refused(tmp_path):
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


def test_a_file_of_the_user_comes_before_the_original(tmp_path):
    written(scarches(), tmp_path, "pancreas.h5ad")
    written(cells(4), tmp_path, "hpms2.h5ad")
    assert load("hpms2", data_dir=tmp_path).adata.n_obs == 4


def test_every_preset_says_what_it_is():
    assert all(len(preset.about) > 10 for preset in PRESETS.values())


class TestPrincipalComponents:
    """Presets that start from principal components, with small files under their names."""

    def expected(self, X, n_dims):
        """Return coordinates up to sign, from a singular value decomposition."""
        U, s, _ = np.linalg.svd(X - X.mean(0), full_matrices=False)
        return np.abs(U * s)[:, :n_dims]

    @pytest.mark.parametrize("n_dims", [60, 8])
    def test_of_the_embedding(self, tmp_path, rng, n_dims):
        adata = cells(100, 0)
        adata.obsm["X_emb"] = rng.normal(size=(100, n_dims)).astype(np.float32)
        written(adata, tmp_path, "fsdd_speech.h5ad")
        data = load("fsdd_speech", data_dir=tmp_path)
        n = min(40, n_dims - 1)
        assert (data.rep, data.counts) == ("X_pca", False)
        assert f"{n} principal components of its X_emb ({n_dims} columns)" in data.note
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

    def test_an_existing_pca_is_used(self, tmp_path, rng):
        adata = cells(20, 0)
        adata.obsm["X_emb"], adata.obsm["X_pca"] = rng.normal(size=(2, 20, 5))
        written(adata, tmp_path, "bbbc021_moa.h5ad")
        data = load("bbbc021_moa", data_dir=tmp_path)
        np.testing.assert_array_equal(data.adata.obsm["X_pca"], adata.obsm["X_pca"])
        assert data.note == ""

    def test_no_values_for_a_pca(self, tmp_path, rng):
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
