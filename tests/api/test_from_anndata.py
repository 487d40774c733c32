"""What ``refine`` writes to an AnnData gives its model back, without a second fit."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from safetensors import safe_open

from scbatchprox import (
    Adam,
    BatchProx,
    Fit,
    MomentTarget,
    PopulationTarget,
    refine,
    refine_file,
    report,
)
from scbatchprox.errors import BadKey, BadValue


def cells(rng, names=("a", "b", "c"), n=200):
    """Four types in batches that are shifted."""
    batch = np.repeat(names, n)
    Z = rng.normal(size=(batch.size, 6)) + 9.0 * np.eye(6)[rng.integers(0, 4, batch.size)]
    Z += np.repeat(rng.normal(size=(len(names), 6)), n, axis=0)
    obs = pd.DataFrame({"batch": batch}, map(str, range(batch.size)))
    return ad.AnnData(obs=obs, obsm={"X_pca": Z.astype(np.float32)})


CASES = {
    "population": {},
    "moment": {"target": "moment", "rounds": 2, "strength": 0.5},
    "options": {"target": PopulationTarget(seed=3, force=True), "lambda_target": 0.7},
    "adam": {"target": MomentTarget(variance_matching=False), "solver": Adam(seed=1), "rounds": 1},
}


def content(model, folder):
    """A checksum of all that a saved model has, but for where its cells are from."""
    model.provenance_ = {}
    path = folder / "model.safetensors"
    model.save(path)
    with safe_open(path, framework="np") as file:
        return file.metadata()["sha256"]


@pytest.mark.parametrize("kind", ["memory", "h5ad", "zarr"])
@pytest.mark.parametrize("params", CASES.values(), ids=CASES)
def test_the_model_equals_one_that_was_fitted(rng, tmp_path, params, kind):
    adata = cells(rng)
    refine(adata, "batch", **params)
    fitted = BatchProx(**params).fit(adata.obsm["X_pca"], batch=adata.obs["batch"])
    if kind != "memory":
        path = tmp_path / f"cells.{kind}"
        getattr(adata, f"write_{kind}")(path)
        adata = getattr(ad, f"read_{kind}")(path)
    model = BatchProx.from_anndata(adata)
    assert model.provenance_ == {
        "batch_key": ["batch"], "use_rep": "X_pca", "key_added": "X_pca_batchprox", "n_cells": 600,
    }  # fmt: skip
    assert content(model, tmp_path) == content(fitted, tmp_path)
    refined = model.transform(adata.obsm["X_pca"], batch=adata.obs["batch"])
    np.testing.assert_array_equal(refined, adata.obsm["X_pca_batchprox"])


def test_a_new_batch_joins_it(rng, tmp_path):
    adata, new = cells(rng), cells(rng, ["d"])
    refine(adata, "batch")
    grown = BatchProx.from_anndata(adata)
    again = BatchProx().fit(adata.obsm["X_pca"], batch=adata.obs["batch"])
    for model in (grown, again):
        model.partial_fit(new.obsm["X_pca"], batch=new.obs["batch"])
    assert content(grown, tmp_path) == content(again, tmp_path)


def test_a_file_has_it_too(rng, tmp_path):
    path = tmp_path / "cells.h5ad"
    cells(rng).write_h5ad(path)
    model = refine_file(path, "batch")
    found = BatchProx.from_anndata(ad.read_h5ad(path))
    assert found.provenance_["source"] == "cells.h5ad"
    assert content(found, tmp_path) == content(model, tmp_path)


@pytest.mark.parametrize("names", [(1, 2, 3), (0.5, 1.5, 2.5), (False, True)])
def test_labels_keep_their_type(rng, names):
    adata = cells(rng, names)
    refine(adata, "batch")
    assert BatchProx.from_anndata(adata).batches_.tolist() == list(names)


def test_several_records(rng):
    adata = cells(rng)
    refine(adata, "batch")
    refine(adata, "batch", target="moment", key_added="X_moment")
    assert BatchProx.from_anndata(adata, "X_moment").target == "moment"
    assert BatchProx.from_anndata(adata, "X_pca_batchprox").target == "population"
    with pytest.raises(BadKey, match=r"found 2 in uns; available: 'X_pca_batchprox', 'X_moment'"):
        BatchProx.from_anndata(adata)


def test_a_record_without_a_model(rng):
    adata = cells(rng)
    with pytest.raises(BadKey, match="Expected a record of refine in uns, found none"):
        BatchProx.from_anndata(adata)
    refine(adata, "batch")
    del adata.uns["X_pca_batchprox"]["model"]  # as of version 0.2.0
    with pytest.raises(
        BadKey, match=r"Expected a model in uns\['X_pca_batchprox'\], found a record"
    ):
        BatchProx.from_anndata(adata)


def test_a_target_of_ones_own_is_no_obstacle(rng):
    class Mine(MomentTarget):
        pass

    adata = cells(rng)
    refine(adata, "batch", target=Mine())
    assert "model" not in adata.uns["X_pca_batchprox"]


@pytest.mark.parametrize("damage", [
    lambda model: model.update(params="{}"),
    lambda model: model.update(params="nonsense"),
    lambda model: model.update(batches="[1, 1, 1]"),
    lambda model: model.pop("arrays"),
    lambda model: model["arrays"].pop("moments.m2"),
    lambda model: model["arrays"].update({"moments.mean": np.zeros(3)}),
])  # fmt: skip
def test_a_damaged_model_is_one_sentence(rng, damage):
    adata = cells(rng)
    refine(adata, "batch")
    damage(adata.uns["X_pca_batchprox"]["model"])
    with pytest.raises(BadValue, match=r"^Expected .*found .*uns\['X_pca_batchprox'\].*\.$"):
        BatchProx.from_anndata(adata)


def test_arrays_are_stored_once(rng):
    adata = cells(rng)
    refine(adata, "batch")
    arrays = adata.uns["X_pca_batchprox"]["model"]["arrays"]
    assert {name for name in arrays if name.startswith(("scale", "shift", "anchor"))} == set()
    assert {name for name in arrays if name.startswith("reference")} == set()


def test_a_report_shows_the_stored_model(rng, tmp_path, monkeypatch):
    pytest.importorskip("bokeh")
    adata = cells(rng)
    refine(adata, "batch", diagnose=False)  # so the report must diagnose

    def refuse(*args, **options):
        raise AssertionError("a second fit")

    monkeypatch.setattr(Fit, "of", refuse)
    report(adata, "batch", view="pca", out=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "effect removed" in page
