"""``scbatchprox refine`` on Dask clusters."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from command_line import command, run
from scbatchprox import BatchProx, PopulationTarget

pytestmark = pytest.mark.filterwarnings("ignore:.*zarr")


@pytest.mark.filterwarnings("ignore")
class TestCluster:
    @pytest.mark.parametrize("suffix", ["h5ad", "zarr", "npy"])
    def test_local_cluster(self, adata, tmp_path, suffix, monkeypatch):
        path = tmp_path / f"cells.{suffix}"
        labels = []
        if suffix == "npy":
            np.save(path, adata.obsm["X_pca"])
            adata.obs.to_csv(tmp_path / "obs.csv")
            labels = ["--labels", str(tmp_path / "obs.csv")]
        else:
            getattr(adata, f"write_{suffix}")(path)
        monkeypatch.setattr("scbatchprox.cells.file.CHUNK_BYTES", 5 * 8 * 25)
        run(
            "refine",
            path,
            "--batch-key",
            "batch",
            "--in-place",
            "--dask",
            "--target",
            "moment",
            *labels,
        )
        expected = BatchProx(target="moment").fit_transform(
            adata.obsm["X_pca"], batch=adata.obs["batch"]
        )
        if suffix == "npy":
            found = np.load(path)
        else:
            found = getattr(ad, f"read_{suffix}")(path).obsm["X_pca_batchprox"]
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)

    @pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
    def test_populations_on_a_cluster(self, adata, tmp_path, suffix, monkeypatch):
        """Workers find, count and move the same populations as one process."""
        path, out = tmp_path / f"cells.{suffix}", tmp_path / f"out.{suffix}"
        getattr(adata, f"write_{suffix}")(path)
        monkeypatch.setattr("scbatchprox.cells.file.CHUNK_BYTES", 5 * 8 * 25)
        options = ("--batch-key", "batch", "--target", "population", "--force")
        run("refine", path, *options, "--out", out, "--dask")
        run("refine", path, *options, "--in-place")
        Z, batch = adata.obsm["X_pca"], adata.obs["batch"]
        target = PopulationTarget(force=True)  # these cells have no types
        expected = BatchProx(target=target).fit_transform(Z, batch=batch)
        assert np.abs(expected - Z).max() > 0.1
        for file in (path, out):
            found = getattr(ad, f"read_{suffix}")(file).obsm["X_pca_batchprox"]
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)

    def test_scheduler_elsewhere(self, path, adata):
        distributed = pytest.importorskip("distributed")
        with distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=":0"
        ) as cluster:
            done = command("refine", path, "--batch-key", "batch", "--in-place", "--scheduler",
                           cluster.scheduler_address, "--target", "moment")  # fmt: skip
        assert done.returncode == 0, done.stderr
        expected = BatchProx(target="moment").fit_transform(
            adata.obsm["X_pca"], batch=adata.obs["batch"]
        )
        np.testing.assert_allclose(
            ad.read_h5ad(path).obsm["X_pca_batchprox"], expected, rtol=1e-10, atol=1e-10
        )

    def test_adam_and_tables_are_refused(self, path, adata, tmp_path):
        done = run("refine", path, "--batch-key", "batch", "--in-place", "--dask", "--solver", "adam",
                   code=2)  # fmt: skip
        assert "--solver exact works" in done.stderr
        pd.DataFrame(adata.obsm["X_pca"]).add_prefix("PC").assign(batch="a").to_csv(
            tmp_path / "t.csv"
        )
        done = run(
            "refine", tmp_path / "t.csv", "--batch-key", "batch", "--in-place", "--dask", code=2
        )
        assert "can be read in parts on a cluster" in done.stderr
