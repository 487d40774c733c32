"""Columns that must survive a refinement, against computations in plain numpy."""

import os
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scbatchprox import BatchProx, InputError, diagnose, refine, refine_file
from scbatchprox.diagnosis import Level

TYPES = np.array([[0.0, 0, 0, 0], [12, 0, 0, 0], [0, 12, 0, 0], [0, 0, 12, 0]])


def study(conditions, effect=2.0, n=400, seed=0, batch_effect=1.0):
    """Batches of four types; a batch has the cells of its conditions, which differ by ``effect``."""
    rng = np.random.default_rng(seed)
    rows = []
    for number, found in enumerate(conditions):
        kind, condition = rng.integers(0, 4, n), np.asarray(found)[rng.integers(0, len(found), n)]
        Z = TYPES[kind] + rng.normal(size=(n, 4))
        Z[:, 3] += effect * (condition == "treated")
        Z += batch_effect * rng.normal(size=4)
        rows.append((Z, np.full(n, f"b{number}"), condition))
    Z, batch, condition = map(np.concatenate, zip(*rows, strict=True))
    obs = pd.DataFrame({"batch": batch, "condition": condition})
    obs.index = obs.index.astype(str)
    return ad.AnnData(obs=obs, obsm={"X_pca": Z})


CONFOUNDED = [["control"], ["treated"]]
MIXED = [["control", "treated"]] * 3


def between(Z, values):
    """Sum of squares between groups, cell by cell."""
    mean = Z.mean(0)
    return sum(
        ((Z[values == v].mean(0) - mean) ** 2).sum() * (values == v).sum() for v in set(values)
    )


@pytest.mark.parametrize("target", ["population", "moment"])
class TestVerdicts:
    def test_a_condition_that_is_the_batch(self, target):
        adata = study(CONFOUNDED)
        table = diagnose(adata, "batch", keep="condition", target=target)
        assert (table["condition confounded"] == 1).all()
        assert (table["condition removed"] > 0.5).all()
        assert (table["level"] == Level.WEAK).all()
        assert table["verdict"].str.contains("each batch has one value of 'condition'").all()
        assert table["verdict"].str.contains("the refinement removes ").all()
        assert (
            not diagnose(adata, "batch", target=target)["verdict"].str.contains("condition").any()
        )

    def test_a_condition_in_every_batch(self, target):
        table = diagnose(study(MIXED), "batch", keep=["condition"], target=target)
        assert (table["condition confounded"] < 0.05).all()
        assert (table["condition removed"].abs() < 0.1).all()
        assert not table["verdict"].str.contains("condition").any()

    def test_the_part_removed(self, target):
        """From all cells, before and after."""
        adata = study(
            [["control", "treated"], ["treated"], ["control", "control", "treated"]], 6.0, 2000
        )
        table = diagnose(adata, "batch", keep="condition", target=target)
        after = refine(adata, "batch", target=target, inplace=False, diagnose=False)
        values = adata.obs["condition"].to_numpy()
        expected = 1 - between(after, values) / between(adata.obsm["X_pca"], values)
        assert table["condition removed"].iloc[0] == pytest.approx(expected, abs=0.02)

    def test_half_of_the_strength_removes_less(self, target):
        adata = study(CONFOUNDED)
        whole, half = (
            diagnose(adata, "batch", keep="condition", target=target, strength=s)
            for s in (1.0, 0.5)
        )
        assert half["condition removed"].iloc[0] < whole["condition removed"].iloc[0] - 0.1


def test_how_much_of_a_column_the_batch_tells():
    """Theil's U, by counting: half of the batches have one condition each, the others both."""
    adata = study([["control"], ["treated"], *MIXED[:2]], n=2000)
    table = diagnose(adata, "batch", keep="condition", target="moment")
    counts = pd.crosstab(adata.obs["batch"], adata.obs["condition"]).to_numpy(float)
    p = counts / counts.sum()
    given = -sum(x * np.log(x / row.sum()) for row in p for x in row if x > 0)
    whole = -sum(x * np.log(x) for x in p.sum(0))
    assert table["condition confounded"].iloc[0] == pytest.approx(1 - given / whole, abs=1e-12)


class TestRefine:
    def test_warns_and_records(self, tmp_path):
        adata = study(CONFOUNDED)
        with pytest.warns(UserWarning, match="To keep 'condition', leave the batches alone"):
            refine(adata, "batch", keep="condition")
        table = adata.uns["X_pca_batchprox"]["diagnosis"]
        adata.write_h5ad(tmp_path / "a.h5ad")
        stored = ad.read_h5ad(tmp_path / "a.h5ad").uns["X_pca_batchprox"]["diagnosis"]
        pd.testing.assert_frame_equal(stored, table, check_index_type=False, check_dtype=False)

    @pytest.mark.filterwarnings("error")
    def test_is_silent_if_the_column_survives(self):
        refine(study(MIXED), "batch", keep="condition")

    @pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
    @pytest.mark.filterwarnings("ignore:To keep", "ignore:.*zarr")
    def test_a_file_in_chunks(self, tmp_path, monkeypatch, suffix):
        adata = study(CONFOUNDED)
        path = tmp_path / f"cells.{suffix}"
        getattr(adata, f"write_{suffix}")(path)
        monkeypatch.setattr("scbatchprox.cells.file.CHUNK_BYTES", 4 * 8 * 77)
        found = refine_file(path, "batch", keep="condition", model=BatchProx()).diagnosis_
        expected = diagnose(adata, "batch", keep="condition")
        np.testing.assert_allclose(
            found["condition removed"], expected["condition removed"], rtol=1e-6
        )

    def test_dask(self):
        da = pytest.importorskip("dask.array")
        adata = study(CONFOUNDED)
        expected = diagnose(adata, "batch", keep="condition")["condition removed"]
        lazy = da.from_array(adata.obsm["X_pca"], chunks=(111, 4))
        found = diagnose(lazy, adata.obs["batch"], keep=adata.obs[["condition"]])[
            "condition removed"
        ]
        np.testing.assert_allclose(found, expected, rtol=1e-6)


class TestValues:
    """Columns to keep of an array: whatever holds them, the numbers are those of an AnnData."""

    def check(self, keep_of):
        adata = study(CONFOUNDED, n=200)
        expected = diagnose(adata, "batch", keep="condition", target="moment")
        batch = adata.obs["batch"].to_numpy()
        keep = keep_of(adata.obs[["condition"]])
        found = diagnose(adata.obsm["X_pca"], batch, keep=keep, target="moment")
        pd.testing.assert_frame_equal(found, expected)

    @pytest.mark.parametrize(
        "keep_of",
        [
            lambda frame: frame,
            lambda frame: frame["condition"],
            lambda frame: {"condition": frame["condition"].tolist()},
            lambda frame: frame.astype("category"),
        ],
    )
    def test_pandas(self, keep_of):
        self.check(keep_of)

    @pytest.mark.interop
    @pytest.mark.parametrize("one", [False, True])
    def test_polars(self, one):
        pl = pytest.importorskip("polars")
        self.check(
            lambda frame: pl.DataFrame(frame.to_dict("list"))["condition" if one else ["condition"]]
        )


class TestBadInput:
    @pytest.mark.parametrize(
        ("keep", "sentence"),
        [
            ("tissue", "Expected keep in obs, found no column 'tissue'; available: 'batch'"),
            (["condition", "condition"], "Expected each column to keep once"),
            (
                "age",
                "groups of cells in the column 'age' to keep, on average at least 10 cells per value, "
                "found 800 values in 800 cells; pandas.cut makes groups of numbers",
            ),
            ("one", "Expected a column with two values or more to keep, found one value in 'one'"),
            ("missing", "Expected a value of 'missing' for every cell, found 1 missing of 800"),
        ],
    )
    def test_is_one_sentence(self, keep, sentence):
        adata = study(CONFOUNDED)
        adata.obs["one"] = "x"
        adata.obs["age"] = np.linspace(20.0, 80.0, 800)
        adata.obs["missing"] = adata.obs["condition"].where(np.arange(800) > 0)
        for door in (refine, diagnose):
            with pytest.raises(InputError, match=sentence):
                door(adata, "batch", keep=keep)
        assert "X_pca_batchprox" not in adata.obsm

    def test_a_column_of_few_numbers_is_no_error(self):
        adata = study(CONFOUNDED)
        adata.obs["age"] = np.arange(800) % 80
        assert "age removed" in diagnose(adata, "batch", keep="age", target="moment")

    def test_no_columns(self, tmp_path):
        """An empty list is as good as none, at every door."""
        adata = study(MIXED)
        expected = diagnose(adata, "batch", target="moment")
        adata.write_h5ad(path := tmp_path / "a.h5ad")
        for none in ([], ()):
            pd.testing.assert_frame_equal(
                diagnose(adata, "batch", keep=none, target="moment"), expected
            )
            refine(adata, "batch", keep=none, diagnose=False, target="moment")
            refine_file(path, "batch", keep=none, diagnose=False, model=BatchProx(target="moment"))
        assert "diagnosis" not in adata.uns["X_pca_batchprox"]

    def test_without_a_diagnosis_nothing_would_be_examined(self):
        with pytest.raises(InputError, match="Expected keep only with a diagnosis"):
            refine(study(CONFOUNDED), "batch", keep="condition", diagnose=False)

    def test_arrays_need_values(self):
        adata = study(CONFOUNDED)
        with pytest.raises(
            InputError, match="Expected a data frame, a dictionary of columns or a named"
        ):
            diagnose(adata.obsm["X_pca"], adata.obs["batch"], keep="condition")
        values = adata.obs["condition"].rename(None)
        with pytest.raises(
            InputError, match="a column to keep with a name, found a Series without"
        ):
            diagnose(adata.obsm["X_pca"], adata.obs["batch"], keep=values)
        with pytest.raises(InputError, match="Expected use_rep only for an AnnData"):
            diagnose(adata.obsm["X_pca"], adata.obs["batch"], use_rep="X_pca")


DATA = Path(os.environ.get("SCBATCHPROX_DATA", "absent"))


@pytest.mark.skipif(not (DATA / "kang_ifnb.h5ad").exists(), reason="needs SCBATCHPROX_DATA")
def test_kang_is_not_called_safe():
    """Control and interferon: the batch is the biology."""
    adata = ad.read_h5ad(DATA / "kang_ifnb.h5ad")
    counts = adata.X[:, np.asarray(adata.X.sum(0)).ravel().argsort()[-1000:]].toarray()
    X = np.log1p(counts / counts.sum(1, keepdims=True) * 1e4)
    X -= X.mean(0)
    _, axes = np.linalg.eigh(X.T @ X)
    adata.obsm["X_pca"] = X @ axes[:, -30:]
    adata.obs["stimulus"] = adata.obs["batch"].to_numpy()
    table = diagnose(adata, "batch", keep="stimulus")
    assert (table["level"] == Level.WEAK).all()
    assert (table["stimulus removed"] > 0.5).all()
