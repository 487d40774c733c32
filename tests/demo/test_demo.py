import anndata as ad
import numpy as np

from scbatchprox import BatchProx
from scbatchprox.demo import refinement as demo


def test_demo_writes_what_it_says(tmp_path, capsys):
    scores = demo.run(tmp_path, data="balanced2")
    printed = capsys.readouterr().out
    for name in ("before", "after"):
        assert f"{name:<7} macro-F1 {scores[f'macro_f1_{name}']:.4f} ±" in printed
        assert f"iLISI {scores[f'ilisi_{name}']:.3f}" in printed
    assert scores["ilisi_after"] > scores["ilisi_before"]
    assert 0.5 < scores["macro_f1_before"] <= 1.0
    adata = ad.read_h5ad(tmp_path / "balanced2_refined.h5ad")
    model = BatchProx(target="population")
    expected = model.fit_transform(adata.obsm["X_pca"], batch=adata.obs["batch"])
    np.testing.assert_array_equal(adata.obsm["X_pca_batchprox"], expected)
    assert (tmp_path / "balanced2_before_after.png").stat().st_size > 10_000
