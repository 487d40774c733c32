"""Data sets from files: labels, counts, embeddings, and errors if they are missing."""

from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from dataset_files import cells, counts, written
from research.datasets import data_folder, load
from scbatchprox.demo import simulate
from scbatchprox.errors import BadFile, BadKey, BadValue


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path_factory):
    """Unset the data folder, and use a temporary cache."""
    monkeypatch.delenv("SCBATCHPROX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


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


def test_columns_may_be_swapped(tmp_path):
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


def test_a_batch_without_labelled_cells_is_left_out(tmp_path):
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
    adata.X[-1, -1] = 0.5  # outside of the first block
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


def test_an_embedding_becomes_a_dense_array(tmp_path):
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
def test_missing_parts_are_an_error(tmp_path, adata, options, error, words):
    path = written(adata, tmp_path)
    before = path.read_bytes()
    with pytest.raises(error) as caught:
        load(path, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert path.read_bytes() == before


def test_labels_with_the_same_text_are_refused():
    from research.datasets.dataset import Dataset, Keys

    adata = cells(batch=pd.Categorical([1, "1"] * 6))  # possible in memory, but not in a file
    with pytest.raises(BadValue, match="differ as text"):
        Dataset.of("mine", adata, Keys())


def test_missing_and_bad_files(tmp_path):
    with pytest.raises(BadFile, match="found none at"):
        load(tmp_path / "absent.h5ad")
    (tmp_path / "text.h5ad").write_text("not HDF5")
    with pytest.raises(BadValue, match="damaged or of another kind"):
        load(tmp_path / "text.h5ad")
    with pytest.raises(BadValue, match="found 'pbmc5'; available: sim_pbmc4, .*qm8"):
        load("pbmc5")


@pytest.mark.parametrize("name", ["X", "var", "raw", "uns/deep/er"])
def test_links_to_other_files_are_not_followed(tmp_path, name):
    adata = cells(cell_type=["T", "B"] * 6)
    adata.raw, adata.uns["deep"] = adata, {"er": np.arange(3)}
    path, other = (written(adata, tmp_path, file) for file in ("mine.h5ad", "other.h5ad"))
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = h5py.ExternalLink("other.h5ad", name)
    before = other.read_bytes()
    with pytest.raises(BadValue, match=r"stored in another, which is never followed \(in mine"):
        load(path)
    assert other.read_bytes() == before


def test_order_of_data_folders(tmp_path, monkeypatch):
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


def test_missing_folders(tmp_path, monkeypatch):
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
    assert not data_folder().exists()  # only a download makes it


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
