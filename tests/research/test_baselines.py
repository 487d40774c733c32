"""Baselines: embeddings and methods that refinements are compared with."""

import logging
import os
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from research.baselines import METHODS, Recipe, batchprox, embed, harmony, shuffled
from research.baselines.embeddings import query_cells
from research.datasets import Dataset
from scbatchprox import BatchProx, MomentTarget
from scbatchprox.demo import Composition, simulate
from scbatchprox.errors import BadKey, BadValue, MissingExtra


@pytest.fixture(scope="module")
def cells():
    table = Composition(
        "t", ("a", "b", "c"), ("T", "B", "NK"), np.array([[60, 40, 20], [30, 30, 0], [9, 20, 10]])
    )
    adata = simulate(table, n_genes=80, n_components=5)
    return Dataset("t", adata, True, "X_pca")


class TestMethods:
    def test_harmony_is_harmonypys_for_any_shape(self, rng):
        pytest.importorskip("harmonypy")
        # With as many cells as coordinates, harmonypy takes the transpose. A coordinate that is zero for
        # all cells changes no distance, and makes the shape unambiguous.
        Z = rng.normal(size=(90, 90))
        Z[:45] += 1.0
        batch = np.repeat(["a", "b"], 45)
        with_zeros = harmony(np.hstack([Z, np.zeros((90, 1))]), batch)
        np.testing.assert_allclose(harmony(Z, batch), with_zeros[:, :90], atol=1e-6)

    @pytest.mark.bench
    def test_harmony_reproduces_harmonypys_reference_output(self):
        adata = _real("pbmc_3500.h5ad")
        Z, reference = adata.obsm["X_pca"], adata.obsm["X_harmony_reference"]
        batch = adata.obs["batch"]

        def agreement(found):
            return min(np.corrcoef(found[:, j], reference[:, j])[0, 1] for j in range(Z.shape[1]))

        assert agreement(Z) < 0.75  # else the agreement below would mean little
        # The reference was made with a ridge penalty of 1; harmonypy 2 estimates it.
        assert agreement(harmony(Z, batch, lamb=1.0)) > 0.99
        assert agreement(harmony(Z, batch)) > 0.95

    @pytest.mark.bench
    def test_harmony_says_nothing(self, rng, capfd, caplog):
        with caplog.at_level(logging.DEBUG):
            harmony(rng.normal(size=(100, 3)), np.repeat(["a", "b"], 50))
        assert not caplog.records
        assert capfd.readouterr() == ("", "")

    def test_harmony_names_the_extra(self, rng, monkeypatch):
        monkeypatch.setitem(sys.modules, "harmonypy", None)
        with pytest.raises(MissingExtra, match=r"scbatchprox\[bench\]"):
            harmony(rng.normal(size=(10, 2)), np.repeat(["a", "b"], 5))

    def test_batchprox_is_the_model(self, cells):
        Z, batch = cells.adata.obsm["X_pca"], cells.adata.obs["batch"]
        for params in (
            {},
            {"rounds": None},
            {"mu": 0.0, "target": MomentTarget(variance_matching=False)},
        ):
            expected = BatchProx(**{"target": "moment"} | params).fit_transform(Z, batch=batch)
            np.testing.assert_array_equal(batchprox(**params)(Z, batch, 3), expected)

    def test_shuffled_labels_keep_sizes_and_tell_nothing(self):
        batch = np.repeat(["a", "b", "c"], [500, 300, 200])
        seen = []
        control = shuffled(lambda Z, labels, seed: seen.append((labels, seed)))
        for seed in (0, 0, 1):
            control(np.zeros((1000, 1)), pd.Series(batch), seed)
        (one, _), (same, _), (other, seed) = seen
        np.testing.assert_array_equal(one, same)
        assert seed == 1
        for labels in (one, other):
            pd.testing.assert_frame_equal(
                *(pd.Series(x).value_counts().to_frame() for x in (labels, batch))
            )
            assert (labels == batch).mean() == pytest.approx(0.38, abs=0.05)  # as by chance
        assert (one != other).any()

    def test_the_seed_is_of_adams_shuffling(self, rng):
        Z, batch = rng.normal(size=(700, 4)), np.repeat(["a", "b"], 350)  # more than a mini-batch
        one, again, two = (METHODS["batchprox_adam"](Z, batch, seed) for seed in (1, 1, 2))
        np.testing.assert_array_equal(one, again)
        assert np.abs(one - two).max() > 1e-6

    @pytest.mark.parametrize("name", METHODS)
    def test_methods_do_not_change_their_input(self, name, cells):
        if "harmony" in name:
            pytest.importorskip("harmonypy")
        Z, batch = cells.adata.obsm["X_pca"].copy(), cells.adata.obs["batch"]
        found = METHODS[name](Z, batch, 0)
        np.testing.assert_array_equal(Z, cells.adata.obsm["X_pca"])
        assert found.shape == Z.shape
        assert np.isfinite(found).all()


class TestEmbeddings:
    def test_pca_equals_a_singular_value_decomposition(self, cells):
        X = np.asarray(cells.adata.X.todense(), float)
        logged = np.log1p(1e4 * X / X.sum(1, keepdims=True))
        U, s, _ = np.linalg.svd(logged - logged.mean(0), full_matrices=False)
        found = embed(cells, "pca", Recipe(n_components=4))
        assert found.seconds > 0
        np.testing.assert_allclose(np.abs(found.Z), np.abs(U[:, :4] * s[:4]), rtol=1e-3, atol=1e-3)

    def test_a_small_panel_has_fewer_components(self, cells):
        few = Dataset("few", cells.adata[:, :12].copy(), True, None)
        assert embed(few, "pca", Recipe(n_components=40)).Z.shape[1] == 11

    def test_stored_is_what_came_with_the_data(self, cells):
        found = embed(cells, "stored", Recipe())
        np.testing.assert_array_equal(found.Z, cells.adata.obsm["X_pca"])
        assert np.isnan(found.seconds)

    def test_the_label_control_depends_on_types_and_not_on_batches(self, cells):
        Z = embed(cells, "labels", Recipe(seed=1)).Z
        types = cells.adata.obs["cell_type"].cat
        assert Z.shape == (cells.adata.n_obs, 3)
        np.testing.assert_array_equal(Z.argmax(1), types.codes)
        groups = [types.codes.to_numpy(), cells.adata.obs["batch"].cat.codes.to_numpy()]
        within = pd.DataFrame(Z).groupby(groups).mean()
        assert within.groupby(level=0).std().abs().to_numpy().max() < 0.1

    def test_the_random_control_is_normal_and_seeded(self, cells):
        one, two = (embed(cells, "random", Recipe(n_components=30, seed=s)).Z for s in (1, 2))
        np.testing.assert_array_equal(
            one, embed(cells, "random", Recipe(n_components=30, seed=1)).Z
        )
        assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 0.1
        assert one.shape == (cells.adata.n_obs, 30)
        assert abs(one.mean()) < 0.1
        assert abs(one.std() - 1) < 0.1

    def test_unknown_upstreams_and_missing_counts_are_one_sentence(self, cells):
        with pytest.raises(BadKey, match="available: 'pca'"):
            embed(cells, "umap", Recipe())
        bare = Dataset("bare", cells.adata, False, None)
        with pytest.raises(BadValue, match="Expected counts in bare"):
            embed(bare, "pca", Recipe())
        with pytest.raises(BadValue, match="Expected an embedding in bare"):
            embed(bare, "stored", Recipe())

    def test_the_smallest_batch_is_scarches_query(self):
        batch = pd.Series(
            pd.Categorical(["a"] * 5 + ["b"] * 3 + ["c"] * 4, ["c", "b", "a", "unused"])
        )
        np.testing.assert_array_equal(query_cells(batch, None), batch == "b")
        np.testing.assert_array_equal(query_cells(batch, ("a",)), batch != "a")
        for wrong in ((), ("a", "b", "c"), ("a", "x"), ("unused",)):
            with pytest.raises(BadValue, match="some but not all batches"):
                query_cells(batch, wrong)

    @pytest.mark.scvi
    def test_scarches_does_not_move_the_reference(self, cells):
        pytest.importorskip("scvi")
        recipe = Recipe(scvi_epochs=2, reference=("a", "b"))
        found = embed(cells, "scarches", recipe)
        in_reference = cells.adata.obs["batch"].isin(["a", "b"]).to_numpy()
        # Only the reference, without the third batch: surgery must not have moved a cell of it.
        alone = cells.adata[in_reference].copy()
        alone.obs["batch"] = alone.obs["batch"].cat.remove_unused_categories()
        again = embed(
            Dataset(
                "r", ad.concat([alone, cells.adata[~in_reference][:10]], merge="same"), True, None
            ),
            "scarches",
            recipe,
        )
        np.testing.assert_allclose(again.Z[: len(alone)], found.Z[in_reference], atol=1e-5)
        assert found.before > 0
        assert found.seconds > 0

    @pytest.mark.scvi
    def test_scvi_follows_the_seed(self, cells):
        pytest.importorskip("scvi")
        one, again, two = (
            embed(cells, "scvi", Recipe(scvi_epochs=1, seed=seed)).Z for seed in (1, 1, 2)
        )
        np.testing.assert_array_equal(one, again)
        assert np.abs(one - two).max() > 1e-3


def _real(name):
    folder = os.environ.get("SCBATCHPROX_DATA")
    if not folder or not (Path(folder) / name).exists():
        pytest.skip(f"needs {name} in the folder that SCBATCHPROX_DATA names")
    pytest.importorskip("harmonypy")
    return ad.read_h5ad(Path(folder) / name)
