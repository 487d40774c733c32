"""Commands for saved models; help, version, completion and the demo."""

import json
import os
import subprocess
import sys

import anndata as ad
import numpy as np
import pytest

from command_line import run
from scbatchprox import __version__

pytestmark = pytest.mark.filterwarnings("ignore:.*zarr")


class TestModels:
    @pytest.fixture
    def model(self, path, tmp_path):
        model = tmp_path / "m.safetensors"
        run("refine", path, "--batch-key", "batch", "--in-place", "--model", model,
            "--target", "moment")  # fmt: skip
        return model

    def test_apply_takes_its_key_from_the_model(self, path, model, tmp_path):
        run("apply", path, "--model", model, "--out", tmp_path / "o.h5ad", "--key-added", "again")
        result = ad.read_h5ad(tmp_path / "o.h5ad")
        np.testing.assert_array_equal(result.obsm["again"], result.obsm["X_pca_batchprox"])

    def test_inverse_adds_the_original_cells_to_the_refined_ones(self, path, model):
        before = ad.read_h5ad(path).obsm["X_pca_batchprox"]
        run("inverse", path, "--model", model, "--in-place")
        result = ad.read_h5ad(path)
        np.testing.assert_allclose(
            result.obsm["X_pca_batchprox_inverse"], result.obsm["X_pca"], rtol=1e-9
        )
        np.testing.assert_array_equal(result.obsm["X_pca_batchprox"], before)

    def test_apply_takes_its_embedding_from_the_model(self, adata, tmp_path):
        adata.obsm["X_other"] = adata.obsm["X_pca"] + 5
        path, model = tmp_path / "c.h5ad", tmp_path / "o.safetensors"
        adata.write_h5ad(path)
        run("refine", path, "--batch-key", "batch", "--use-rep", "X_other", "--in-place",
            "--model", model)  # fmt: skip
        run("apply", path, "--model", model, "--key-added", "again", "--in-place")
        result = ad.read_h5ad(path)
        np.testing.assert_array_equal(result.obsm["again"], result.obsm["X_other_batchprox"])

    def test_inspect(self, model):
        shown = run("inspect", model).stdout
        for word in ("s1", "n cells", "rounds", "batch_key", "cells.h5ad", __version__):
            assert word in shown
        facts = json.loads(run("inspect", model, "--json").stdout)
        assert facts["params"]["rounds"] == "auto"
        assert facts["rounds"] == 3
        assert facts["provenance"]["batch_key"] == ["batch"]
        assert facts["provenance"]["n_cells"] == 180
        assert facts["written_by"] == f"scbatchprox {__version__}"

    def test_other_coordinates_and_batches(self, adata, model, tmp_path):
        adata.obsm["narrow"] = adata.obsm["X_pca"][:, :2]
        adata.obs["batch"] = "elsewhere"
        adata.write_h5ad(tmp_path / "more.h5ad")
        done = run("apply", tmp_path / "more.h5ad", "--model", model, "--in-place", code=2)
        assert "found unseen 'elsewhere'; available: 's1', 's2', 's3'" in done.stderr
        done = run("apply", tmp_path / "more.h5ad", "--model", model, "--in-place",
                   "--use-rep", "narrow", code=2)  # fmt: skip
        assert "Expected an embedding of 5 coordinates" in done.stderr


def test_help_has_an_example_for_every_command():
    for name in ("refine", "apply", "inverse", "inspect", "demo"):
        assert f"Example: scbatchprox {name}" in " ".join(run(name, "--help").stdout.split())


def test_version_and_completion():
    assert run("--version").stdout.strip() == __version__
    asked = {
        "_SCBATCHPROX_COMPLETE": "complete_bash",
        "COMP_WORDS": "scbatchprox re",
        "COMP_CWORD": "1",
    }
    script = "import sys; sys.argv = ['scbatchprox']; from scbatchprox.cli import main; main()"
    answer = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | asked, capture_output=True, text=True
    )
    assert "refine" in answer.stdout


@pytest.mark.slow
def test_demo_command(tmp_path):
    result = run("demo", "--out", tmp_path, "--data", "balanced2")
    assert "macro-F1" in result.stdout
    assert (tmp_path / "balanced2_refined.h5ad").exists()
    assert "available" in run("demo", "--data", "nothing", "--out", tmp_path, code=2).stderr
