"""scVI references: what surgery changes and what it keeps; no global state changes."""

import logging
import os
import random
import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scbatchprox import Atlas
from scbatchprox.demo import Composition, simulate
from scbatchprox.errors import InputError, MissingExtra
from scbatchprox.upstream import PCAUpstream, ScviUpstream, load
from scbatchprox.upstream.on_disk import embed_file


def reference_of(cells, *batches):
    return cells[cells.obs["batch"].isin(batches)].copy()


@pytest.fixture(scope="module")
def cells():
    table = Composition("t", ("a", "b", "c", "d"), ("T", "B"), np.full((4, 2), 33))
    cells = simulate(table, n_genes=40, n_components=3, seed=2)
    cells.obs["batch"] = cells.obs["batch"].astype(str)
    return cells


@pytest.fixture(scope="module")
def scvi():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other packages, during import
        return pytest.importorskip("scvi")


@pytest.fixture(scope="module")
def reference(scvi, cells):
    return ScviUpstream.fit(reference_of(cells, "a", "b"), "batch", n_latent=4, max_epochs=3)


@pytest.fixture(scope="module")
def grown(reference, cells):
    return reference.surgery(reference_of(cells, "c"), max_epochs=4)


def test_without_scvi(cells, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "scvi", None)
    with pytest.raises(MissingExtra, match=r"scbatchprox\[scvi\]"):
        ScviUpstream.fit(reference_of(cells, "a"), "batch", max_epochs=1)


@pytest.mark.scvi
@pytest.mark.usefixtures("scvi")
class TestReference:
    def test_is_scvis_own_latent_space(self, scvi, reference, cells):
        """The weights are loaded into scvi-tools' own model, which gives the same coordinates."""
        import torch

        adata = reference_of(cells, "a", "b")
        plain = ad.AnnData(adata.X.copy(), obs=adata.obs[["batch"]].copy(), var=adata.var[[]])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scvi.model.SCVI.setup_anndata(plain, batch_key="batch")
            model = scvi.model.SCVI(
                plain, n_latent=4, encode_covariates=True, use_layer_norm="both", use_batch_norm="none"
            )  # fmt: skip
            state = {k: torch.tensor(v) for k, v in reference.weights.items()}
            model.module.load_state_dict(state)
            model.is_trained_ = True
            model.module.eval()
            expected = model.get_latent_representation()
        found = reference.embed(adata)
        np.testing.assert_allclose(found.Z, expected, atol=1e-5)
        assert found.Z.std(0).min() > 1e-3
        assert found.report.missing == ()

    def test_training_moves_the_weights(self, reference, cells):
        more = ScviUpstream.fit(reference_of(cells, "a", "b"), "batch", n_latent=4, max_epochs=6)
        assert more.fingerprint != reference.fingerprint
        name = "z_encoder.mean_encoder.weight"
        assert np.abs(more.weights[name] - reference.weights[name]).max() > 1e-4

    def test_seed_decides(self, reference, cells):
        adata = reference_of(cells, "a", "b")
        again = ScviUpstream.fit(adata, "batch", n_latent=4, max_epochs=3)
        assert again.fingerprint == reference.fingerprint
        other = ScviUpstream.fit(adata, "batch", n_latent=4, max_epochs=3, seed=1)
        assert other.fingerprint != reference.fingerprint

    def test_order_storage_and_blocks_do_not_matter(self, reference, cells, rows_at_a_time):
        adata = reference_of(cells, "b")
        expected = reference.embed(adata).Z
        extra = ad.AnnData(
            np.full((adata.n_obs, 1), 7.0), obs=adata.obs, var=pd.DataFrame(index=["x"])
        )
        other = ad.concat([extra, adata[:, ::-1]], axis=1, merge="same")
        np.testing.assert_allclose(reference.embed(other).Z, expected, atol=1e-6)
        rows_at_a_time(10, n_genes=40)
        np.testing.assert_allclose(reference.embed(adata).Z, expected, atol=1e-6)

    def test_file(self, grown, cells, tmp_path):
        grown.save(tmp_path / "u.safetensors")
        for found in (
            load(tmp_path / "u.safetensors"),
            ScviUpstream.load(tmp_path / "u.safetensors"),
        ):
            assert found.fingerprint == grown.fingerprint
            assert found.batches == ("a", "b", "c")
            adata = reference_of(cells, "b", "c")
            np.testing.assert_array_equal(found.embed(adata).Z, grown.embed(adata).Z)
        with pytest.raises(ValueError, match="Expected a saved PCA, found .* .'scvi'."):
            PCAUpstream.load(tmp_path / "u.safetensors")

    def test_choice_of_genes(self, cells):
        adata = reference_of(cells, "a", "b")
        adata.var["highly_variable"] = np.arange(40) % 2 == 0
        found = ScviUpstream.fit(adata, "batch", max_epochs=1, genes="flagged")
        assert found.genes.tolist() == [f"gene{g}" for g in range(0, 40, 2)]
        assert found.embed(adata).Z.shape == (132, 10)

        X = adata.X.toarray()
        X[np.arange(132) != 7, ::2] = 0
        adata.X = sp.csr_matrix(X)
        with pytest.raises(ValueError, match="in 131 cells, the first in row 0; filter out"):
            ScviUpstream.fit(adata, "batch", max_epochs=1, genes="flagged")

    def test_scvis_defaults(self, cells):
        """With scVI's defaults the encoder does not use batches, so new batches are accepted."""
        found = ScviUpstream.fit(
            reference_of(cells, "a", "b"), "batch", max_epochs=1, for_surgery=False
        )
        assert any("running_mean" in name for name in found.weights)  # batch norm
        adata = reference_of(cells, "c")
        Z = found.embed(adata).Z
        adata.obs["batch"] = "a"
        np.testing.assert_array_equal(found.embed(adata).Z, Z)
        with pytest.raises(ValueError, match="fitted with for_surgery=False"):
            found.surgery(adata)


@pytest.mark.scvi
@pytest.mark.usefixtures("scvi")
class TestSurgery:
    def test_old_cells_get_exactly_the_same_coordinates(self, reference, grown, cells):
        adata = reference_of(cells, "a", "b")
        np.testing.assert_array_equal(grown.embed(adata).Z, reference.embed(adata).Z)
        again = grown.surgery(reference_of(cells, "d"), max_epochs=2)
        assert again.batches == ("a", "b", "c", "d")
        known = reference_of(cells, "a", "b", "c")
        np.testing.assert_array_equal(again.embed(known).Z, grown.embed(known).Z)

    def test_only_weights_of_the_new_batch_are_trained(self, reference, grown, cells):
        untrained = reference.surgery(reference_of(cells, "c"), max_epochs=1)
        name = "z_encoder.encoder.fc_layers.Layer 0.0.weight"
        old = reference.weights[name]
        assert grown.weights[name].shape == (old.shape[0], old.shape[1] + 1)
        np.testing.assert_array_equal(grown.weights[name][:, :-1], old)
        assert np.abs(grown.weights[name][:, -1] - untrained.weights[name][:, -1]).max() > 1e-4

    def test_a_reference_of_one_batch(self, cells):
        adata = reference_of(cells, "a")
        one = ScviUpstream.fit(adata, "batch", n_latent=4, max_epochs=2)
        two = one.surgery(reference_of(cells, "b"), max_epochs=3)
        np.testing.assert_array_equal(two.embed(adata).Z, one.embed(adata).Z)
        other = reference_of(cells, "b")
        as_a = other.copy()
        as_a.obs["batch"] = "a"
        assert np.abs(two.embed(other).Z - two.embed(as_a).Z).max() > 1e-3

    def test_the_fingerprint_is_the_references(self, reference, grown):
        assert grown.fingerprint == reference.fingerprint
        assert reference.fingerprint.startswith("scvi:")

    def test_seed_decides(self, reference, grown, cells):
        adata = reference_of(cells, "c")
        same = reference.surgery(adata, max_epochs=4)
        np.testing.assert_array_equal(same.embed(adata).Z, grown.embed(adata).Z)
        other = reference.surgery(adata, max_epochs=4, seed=5)
        assert np.abs(other.embed(adata).Z - grown.embed(adata).Z).max() > 1e-6

    def test_missing_genes_are_zeros_as_scvi_fills_them(self, scvi, reference, cells):
        adata = reference_of(cells, "b")[:, 5:]
        found = reference.embed(adata)
        assert found.report.missing == tuple(f"gene{g}" for g in range(5))
        assert "35 of the reference's 40 genes were found; the other 5" in str(found.report)
        assert "filled with zeros" in str(found.report)
        model = reference._network()
        padded = scvi.model.SCVI.prepare_query_anndata(adata.copy(), model, inplace=False)
        np.testing.assert_array_equal(found.Z, reference.embed(padded).Z)
        assert padded.var_names.tolist() == reference.genes.tolist()
        assert reference.surgery(
            renamed(adata.copy(), "c"), max_epochs=1
        ).batches == ("a", "b", "c")  # fmt: skip

    def test_bad_input(self, reference, cells):
        for wrong, sentence in (
            (lambda: reference.embed(reference_of(cells, "b", "c")), "found new 'c'; add them by surgery"),
            (lambda: reference.surgery(reference_of(cells, "b", "c")), "new batches only, found 'b'"),
            (lambda: reference.embed(reference_of(cells, "a")[:, :19]), r"50% of the 40 genes .* found 19"),
            (lambda: reference.surgery(reference_of(cells, "c")[:, :19]), r"found 19 \(48%\) among 19 genes"),
            (lambda: reference.embed(logged(reference_of(cells, "a"))), "Expected counts"),
            (lambda: reference.embed(empty(reference_of(cells, "a"))), "in every cell, found none"),
            (lambda: ScviUpstream.fit(cells, "batch", max_epochs=0), "Expected max_epochs"),
            (lambda: reference.surgery(reference_of(cells, "c"), max_epochs=2.5), "Expected max_epochs"),
            (lambda: ScviUpstream.fit(cells, "no"), "no column 'no'"),
            (lambda: reference.embed(reference_of(cells, "a")[:0]), "Expected cells and genes"),
        ):  # fmt: skip
            with pytest.raises(InputError, match=sentence):
                wrong()

    def test_missing_labels(self, reference, cells):
        adata = reference_of(cells, "a")
        adata.obs["batch"] = [None, *["a"] * (adata.n_obs - 1)]
        with pytest.raises(ValueError, match="a batch label for every cell, found 1 of 66 without"):
            reference.embed(adata)


def renamed(adata, batch):
    adata.obs["batch"] = batch
    return adata


def logged(adata):
    adata.X = sp.csr_matrix(np.log1p(adata.X.toarray()))
    return adata


def empty(adata):
    X = adata.X.toarray()
    X[3] = 0
    adata.X = sp.csr_matrix(X)
    return adata


@pytest.mark.scvi
@pytest.mark.usefixtures("scvi")
class TestSideEffects:
    def test_no_global_state_changes(self, scvi, reference, cells, capfd, tmp_path, monkeypatch):
        import torch

        monkeypatch.chdir(tmp_path)

        def state():
            loggers = ("lightning.pytorch", "lightning.fabric", "scvi")
            return (
                random.getstate(),
                [str(part) for part in np.random.get_state()],  # noqa: NPY002
                torch.get_rng_state().tolist(),
                scvi.settings.seed,
                [logging.getLogger(name).level for name in loggers],
                list(warnings.filters),
                {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
                torch.get_num_threads(),
                torch.are_deterministic_algorithms_enabled(),
            )

        def kept():
            """Return the cells that scvi-tools' class keeps."""
            model = scvi.model.SCVI
            by_model = [len(held) for held in model._per_instance_manager_store.values()]
            return len(model._setup_adata_manager_store), sum(by_model)

        before, cells_kept = state(), kept()
        adata = reference_of(cells, "a", "b")
        columns, keys = list(adata.obs), list(adata.uns)
        fitted = ScviUpstream.fit(adata, "batch", n_latent=4, max_epochs=1)
        fitted.surgery(reference_of(cells, "c"), max_epochs=1).embed(adata)
        assert state() == before
        assert capfd.readouterr() == ("", "")
        assert os.listdir(tmp_path) == []
        assert (list(adata.obs), list(adata.uns)) == (columns, keys)
        assert kept() == cells_kept


@pytest.mark.scvi
@pytest.mark.usefixtures("scvi")
def test_an_atlas_of_scvi_grows_by_surgery(reference, grown, cells, tmp_path):
    """Cells embedded after surgery belong to the atlas' upstream; cells of another reference do not."""
    for name in "abc":
        reference_of(cells, name).write_h5ad(tmp_path / f"{name}.h5ad")
    grown.save(tmp_path / "grown.safetensors")
    atlas = Atlas.create(tmp_path / "atlas", upstream=reference, target="moment")
    for name in "ab":
        embed_file(tmp_path / f"{name}.h5ad", reference)
        atlas.add_file(tmp_path / f"{name}.h5ad", "batch", use_rep="X_scvi", force=True)
    embed_file(tmp_path / "c.h5ad", grown)
    atlas.add_file(
        tmp_path / "c.h5ad", "batch", use_rep="X_scvi", upstream=tmp_path / "grown.safetensors",
        force=True,
    )  # fmt: skip
    assert atlas.model.batches_.tolist() == ["a", "b", "c"]
    other = ScviUpstream.fit(reference_of(cells, "c", "d"), "batch", n_latent=4, max_epochs=1)
    reference_of(cells, "d").write_h5ad(tmp_path / "d.h5ad")
    embed_file(tmp_path / "d.h5ad", other)
    with pytest.raises(ValueError, match="Expected the upstream of the atlas"):
        atlas.add_file(tmp_path / "d.h5ad", "batch", use_rep="X_scvi", force=True)
