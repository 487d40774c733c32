"""MuData: one modality, or all of them, with labels of the modality or of the whole."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from data import make_cells
from scbatchprox import BatchProx, diagnose, refine, report
from scbatchprox.cells.keys import find_embedding
from scbatchprox.errors import BadKey, BadType

pytestmark = [
    pytest.mark.interop,
    # On its own next version, and on that of pandas.
    pytest.mark.filterwarnings("ignore::FutureWarning:mudata", "ignore::DeprecationWarning:mudata"),
]


@pytest.fixture
def cells(rng):
    return make_cells(rng, [60, 40, 25], 5)


@pytest.fixture
def mdata(rng, cells):
    """RNA of 125 cells; protein of the last 100 of them, in another order."""
    import mudata

    names = np.array([f"cell{i}" for i in range(125)])
    batch = np.array(["s1", "s2", "s3"])[cells.codes]
    obs = pd.DataFrame({"sample": pd.Categorical(batch)}, index=names)
    rna = ad.AnnData(rng.poisson(1.0, (125, 7)).astype(np.float32), obs)
    rna.var_names = [f"gene{i}" for i in range(7)]
    rna.obsm["X_pca"] = cells.Z
    order = rng.permutation(np.arange(25, 125))
    prot = ad.AnnData(rng.poisson(1.0, (100, 4)).astype(np.float32), obs[[]].iloc[order])
    prot.var_names = [f"protein{i}" for i in range(4)]
    prot.obsm["X_pca"] = cells.Z[order, :3]
    mdata = mudata.MuData({"rna": rna, "prot": prot})
    mdata.obs["donor"] = pd.Series(batch, names).reindex(mdata.obs_names).to_numpy()
    mdata.obsm["X_mofa"] = rng.normal(size=(125, 2))
    return mdata


def expected(Z, batch):
    return BatchProx(target="moment").fit_transform(Z, batch=batch)


def test_a_modality_is_an_anndata(mdata):
    refine(mdata["rna"], "sample", target="moment")
    found = mdata["rna"].obsm["X_pca_batchprox"]
    np.testing.assert_array_equal(
        found, expected(mdata["rna"].obsm["X_pca"], mdata["rna"].obs["sample"])
    )


@pytest.mark.parametrize("batch_key", ["sample", "rna:sample", "donor", ["rna:sample", "donor"]])
def test_labels_of_the_modality_or_of_the_whole(mdata, batch_key):
    assert refine(mdata, batch_key, use_rep="rna:X_pca", target="moment") is None
    rna = mdata["rna"]
    batch = rna.obs["sample"].astype(str)
    batch = batch + " | " + batch if isinstance(batch_key, list) else batch
    np.testing.assert_array_equal(rna.obsm["X_pca_batchprox"], expected(rna.obsm["X_pca"], batch))
    params = rna.uns["X_pca_batchprox"]["params"]
    assert params["use_rep"] == "X_pca"
    assert list(params["batch_key"]) == ([batch_key] if isinstance(batch_key, str) else batch_key)
    assert "X_pca_batchprox" not in mdata.obsm
    assert not mdata.uns


def test_labels_follow_the_cells_of_a_modality(mdata, cells):
    """The protein has fewer cells than the MuData, in another order."""
    refine(mdata, "donor", use_rep="prot:X_pca", target="moment")
    prot = mdata["prot"]
    rows = [int(name.removeprefix("cell")) for name in prot.obs_names]
    batch = np.array(["s1", "s2", "s3"])[cells.codes][rows]
    np.testing.assert_array_equal(prot.obsm["X_pca_batchprox"], expected(cells.Z[rows, :3], batch))


def test_all_modalities_together(mdata):
    refine(mdata, "donor", use_rep="X_mofa", target="moment")
    np.testing.assert_array_equal(
        mdata.obsm["X_mofa_batchprox"], expected(mdata.obsm["X_mofa"], mdata.obs["donor"])
    )
    assert "X_mofa_batchprox" in mdata.uns


@pytest.mark.parametrize("key_added", ["X_new", "rna:X_new"])
def test_names_of_results(mdata, key_added):
    refine(mdata, "sample", use_rep="rna:X_pca", key_added=key_added, target="moment")
    assert "X_new" in mdata["rna"].obsm
    assert "X_new" in mdata["rna"].uns


def test_the_matrix_of_a_modality(mdata):
    found = refine(mdata, "donor", use_rep="prot:X", inplace=False, target="moment")
    assert found.shape == mdata["prot"].shape


def test_the_result_can_be_written_and_read(mdata, tmp_path):
    import mudata

    refine(mdata, "donor", use_rep="rna:X_pca", target="moment")
    mdata.write(tmp_path / "cells.h5mu")
    again = mudata.read(tmp_path / "cells.h5mu")["rna"]
    np.testing.assert_array_equal(
        again.obsm["X_pca_batchprox"], mdata["rna"].obsm["X_pca_batchprox"]
    )
    assert again.uns["X_pca_batchprox"]["batches"].tolist() == ["s1", "s2", "s3"]


@pytest.mark.parametrize(
    ("use_rep", "available"),
    [
        ("X_pca", "'X_mofa', 'rna:X_pca', 'prot:X_pca'"),
        ("atac:X_lsi", "'X_mofa', 'rna:X_pca', 'prot:X_pca'"),
        ("rna:X_umap", "'rna:X_pca'"),
        ("rna", "'X_mofa', 'rna:X_pca', 'prot:X_pca'"),  # in obsm this is a mask of cells
    ],
)
def test_an_embedding_that_is_not_there(mdata, use_rep, available):
    with pytest.raises(BadKey) as caught:
        refine(mdata, "donor", use_rep=use_rep)
    assert str(caught.value) == (
        f"Expected use_rep in obsm (use_rep=NAME takes another, `scbatchprox embed` makes one from counts), "
        f"found no {use_rep!r}; available: {available}."
    )


def test_a_column_that_is_not_there(mdata):
    with pytest.raises(BadKey, match="found no column 'batch'; available: 'sample', 'donor'"):
        refine(mdata, "batch", use_rep="rna:X_pca")


def test_cells_without_a_label(mdata):
    """The column of one modality has no labels for cells that only another one has."""
    mdata.obs["some"] = mdata.obs["donor"].where(mdata.obs_names != "cell30")
    with pytest.raises(ValueError, match="label for every cell, found 1 missing of 100"):
        refine(mdata, "some", use_rep="prot:X_pca")


@pytest.mark.filterwarnings("ignore:.*not unique")
def test_cells_with_equal_names_have_only_labels_of_their_modality(mdata):
    rna = mdata["rna"]
    rna.obs_names = ["same"] * 125
    assert list(find_embedding(mdata, "rna:X_pca").obs) == ["sample"]


def test_the_estimator_names_the_call_for_a_mudata(mdata):
    with pytest.raises(BadType) as caught:
        BatchProx().fit(mdata)
    assert str(caught.value) == (
        "Expected an array (cells x coordinates), found a MuData; pass its embedding, such as "
        'mdata["rna"].obsm["X_pca"], or call scbatchprox.refine(mdata, "batch", use_rep="rna:X_pca").'
    )


def test_other_doors_take_a_modality(mdata):
    rna = mdata["rna"]
    table = diagnose(mdata, "sample", use_rep="rna:X_pca")
    pd.testing.assert_frame_equal(pd.DataFrame(table), pd.DataFrame(diagnose(rna, "sample")))
    page = report(mdata, "donor", use_rep="rna:X_pca", view="pca")
    assert "125 cells in 3 batches" in page
