"""Files of upstreams, and files with counts that an upstream embeds."""

import json
import os
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from safetensors import safe_open

from scbatchprox import BatchProx
from scbatchprox.errors import InputError
from scbatchprox.io import store as saved
from scbatchprox.upstream import PCAUpstream, load
from scbatchprox.upstream.on_disk import embed_file, read_counts
from upstream_data import K, dense, logged, renamed, restore, store, with_counts, without_counts


class TestFile:
    def test_is_the_same_after_loading(self, pca, new, tmp_path):
        pca.save(tmp_path / "u.safetensors")
        for found in (
            PCAUpstream.load(tmp_path / "u.safetensors"),
            load(tmp_path / "u.safetensors"),
        ):
            assert isinstance(found, PCAUpstream)
            assert found.fingerprint == pca.fingerprint
            np.testing.assert_array_equal(found.embed(new).Z, pca.embed(new).Z)

    def test_can_be_read_without_this_package(self, pca, new, tmp_path):
        pca.save(tmp_path / "u.safetensors")
        with safe_open(tmp_path / "u.safetensors", framework="np") as file:
            at = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = file.metadata()
            params = json.loads(header["params"])
        assert (header["kind"], params["method"]) == ("upstream", "pca")
        X = dense(new[:, params["genes"]])
        Z = (logged(X)[:, at["used"]] - at["mean"]) @ at["loadings"]
        np.testing.assert_allclose(Z, pca.embed(new).Z, atol=2e-5)

    @pytest.mark.parametrize("name", ["genes", "share", "used", "mean", "loadings", "variance"])
    def test_fingerprint_depends_on_every_array(self, pca, name):
        fields = {field: getattr(pca, field).copy() for field in vars(pca)}
        if name == "genes":
            fields[name][0] = "other"
        elif name == "used":
            fields[name] = fields[name][::-1].copy()
        else:
            fields[name].flat[1] = np.nextafter(fields[name].flat[1], 9)
        assert PCAUpstream(**fields).fingerprint != pca.fingerprint

    def test_other_files_are_refused(self, pca, tmp_path, rng):
        BatchProx(target="moment").fit(rng.normal(size=(20, 3))).save(
            tmp_path / "model.safetensors"
        )
        with pytest.raises(ValueError, match="Expected a saved upstream, found a saved 'model'"):
            load(tmp_path / "model.safetensors")
        with pytest.raises(FileNotFoundError, match="Expected a saved upstream, found no file"):
            load(tmp_path / "none.safetensors")
        pca.save(tmp_path / "u.safetensors")
        raw = (tmp_path / "u.safetensors").read_bytes()
        (tmp_path / "half.safetensors").write_bytes(raw[: len(raw) // 2])
        with pytest.raises(ValueError, match="damaged or of another kind"):
            load(tmp_path / "half.safetensors")
        found = saved.load(tmp_path / "u.safetensors", ("upstream",))
        params = found.params | {"method": "ica"}
        saved.save(tmp_path / "newer.safetensors", "upstream", found.tensors, found.batches, params)
        with pytest.raises(ValueError, match="one of the methods 'pca', 'scvi', found 'ica'"):
            load(tmp_path / "newer.safetensors")
        with pytest.raises(ValueError, match="Expected a saved PCA, found .* another method"):
            PCAUpstream.load(tmp_path / "newer.safetensors")


@pytest.fixture(params=[".h5ad", ".zarr"])
def suffix(request):
    return request.param


class TestOnDisk:
    @pytest.mark.parametrize("kind", ["csr", "csc", "dense"])
    def test_file_is_embedded_in_blocks(self, new, pca, tmp_path, suffix, kind, rows_at_a_time):
        rows_at_a_time(7)
        X = {"csr": new.X, "csc": new.X.tocsc(), "dense": new.X.toarray()}[kind]
        adata = with_counts(new[:, 4:], X[:, 4:])
        path = store(adata, tmp_path / f"new{suffix}")
        steps = []
        report = embed_file(path, pca, progress=lambda *step: steps.append(step))
        found = restore(path)
        expected = pca.embed(new[:, 4:])
        np.testing.assert_array_equal(found.obsm["X_pca"], expected.Z)
        assert steps[-1] == ("embed", 120, 120)
        assert len(steps) > (10 if kind != "dense" or suffix == ".h5ad" else 0)
        assert report == expected.report
        record = found.uns["X_pca"]
        assert record["upstream"] == pca.fingerprint
        assert record["genes"]["missing"].tolist() == ["gene0", "gene1", "gene2", "gene3"]
        assert found.obs["batch"].tolist() == new.obs["batch"].tolist()

    def test_copy_layer_and_name(self, new, pca, tmp_path, suffix):
        adata = new.copy()
        adata.layers["raw"] = adata.X
        adata.X = sp.csr_matrix(adata.X) * 0.5
        path = store(adata, tmp_path / f"new{suffix}")
        out = tmp_path / f"out{suffix}"
        embed_file(path, pca, layer="raw", key_added="X_lung", out=out)
        np.testing.assert_array_equal(restore(out).obsm["X_lung"], pca.embed(new).Z)
        assert restore(out).uns["X_lung"]["genes"]["missing"].tolist() == []
        assert "X_lung" not in restore(path).obsm

    def test_embeddings_of_other_programs_are_not_replaced(self, new, pca, first, tmp_path, suffix):
        adata = new.copy()
        theirs = adata.obsm["X_pca"].copy()
        path = store(adata, tmp_path / f"new{suffix}")
        with pytest.raises(
            ValueError, match="an unused name .* found 'X_pca' of another program in obsm"
        ):
            embed_file(path, pca)
        np.testing.assert_array_equal(restore(path).obsm["X_pca"], theirs)
        embed_file(path, pca, key_added="X_mine")
        other = PCAUpstream.fit(first, n_components=4, genes="all")
        embed_file(path, other, key_added="X_mine")  # our own embedding is replaced
        assert restore(path).obsm["X_mine"].shape == (120, 4)
        np.testing.assert_array_equal(restore(path).obsm["X_pca"], theirs)

    def test_bad_counts_leave_the_file_as_it_was(self, new, pca, tmp_path, rows_at_a_time):
        rows_at_a_time(7)
        path = store(without_counts(new, [100]), tmp_path / "new.h5ad")
        before = path.read_bytes()
        with pytest.raises(ValueError, match="the first in row 100"):
            embed_file(path, pca)
        assert path.read_bytes() == before
        assert sorted(os.listdir(tmp_path)) == ["new.h5ad"]

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"layer": "no"}, "a layer of new.h5ad, found no 'no'; available: none"),
            ({"key_added": "a/b"}, "Expected a plain name for the embedding, found 'a/b'"),
            ({"out": "out.zarr"}, "the same kind as the input .\\.h5ad., found 'out.zarr'"),
            ({"out": "no/out.h5ad"}, "Expected a folder outside of the input"),
            ({"min_shared": 2}, "Expected min_shared"),
        ],
    )
    def test_wrong_use(self, new, pca, tmp_path, monkeypatch, options, sentence):
        monkeypatch.chdir(tmp_path)
        path = store(with_counts(new, new.X), Path("new.h5ad"))
        before = path.read_bytes()
        with pytest.raises(InputError, match=sentence):
            embed_file(path, pca, **options)
        assert path.read_bytes() == before

    def test_kinds_without_counts(self, pca, tmp_path):
        (tmp_path / "x.csv").write_text("a,b\n1,2\n")
        with pytest.raises(ValueError, match="an .h5ad or .zarr file with counts, found 'x.csv'"):
            embed_file(tmp_path / "x.csv", pca)
        ad.AnnData(obs=pd.DataFrame(index=["a"])).write_h5ad(tmp_path / "no.h5ad")
        with pytest.raises(ValueError, match="Expected counts in X of no.h5ad, found none"):
            embed_file(tmp_path / "no.h5ad", pca)

    def test_several_files_are_one_reference(self, cells, first, tmp_path, suffix):
        parts = [cells[cells.obs["batch"] == name].copy() for name in "ab"]
        parts = parts[0][:, 5:].copy(), parts[1][:, :70].copy()
        paths = [store(part, tmp_path / f"{i}{suffix}") for i, part in enumerate(parts)]
        found = read_counts(paths, batch_key="batch")
        assert found.var_names.tolist() == [f"gene{g}" for g in range(5, 70)]
        assert found.obs["batch"].tolist() == ["a"] * 120 + ["b"] * 120
        one = PCAUpstream.fit(found, n_components=K, genes="all")
        rows = np.argsort(first.obs["batch"], kind="stable")
        other = PCAUpstream.fit(first[rows, 5:70], n_components=K, genes="all")
        assert one.fingerprint == other.fingerprint

    def test_files_without_shared_genes(self, new, tmp_path):
        a = store(new.copy(), tmp_path / "a.h5ad")
        b = store(renamed(new, {g: f"ENS{g}" for g in new.var_names}), tmp_path / "b.h5ad")
        with pytest.raises(ValueError, match="genes that all 2 files have, found none"):
            read_counts([a, b])
        c = store(renamed(new, {"gene1": "gene0"}), tmp_path / "c.h5ad")
        with pytest.raises(ValueError, match="found 'gene0' more than once in c.h5ad"):
            read_counts([a, c])
        with pytest.raises(ValueError, match="at least one file"):
            read_counts([])
