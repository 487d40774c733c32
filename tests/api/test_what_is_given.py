"""Whatever holds cells: the wrong door names the right one."""

import subprocess
import sys

import anndata as ad
import numpy as np
import pytest

import command_line
from scbatchprox import BatchProx, refine
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
