"""Packages that are too large for every environment: scvi-tools before us, scib-metrics after."""

import anndata as ad
import numpy as np
import pytest

from scbatchprox import refine


@pytest.mark.scvi
@pytest.mark.filterwarnings("ignore")  # of other packages
def test_the_latent_space_of_scvi(counts, tmp_path):
    import scvi

    scvi.settings.seed = 0
    scvi.model.SCVI.setup_anndata(counts, batch_key="batch")
    model = scvi.model.SCVI(counts, n_latent=5)
    model.train(max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False)
    counts.obsm["X_scVI"] = model.get_latent_representation()
    refine(counts, "batch", use_rep="X_scVI", target="moment", rounds=None)
    refined = counts.obsm["X_scVI_batchprox"]
    assert refined.dtype == counts.obsm["X_scVI"].dtype == np.float32
    # The fixed point of the moment target: both batches have the same mean.
    first, second = (refined[counts.obs["batch"] == name].mean(0) for name in ("s1", "s2"))
    np.testing.assert_allclose(first, second, atol=0.02)
    counts.write_h5ad(tmp_path / "cells.h5ad")
    again = ad.read_h5ad(tmp_path / "cells.h5ad")
    np.testing.assert_array_equal(again.obsm["X_scVI_batchprox"], refined)


@pytest.mark.bench
@pytest.mark.filterwarnings("ignore")  # of other packages
def test_the_benchmarker_of_scib_metrics(adata):
    from scib_metrics.benchmark import BatchCorrection, Benchmarker, BioConservation

    refine(adata, "batch", target="population")
    bio = BioConservation(
        isolated_labels=False, nmi_ari_cluster_labels_kmeans=True, silhouette_label=False,
        clisi_knn=False,
    )  # fmt: skip
    batch = BatchCorrection(
        bras=False, ilisi_knn=True, kbet_per_label=False, graph_connectivity=True,
        pcr_comparison=False,
    )  # fmt: skip
    benchmark = Benchmarker(
        adata, "batch", "cell_type", ["X_pca", "X_pca_batchprox"], bio, batch,
        pre_integrated_embedding_obsm_key="X_pca", progress_bar=False,
    )  # fmt: skip
    benchmark.benchmark()
    found = benchmark.get_results(min_max_scale=False).loc[["X_pca", "X_pca_batchprox"]]
    mixing = found["iLISI"].astype(float)
    assert mixing["X_pca_batchprox"] > mixing["X_pca"] + 0.3
    assert float(found.loc["X_pca_batchprox", "KMeans ARI"]) > 0.9
