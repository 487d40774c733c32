"""From counts to clusters and a UMAP with scanpy, on the refined key, and Harmony before it."""

import anndata as ad
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import command_line
from scbatchprox import refine
from scbatchprox.evaluate import ilisi

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("default")]  # of other packages


def clusters(adata, use_rep):
    import scanpy as sc

    sc.pp.neighbors(adata, use_rep=use_rep, n_neighbors=10, key_added=use_rep)
    sc.tl.leiden(
        adata, resolution=0.2, flavor="igraph", n_iterations=2, directed=False,
        neighbors_key=use_rep, key_added=f"leiden {use_rep}",
    )  # fmt: skip
    return adata.obs[f"leiden {use_rep}"]


@pytest.mark.parametrize("target", ["moment", "population"])
def test_clusters_are_types_after_refinement(adata, target):
    refine(adata, "batch", target=target, rounds=None if target == "moment" else "auto")
    before, after = clusters(adata, "X_pca"), clusters(adata, "X_pca_batchprox")
    types = adata.obs["cell_type"]
    assert adjusted_rand_score(types, after) > 0.9 > adjusted_rand_score(types, before)


def test_umap_of_the_refined_key(adata):
    import scanpy as sc

    refine(adata, "batch", target="population", key_added="X_refined")
    mixing = {}
    for key in ("X_pca", "X_refined"):
        sc.pp.neighbors(adata, use_rep=key, n_neighbors=15)
        sc.tl.umap(adata, random_state=0)
        assert np.isfinite(adata.obsm["X_umap"]).all()
        mixing[key] = ilisi(adata.obsm["X_umap"], adata.obs["batch"])
    assert mixing["X_refined"] > mixing["X_pca"] + 0.3


def test_neighbours_of_many_cells():
    """Beyond 8,192 cells scanpy asks pynndescent, some versions of which it cannot use."""
    import scanpy as sc

    rng = np.random.default_rng(0)
    kind, batch = rng.integers(0, 3, 9000), rng.integers(0, 2, 9000)
    Z = rng.normal(size=(9000, 5)) + 12.0 * np.eye(3, 5)[kind] + batch[:, None]
    adata = ad.AnnData(obs={"batch": np.array(["s1", "s2"])[batch]}, obsm={"X_pca": Z.astype("f4")})
    refine(adata, "batch")
    sc.pp.neighbors(adata, use_rep="X_pca_batchprox")
    row, column = adata.obsp["distances"].nonzero()
    assert (kind[row] == kind[column]).mean() > 0.99
    assert 0.4 < (batch[row] != batch[column]).mean() < 0.6


def test_scanpy_reads_what_the_command_wrote(adata, tmp_path):
    import scanpy as sc

    adata.write_h5ad(tmp_path / "cells.h5ad")
    out = tmp_path / "refined.h5ad"
    command_line.run(
        "refine", tmp_path / "cells.h5ad", "--batch-key", "batch", "--target", "moment",
        "--out", out,
    )  # fmt: skip
    written = sc.read_h5ad(out)
    refine(adata, "batch", target="moment")
    np.testing.assert_array_equal(written.obsm["X_pca_batchprox"], adata.obsm["X_pca_batchprox"])
    sc.pp.neighbors(written, use_rep="X_pca_batchprox")
    both = ad.concat([written, adata])  # keys of obsm are kept where all parts have them
    assert "X_pca_batchprox" in both.obsm


def test_what_harmony_returns_can_be_refined(adata):
    import harmonypy

    Z = adata.obsm["X_pca"]
    found = harmonypy.run_harmony(Z, adata.obs, "batch", random_state=0).Z_corr
    adata.obsm["X_harmony"] = np.asarray(found)
    assert adata.obsm["X_harmony"].shape == Z.shape
    for key in ("X_pca", "X_harmony"):
        refine(adata, "batch", use_rep=key, target="moment")
    # Harmony has removed most of what there was to remove.
    moved = {
        key: np.linalg.norm(adata.obsm[f"{key}_batchprox"] - adata.obsm[key])
        for key in ("X_pca", "X_harmony")
    }
    assert 0 < moved["X_harmony"] < moved["X_pca"] / 2
