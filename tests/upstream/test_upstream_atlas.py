"""An atlas accepts only cells that its upstream embedded."""

import os
from pathlib import Path

import anndata as ad
import pytest

from scbatchprox import Atlas
from scbatchprox.upstream import PCAUpstream
from upstream_data import K, store


@pytest.fixture(scope="module", params=[".h5ad", ".zarr"])
def files(request, cells, pca, tmp_path_factory):
    """Return a file for each batch, embedded by the PCA and by another one."""
    other = PCAUpstream.fit(cells, n_components=K, genes="all")
    folder, suffix = tmp_path_factory.mktemp("files"), request.param
    for name in "abc":
        adata = cells[cells.obs["batch"] == name].copy()
        del adata.obsm["X_pca"]
        pca.embed(adata).write(adata)
        other.embed(adata).write(adata, "X_other")
        adata.obsm["X_plain"] = adata.obsm["X_pca"]
        store(adata, folder / f"{name}{suffix}")
    return {name: folder / f"{name}{suffix}" for name in "abc"}


class TestAtlas:
    @pytest.mark.parametrize("how", ["object", "file", "fingerprint", "nothing", "text"])
    def test_another_upstream_is_refused(self, files, pca, tmp_path, how):
        pca.save(tmp_path / "u.safetensors")
        said = {"object": pca, "file": tmp_path / "u.safetensors", "fingerprint": pca.fingerprint,
                "nothing": None, "text": "PCA of May"}[how]  # fmt: skip
        atlas = Atlas.create(tmp_path / "lung", upstream=said, target="moment")
        assert atlas.upstream == {"nothing": None, "text": said}.get(how, pca.fingerprint)
        atlas.add_file(files["a"], "batch")
        assert atlas.entries()[-1]["source"]["upstream"] == pca.fingerprint
        before = (tmp_path / "lung" / "atlas.json").read_bytes()
        with pytest.raises(
            ValueError, match=f"upstream of the atlas, '{pca.fingerprint}', found 'pca:"
        ):
            atlas.add_file(files["b"], "batch", use_rep="X_other")
        assert (tmp_path / "lung" / "atlas.json").read_bytes() == before
        atlas.add_file(files["b"], "batch")
        atlas.add_file(
            files["c"], "batch", use_rep="X_plain"
        )  # an embedding without a record is not checked
        assert "upstream" not in atlas.entries()[-1]["source"]
        assert atlas.model.batches_.tolist() == ["a", "b", "c"]

    def test_first_arrival_is_checked_too(self, files, pca, tmp_path):
        atlas = Atlas.create(tmp_path / "lung", upstream=pca, target="moment")
        with pytest.raises(ValueError, match="Expected the upstream of the atlas"):
            atlas.add_file(files["a"], "batch", use_rep="X_other")
        with pytest.raises(ValueError, match="Expected the upstream of the atlas"):
            atlas.add_file(files["a"], "batch", upstream="PCA of May")
        atlas.add_file(files["a"], "batch", upstream=pca)

    def test_a_forgotten_batch_does_not_fix_the_upstream(self, files, tmp_path):
        atlas = Atlas.create(tmp_path / "lung", target="moment")
        atlas.add_file(files["a"], "batch")
        atlas.forget("a")
        atlas.add_file(files["b"], "batch", use_rep="X_other")
        with pytest.raises(ValueError, match="Expected the upstream of the atlas"):
            atlas.add_file(files["c"], "batch")
        atlas.rollback(2)
        with pytest.raises(ValueError, match="Expected the upstream of the atlas"):
            atlas.add_file(files["c"], "batch", use_rep="X_other")
        atlas.add_file(files["c"], "batch")

    def test_a_copy_of_the_file_is_the_same_upstream(self, files, pca, tmp_path):
        pca.save(tmp_path / "u.safetensors")
        atlas = Atlas.create(
            tmp_path / "lung", upstream=tmp_path / "u.safetensors", target="moment"
        )
        pca.save(tmp_path / "copy.safetensors")
        atlas.add_file(files["a"], "batch", upstream=tmp_path / "copy.safetensors")
        assert atlas.version == 2


@pytest.mark.skipif(
    not (Path(os.environ.get("SCBATCHPROX_DATA", "/nowhere")) / "sc_mixology.h5ad").exists(),
    reason="needs sc_mixology.h5ad in the folder that SCBATCHPROX_DATA names",
)
def test_five_arrivals_of_real_counts(tmp_path):
    """Known cell lines by four protocols: projected cells are next to cells of the same line."""
    from sklearn.neighbors import KNeighborsClassifier

    cells = ad.read_h5ad(Path(os.environ["SCBATCHPROX_DATA"]) / "sc_mixology.h5ad")
    batch, line = cells.obs["batch"].astype(str), cells.obs["cell_type"].astype(str)
    first = (batch == "sc_10x").to_numpy()
    pca = PCAUpstream.fit(cells[first])
    atlas = Atlas.create(tmp_path / "atlas", upstream=pca, target="moment")
    near = KNeighborsClassifier(15).fit(pca.embed(cells[first]).Z, line[first])
    atlas.add(pca.embed(cells[first]).Z, batch[first])
    known = line.isin(line[first]).to_numpy()
    for name in sorted(set(batch[~first])):
        arriving = (batch == name).to_numpy()
        found = pca.embed(cells[arriving])
        assert found.report.missing == ()
        assert (
            atlas.add(found.Z, batch[arriving], upstream=pca).judgement["level"].item() == "close"
        )
        both = known[arriving]
        assert (near.predict(found.Z[both]) == line[arriving & known]).mean() > 0.95
