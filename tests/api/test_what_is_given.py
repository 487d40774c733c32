"""Whatever holds cells: the wrong door names the right one."""

import subprocess
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import command_line
from scbatchprox import Atlas, BatchProx, InputError, diagnose, refine
from scbatchprox.errors import BadType


def test_the_estimator_names_the_call_for_an_anndata():
    adata = ad.AnnData(np.zeros((4, 3)), obsm={"X_pca": np.zeros((4, 2))})
    with pytest.raises(BadType) as caught:
        BatchProx().fit(adata)
    assert str(caught.value) == (
        "Expected an array (cells x coordinates), found an AnnData; pass its embedding, such as "
        'adata.obsm["X_pca"], or call scbatchprox.refine(adata, "batch", use_rep="X_pca").'
    )


def test_refine_names_the_call_for_an_array():
    with pytest.raises(BadType) as caught:
        refine(np.zeros((4, 3)), "batch")
    assert str(caught.value) == (
        "Expected an AnnData or MuData, found ndarray; for an array, call "
        "BatchProx().fit_transform(Z, batch=labels)."
    )


@pytest.mark.parametrize("path", ["x.h5ad", Path("x.h5ad")])
@pytest.mark.parametrize("door", [refine, diagnose])
def test_a_path_is_for_another_door(door, path):
    with pytest.raises(
        BadType, match=rf"scbatchprox\.{door.__name__}_file\('x\.h5ad', batch_key\)\.$"
    ):
        door(path, "batch")


@pytest.fixture
def adata(rng):
    obs = pd.DataFrame(
        {"batch": ["a", "b"] * 50, "type": ["x"] * 50 + ["y"] * 50}, map(str, range(100))
    )
    return ad.AnnData(
        obs=obs, obsm={"X_pca": rng.normal(size=(100, 3)) + 9 * (obs[["type"]] == "x").to_numpy()}
    )


@pytest.mark.parametrize("door", [refine, diagnose])
@pytest.mark.parametrize(
    ("convert", "kind"), [(lambda s: s, "Series"), (list, "list of int"), (np.array, "ndarray")]
)
def test_a_column_instead_of_its_name(door, adata, convert, kind):
    with pytest.raises(BadType) as caught:
        door(adata, convert(adata.obs["batch"].map({"a": 1, "b": 2})))
    assert str(caught.value) == (
        f"Expected the name of a column of obs as batch key, or a list of names, found {kind}."
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda **options: diagnose(np.zeros((4, 2)), list("aabb"), **options),
        lambda **options: Atlas.create("/nowhere/at/all", **options),
    ],
)
def test_a_misspelt_option(call):
    with pytest.raises(
        InputError, match=r"^Expected options of \w+, found 'tagret'; available: .*target, solver"
    ):
        call(tagret="moment")


@pytest.mark.parametrize("cells", ["adata", "Z"])
def test_cells_are_no_parameter_of_the_model(adata, cells):
    Z = adata.obsm["X_pca"]
    model = BatchProx(adata if cells == "adata" else Z, "batch")
    with pytest.raises(
        InputError, match=r"found \w+; for an AnnData call .*refine\(adata, 'batch'\)"
    ) as caught:
        model.fit(Z, batch=adata.obs["batch"])
    assert "\n" not in str(caught.value)


class TestPopulations:
    def test_are_those_of_the_model(self, adata):
        model = BatchProx().fit(
            adata.obsm["X_pca"], batch=adata.obs["batch"], population=adata.obs["type"]
        )
        expected = diagnose(adata, "batch", model=model)
        by_key = diagnose(adata, "batch", population_key="type")
        by_value = diagnose(adata.obsm["X_pca"], adata.obs["batch"], population=adata.obs["type"])
        for found in (by_key, by_value):
            pd.testing.assert_frame_equal(found, expected)

    def test_have_one_name_at_each_door(self, adata):
        Z, batch, types = adata.obsm["X_pca"], adata.obs["batch"], adata.obs["type"]
        with pytest.raises(InputError, match="population only for an array"):
            diagnose(adata, "batch", population=types)
        with pytest.raises(InputError, match="Expected population_key only for an AnnData"):
            diagnose(Z, batch, population_key="type")
        model = BatchProx().fit(Z, batch=batch)
        with pytest.raises(InputError, match="found both: population_key"):
            diagnose(adata, "batch", population_key="type", model=model)


def test_the_command_names_the_way_for_a_mudata(tmp_path):
    path = tmp_path / "cells.h5mu"
    path.touch()
    answer = command_line.run("refine", path, "--batch-key", "batch", "--in-place", code=2)
    assert "found the MuData 'cells.h5mu'" in answer.output
    assert 'mdata["rna"].write_h5ad("rna.h5ad")' in answer.output


def test_optional_packages_are_not_imported():
    script = (
        "import sys, numpy as np, anndata, pandas as pd\n"
        "known = set(sys.modules)\n"
        "from scbatchprox import BatchProx, refine\n"
        "obs = pd.DataFrame({'batch': ['a', 'b'] * 20}, map(str, range(40)))\n"
        "adata = anndata.AnnData(obs=obs, obsm={'X_pca': np.random.rand(40, 2)})\n"
        "refine(adata, 'batch', target='moment')\n"
        "BatchProx(target='moment').fit_transform(adata.obsm['X_pca'], batch=obs['batch'])\n"
        "new = {'mudata', 'torch', 'jax', 'cupy', 'polars', 'scanpy'} & (set(sys.modules) - known)\n"
        "assert not new, new"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
