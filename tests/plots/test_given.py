"""What pictures take: MuData and its modalities, and data frames."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scbatchprox import pl, refine

KEY = "rna:X_pca_batchprox"
ignore = pytest.mark.filterwarnings(
    # On the next version of mudata, and on that of pandas.
    "ignore::FutureWarning:mudata", "ignore::DeprecationWarning:mudata",
)  # fmt: skip


@pytest.fixture
def mdata(rng):
    import mudata

    obs = pd.DataFrame({"batch": np.repeat(["a", "b"], 30)}, [f"cell{i}" for i in range(60)])
    parts = {}
    for name, d in (("rna", 4), ("prot", 3)):
        parts[name] = ad.AnnData(np.zeros((60, d), np.float32), obs.copy())
        parts[name].var_names = [f"{name}{i}" for i in range(d)]
        parts[name].obsm["X_pca"] = rng.normal(size=(60, d))
    parts["prot"].obs["batch"] = np.repeat(["x", "y"], 30)
    found = mudata.MuData(parts)
    found.obs["donor"] = found["rna"].obs["batch"].to_numpy()
    return found


@pytest.mark.interop
@ignore
def test_a_modality_is_named_by_its_prefix(mdata):
    refine(mdata, "rna:batch", use_rep="rna:X_pca", diagnose=True)
    for key in (KEY, None):
        grid = pl.before_after(mdata, key=key, label_key="donor", basis=(0, 1))
        assert [text.get_text() for text in grid[1, 1].get_legend().get_texts()] == ["a", "b"]
        drawn = np.asarray(grid[0, 1].collections[0].get_offsets())
        refined = mdata["rna"].obsm["X_pca_batchprox"][:, :2]
        np.testing.assert_allclose(np.sort(drawn, axis=0), np.sort(refined, axis=0))
        for axes in (pl.movement(mdata, key=key), pl.diagnosis(mdata, key=key)):
            assert sorted(tick.get_text() for tick in axes.get_yticklabels()) == ["a", "b"]
        assert pl.adapter(mdata, key=key)[1].images[0].get_array().shape == (2, 4)
        assert len(pl.history(mdata, key=key)) == 3
    mdata["rna"].obsm["X_umap"] = mdata["rna"].obsm["X_umap_batchprox"] = np.ones((60, 2))
    for basis in ("auto", "rna:X_umap"):
        axes = pl.before_after(mdata, basis=basis)[0, 0]
        assert (np.asarray(axes.collections[0].get_offsets()) == 1).all()
    refine(mdata, "prot:batch", use_rep="prot:X_pca")
    with pytest.raises(
        KeyError, match=f"found 2 in uns; available: '{KEY}', 'prot:X_pca_batchprox'"
    ):
        pl.movement(mdata)


@pytest.mark.interop
@ignore
def test_a_modality_by_itself(mdata):
    refine(mdata, "rna:batch", use_rep="rna:X_pca")
    axes = pl.before_after(mdata["rna"], basis=(0, 1))[0, 1]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]


@pytest.mark.interop
@ignore
@pytest.mark.parametrize("batch_key", ["donor", "prot:batch"])
def test_batches_that_a_modality_does_not_have(mdata, batch_key):
    """Its own column "batch" has other labels than "prot:batch"."""
    mdata.obs["prot:batch"] = mdata["prot"].obs["batch"].to_numpy()  # as mudata does before 0.4
    refine(mdata, batch_key, use_rep="rna:X_pca")
    with pytest.raises(KeyError, match=f"no column '{batch_key}'; available: 'batch'.*batch_key="):
        pl.before_after(mdata["rna"], basis=(0, 1))
    assert pl.before_after(mdata["rna"], basis=(0, 1), batch_key="batch").shape == (2, 2)
    assert pl.before_after(mdata, basis=(0, 1)).shape == (2, 2)


@pytest.mark.interop
def test_frames_of_polars(rng):
    polars = pytest.importorskip("polars")
    Z = rng.normal(size=(40, 3))
    frame, moved = (polars.DataFrame(X, schema=["x", "y", "z"]) for X in (Z, Z + 1))
    labels = polars.Series(["a", None] * 20)
    grid = pl.before_after(
        frame, moved, batch_key=labels, label_key=labels.cast(polars.Categorical), basis=(0, 1)
    )
    expected = pl.before_after(
        Z, Z + 1, batch_key=["a", None] * 20, label_key=["a", None] * 20, basis=(0, 1)
    )
    for one, two in zip(grid.flat, expected.flat, strict=True):
        found, wanted = one.collections[0], two.collections[0]
        np.testing.assert_allclose(found.get_offsets(), wanted.get_offsets())
        np.testing.assert_allclose(found.get_facecolor(), wanted.get_facecolor())


def test_frames_of_pandas_in_obsm(rng):
    obs = pd.DataFrame({"batch": np.repeat(["a", "b"], 20)}, map(str, range(40)))
    Z = pd.DataFrame(rng.normal(size=(40, 3)), obs.index, ["x", "y", "z"])
    adata = ad.AnnData(obs=obs, obsm={"X_pca": Z})
    refine(adata, "batch")
    axes = pl.before_after(adata, color="batch", basis=(0, 2))[0, 0]
    drawn = np.asarray(axes.collections[0].get_offsets())
    np.testing.assert_allclose(np.sort(drawn, axis=0), np.sort(Z[["x", "z"]].to_numpy(), axis=0))
