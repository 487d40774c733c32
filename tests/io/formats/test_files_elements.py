"""Files of older anndata versions: read correctly, or refused in one sentence."""

import h5py
import numpy as np
import pandas as pd
import pytest
import zarr

from data import make_cells
from scbatchprox import BatchProx, refine_file
from scbatchprox.errors import BadKey, BadValue
from scbatchprox.io.formats import elements, open_cells

pytestmark = pytest.mark.filterwarnings("ignore::anndata.OldFormatWarning")

CODES = np.array([1, 0, -1, 1, 2], np.int8)
NAMES = ["b", "a", "c é"]
EXPECTED = pd.Series(pd.Categorical(["a", "b", None, "a", "c é"], categories=NAMES))
TEXT = h5py.string_dtype()


def old_h5(path, codes=CODES, order=("batch", "donor", "site"), inside="/"):
    """A file as anndata 0.7 wrote it: columns without encodings, categories in a separate group."""
    n = len(codes)
    with h5py.File(path, "w") as file:
        obs = file.require_group(inside).create_group("obs")
        obs.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.1.0"})
        obs.attrs["_index"] = "_index"
        if order is not None:
            obs.attrs["column-order"] = order
        obs.create_dataset("_index", data=[f"cell{i}" for i in range(n)], dtype=TEXT)
        obs["donor"] = np.arange(n)
        obs.create_dataset("site", data=["here", "there"] * (n // 2) + ["é"] * (n % 2), dtype=TEXT)
        categories = obs.create_dataset("__categories/batch", data=NAMES, dtype=TEXT)
        categories.attrs["ordered"] = False
        obs["batch"] = codes
        obs["batch"].attrs["categories"] = categories.ref
    return path


def records(path):
    """A file as anndata 0.6 wrote it: obs is one table of records, and obsm another."""
    obs = np.array([(b"cell0", 0), (b"cell1", 1)], [("index", "S5"), ("batch", "i1")])
    with h5py.File(path, "w") as file:
        file["obs"] = obs
        file["obsm"] = np.array([([0.0, 1.0],), ([2.0, 3.0],)], [("X_pca", "f4", 2)])
    return path


def test_codes_and_categories_of_anndata_07(tmp_path):
    with open_cells(old_h5(tmp_path / "old.h5ad")) as file:
        frame = file.obs(["batch", "donor", "site"])
    pd.testing.assert_series_equal(frame["batch"], EXPECTED, check_names=False)
    assert frame["donor"].tolist() == [0, 1, 2, 3, 4]
    assert frame["site"].tolist() == ["here", "there", "here", "there", "é"]


def test_categories_of_a_group_inside_a_file(tmp_path):
    path = old_h5(tmp_path / "old.h5", inside="mod/rna")
    with h5py.File(path) as file:
        frame = elements.stored_obs(file["mod/rna"], ["batch"])
    pd.testing.assert_series_equal(frame["batch"], EXPECTED, check_names=False)


def test_categories_of_anndata_07_in_zarr(tmp_path):
    group = zarr.open_group(tmp_path / "old.zarr", mode="w", zarr_format=2)
    obs = group.create_group("obs")
    obs.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.1.0"})
    obs.attrs.update({"_index": "_index", "column-order": ["batch"]})
    obs.create_array("batch", data=CODES).attrs["categories"] = "__categories/batch"
    obs.create_array("__categories/batch", data=np.array(NAMES)).attrs["ordered"] = False
    with open_cells(tmp_path / "old.zarr") as file:
        frame = file.obs(["batch"])
    pd.testing.assert_series_equal(frame["batch"], EXPECTED, check_names=False)


def test_a_file_of_anndata_07_is_refined_by_its_categories(tmp_path, rng):
    cells = make_cells(rng, [50, 40, 30], 4)
    path = old_h5(tmp_path / "old.h5ad", cells.codes.astype(np.int8))
    with h5py.File(path, "r+") as file:
        file["obsm/X_pca"] = cells.Z
    refine_file(path, batch_key="batch", use_rep="X_pca", model=BatchProx(target="moment"))
    with h5py.File(path) as file:
        result = file["obsm/X_pca_batchprox"][()]
    batch = np.array(NAMES)[cells.codes]
    np.testing.assert_allclose(
        result, BatchProx(target="moment").fit_transform(cells.Z, batch=batch), rtol=1e-9
    )


def test_a_table_of_records_is_refused(tmp_path):
    path = records(tmp_path / "older.h5ad")
    sentence = (
        "Expected a file written by anndata 0.7 or newer, found an older one: read it and write it "
        "again with anndata (in older.h5ad)."
    )
    with open_cells(path) as file, pytest.raises(BadValue) as caught:
        file.obs(["batch"])
    assert str(caught.value) == sentence
    with pytest.raises(BadValue, match="anndata 0.7 or newer"):
        refine_file(path, batch_key="batch", use_rep="X_pca", model=BatchProx(target="moment"))


@pytest.mark.parametrize(
    "order",
    [
        np.array([b"batch", b"donor", "größe".encode()]),
        np.array([b"batch", b"donor", "größe".encode()], h5py.string_dtype("ascii")),
        ["batch", "donor", "größe"],
    ],
    ids=["fixed", "variable", "text"],
)
def test_names_of_columns_may_be_bytes(tmp_path, order):
    path = old_h5(tmp_path / "old.h5ad", order=order)
    with h5py.File(path, "r+") as file:
        file["obs"].move("site", "größe")
    with open_cells(path) as file:
        frame = file.obs(["donor", "größe"])
        with pytest.raises(BadKey) as caught:
            file.obs(["lane"])
    assert list(frame) == ["donor", "größe"]
    assert frame["donor"].tolist() == [0, 1, 2, 3, 4]
    assert "batch" in str(caught.value)
    assert "b'" not in str(caught.value)


def test_without_an_order_the_categories_are_not_a_column(tmp_path):
    path = old_h5(tmp_path / "old.h5ad", order=None)
    with open_cells(path) as file, pytest.raises(BadKey) as caught:
        file.obs(["lane"])
    assert "donor" in str(caught.value)
    assert "__categories" not in str(caught.value)
