import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from data import make_cells
from scbatchprox import Adam, Adapter, BatchProx, MomentTarget, PopulationTarget, refine


@pytest.fixture
def adata(rng):
    c = make_cells(rng, [60, 40, 25], 5)
    obs = pd.DataFrame(
        {
            "batch": pd.Categorical(
                np.array(["s1", "s2", "s3"])[c.codes], ["s3", "s1", "s2", "s9"]
            ),
            "donor": rng.integers(1, 3, 125),
        },
        index=[f"cell{i}" for i in range(125)],
    )
    adata = ad.AnnData(sp.csr_matrix(rng.poisson(1.0, (125, 7)).astype(np.float32)), obs)
    adata.obsm["X_pca"] = c.Z.astype(np.float32)
    adata.obsm["X_scvi"] = c.Z[:, :3]
    return adata


def test_writes_obsm_and_uns(adata):
    before = adata.obsm["X_pca"].copy()
    assert refine(adata, "batch", target="moment") is None
    expected = BatchProx(target="moment").fit_transform(before, batch=adata.obs["batch"])
    np.testing.assert_array_equal(adata.obsm["X_pca_batchprox"], expected)
    assert adata.obsm["X_pca_batchprox"].dtype == np.float32
    np.testing.assert_array_equal(adata.obsm["X_pca"], before)
    done = adata.uns["X_pca_batchprox"]
    assert done["batches"].tolist() == ["s1", "s2", "s3"]
    assert done["scale"].shape == done["shift"].shape == (3, 5)
    assert done["params"]["rounds"] == 3
    assert done["params"]["batch_key"] == ["batch"]
    assert done["movement"].index.tolist() == ["s1", "s2", "s3"]
    assert done["movement"]["n_cells"].tolist() == [60, 40, 25]
    assert done["history"]["round"].tolist() == [0, 1, 2, 3]
    assert "evidence" not in done


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_evidence_and_trace_are_stored(adata, tmp_path, kind):
    refine(adata, "batch")
    model = BatchProx().fit(adata.obsm["X_pca"], batch=adata.obs["batch"])
    getattr(adata, f"write_{kind}")(tmp_path / "cells")
    done = getattr(ad, f"read_{kind}")(tmp_path / "cells").uns["X_pca_batchprox"]
    for part, expected in (("history", model.history_), ("evidence", model.evidence_)):
        assert set(done[part]) == set(vars(expected))
        for name, values in vars(expected).items():
            np.testing.assert_array_equal(done[part][name], values)
    assert done["evidence"]["batches"].tolist() == done["batches"].tolist()


def test_inplace_false_returns_the_array(adata):
    result = refine(adata, "batch", use_rep="X_scvi", inplace=False, rounds=None, target="moment")
    expected = BatchProx(rounds=None, target="moment").fit_transform(
        adata.obsm["X_scvi"], batch=adata.obs["batch"]
    )
    np.testing.assert_array_equal(result, expected)
    assert set(adata.obsm) == {"X_pca", "X_scvi"}
    assert not adata.uns


def test_every_option_reaches_the_model(adata):
    options = dict(
        rounds=2, lambda_target=0.7, mu=0.01, lambda_id=0.02,
        target=MomentTarget(variance_matching=False, eps=1e-3),
        solver=Adam(seed=9), strength=0.5,
    )  # fmt: skip
    refine(adata, "batch", key_added="mine", **{"target": "moment"} | options)
    expected = BatchProx(**{"target": "moment"} | options).fit_transform(
        adata.obsm["X_pca"], batch=adata.obs["batch"]
    )
    np.testing.assert_array_equal(adata.obsm["mine"], expected)
    params = adata.uns["mine"]["params"]
    assert params["mu"] == 0.01
    assert "seed=9" in params["solver"]


def test_keys_combine(adata):
    refine(adata, ["batch", "donor"], target="moment")
    names = adata.obs["batch"].astype(str) + " | " + adata.obs["donor"].astype(str)
    expected = BatchProx(target="moment").fit_transform(adata.obsm["X_pca"], batch=names)
    np.testing.assert_array_equal(adata.obsm["X_pca_batchprox"], expected)
    assert set(adata.uns["X_pca_batchprox"]["batches"]) == set(names)


@pytest.mark.parametrize("backend", ["h5ad", "zarr"])
@pytest.mark.parametrize("rounds", [3, None])
def test_result_can_be_written_and_read(adata, tmp_path, backend, rounds):
    refine(adata, ["batch", "donor"], rounds=rounds, target="moment")
    path = tmp_path / f"a.{backend}"
    getattr(adata, f"write_{backend}")(path)
    back = getattr(ad, f"read_{backend}")(path)
    np.testing.assert_array_equal(back.obsm["X_pca_batchprox"], adata.obsm["X_pca_batchprox"])
    a, b = adata.uns["X_pca_batchprox"], back.uns["X_pca_batchprox"]
    np.testing.assert_array_equal(a["scale"], b["scale"])
    assert list(a["batches"]) == list(b["batches"])
    assert set(a["params"]) == set(b["params"])


def test_x_frames_and_sparse_obsm(adata):
    adata.obsm["frame"] = pd.DataFrame(adata.obsm["X_pca"], index=adata.obs_names).add_prefix("PC")
    adata.obsm["sparse"] = sp.csr_matrix(adata.obsm["X_pca"])
    dense = refine(adata, "batch", inplace=False, target="moment")
    for key in ("frame", "sparse"):
        np.testing.assert_allclose(
            refine(adata, "batch", use_rep=key, inplace=False, target="moment"), dense, rtol=1e-6
        )
    refine(adata, "batch", use_rep="X", target="moment")
    assert adata.obsm["X_batchprox"].shape == adata.shape


def test_views_and_unused_categories(adata):
    some = adata[adata.obs["batch"] != "s2"]
    result = refine(some, "batch", inplace=False, target="moment")
    expected = BatchProx(target="moment").fit_transform(
        some.obsm["X_pca"], batch=some.obs["batch"].astype(str)
    )
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["plate"], {}, "found no column 'plate'; available: 'batch', 'donor'"),
        ([["batch", "plate"]], {}, "found no column 'plate'"),
        (["batch"], {"use_rep": "X_umap"}, "found no 'X_umap'; available: 'X_pca', 'X_scvi'"),
        ([[]], {}, "Expected at least one batch key"),
        (["batch"], {"rounds": -1}, "Expected rounds"),
        (["batch"], {"inplace": False, "key_added": "x"}, "Expected key_added only with inplace"),
    ],
)
def test_bad_input_changes_nothing(adata, arguments, options, message):
    with pytest.raises((KeyError, ValueError), match=message):
        refine(adata, *arguments, **{"target": "moment"} | options)
    assert set(adata.obsm) == {"X_pca", "X_scvi"}
    assert not adata.uns


@pytest.mark.parametrize("key", ["batch", ["batch", "donor"]])
def test_missing_labels(adata, key):
    adata.obs.iloc[[3, 7], 0] = np.nan
    with pytest.raises(ValueError, match="2 missing of 125|2 of 125 cells with a missing label"):
        refine(adata, key, target="moment")
    assert not adata.uns


def test_joined_names_must_be_distinct(adata):
    adata.obs["a"] = np.where(np.arange(125) % 2, "x | y", "x")
    adata.obs["b"] = np.where(np.arange(125) % 2, "z", "y | z")
    with pytest.raises(ValueError, match="two that read the same"):
        refine(adata, ["a", "b"], target="moment")


@pytest.mark.parametrize(
    "target", ["moment", "population", PopulationTarget(conditioned=False)], ids=str
)
def test_uns_gives_the_batch_of_each_row(rng, target, tmp_path):
    """The record of a refinement is enough to repeat it, also after writing and reading."""
    c = make_cells(rng, [200, 90, 60], 4)
    names = np.array(["z", "a", "m"])[c.codes]
    adata = ad.AnnData(obs=pd.DataFrame({"batch": names}, index=np.arange(350).astype(str)))
    adata.obsm["X_pca"] = c.Z
    refine(adata, "batch", target=target)
    adata.write_h5ad(tmp_path / "x.h5ad")
    done = ad.read_h5ad(tmp_path / "x.h5ad").uns["X_pca_batchprox"]
    assert len(done["row_batch"]) == len(done["scale"]) == len(done["shift"])
    assert list(done["batches"]) == ["a", "m", "z"]
    batch = np.searchsorted(done["batches"], done["row_batch"])
    assert sorted(set(batch)) == [0, 1, 2]
    populations = [done[name] for name in ("anchors", "bandwidth") if name in done]
    adapter = Adapter(
        done["batches"].astype(str), batch, done["scale"], done["shift"], *populations
    )
    np.testing.assert_array_equal(adapter.apply(c.Z, names), adata.obsm["X_pca_batchprox"])
