"""An atlas with the population target."""

import anndata as ad
import numpy as np
import pytest

from data import in_memory
from population_models import BOTH, assert_bits, assert_same, grown, some_of, write_h5ad
from scbatchprox import Atlas, BatchProx, Moments


class TestAtlas:
    @pytest.fixture
    def near(self, grow):
        return grow[0], np.array(["a", "b", "c", "d", "e"])[grow[1]]

    @BOTH
    def test_is_a_model_on_disk(self, near, target, tmp_path):
        atlas = Atlas.create(tmp_path / "atlas", target=target)
        model = BatchProx(target=target)
        for batches, policy in ((["a", "b"], "frozen"), ("c", "frozen"), ("d", "refit")):
            Z, batch = some_of(near, *batches)
            atlas.add(Z, batch, policy=policy, force=True)
            model.partial_fit(Z, batch=batch, policy=policy)
            assert_bits(Atlas(tmp_path / "atlas").model, model)
        atlas.forget("b")
        model.forget("b")
        assert_bits(Atlas(tmp_path / "atlas").model, model)
        version = atlas.version
        atlas.rollback(3)
        assert atlas.version == version + 1
        assert_bits(Atlas(tmp_path / "atlas").model, grown(near, target, ["a", "b"], ["c"]))

    def test_more_cells_of_a_known_batch(self, near, tmp_path):
        atlas = Atlas.create(tmp_path / "atlas", target="population")
        atlas.add(*some_of(near, "a", "b"), force=True)
        before = atlas.model
        Z, batch = some_of(near, "a")
        with pytest.raises(ValueError, match="found 'a' in the atlas already"):
            atlas.add(Z, batch)
        atlas.add(Z, batch, merge=True, force=True)
        np.testing.assert_array_equal(atlas.model.shift_, before.shift_)
        assert atlas.model.moments_.n.tolist() == (before.moments_.n * [2, 1]).tolist()

    def test_refit_on_forgetting_and_a_dry_run(self, near, tmp_path):
        atlas = Atlas.create(tmp_path / "atlas", target="population")
        atlas.add(*some_of(near, "a", "b"))
        arrival = atlas.add(*some_of(near, "c"), dry_run=True)
        assert arrival.version is None
        assert arrival.judgement.index.tolist() == ["c"]
        assert atlas.model.batches_.tolist() == ["a", "b"]
        atlas.add(*some_of(near, "c"), force=True)
        atlas.forget("a", policy="refit")
        assert_same(atlas.model, grown(near, "population", ["b", "c"]))

    def test_files_arrive_and_are_refined(self, near, tmp_path):
        atlas = Atlas.create(tmp_path / "atlas", target="population")
        for batches in (["a", "b"], ["c"]):
            Z, batch = some_of(near, *batches)
            write_h5ad(tmp_path / "cells.h5ad", Z, batch)
            atlas.add_file(tmp_path / "cells.h5ad", "batch", force=True)
        model = grown(near, "population", ["a", "b"], ["c"])
        np.testing.assert_allclose(atlas.model.shift_, model.shift_, atol=1e-10)
        atlas.apply_file(tmp_path / "cells.h5ad", "batch", out=tmp_path / "out.h5ad")
        np.testing.assert_allclose(
            ad.read_h5ad(tmp_path / "out.h5ad").obsm["X_pca_batchprox"],
            model.transform(Z, batch=batch),
            atol=1e-9,
        )

    def test_populations_are_enough(self, near, tmp_path):
        """What a site sends instead of cells."""
        Z, batch = some_of(near, "a", "b")
        summary = BatchProx(target="population").describe(in_memory(Z, batch))
        atlas = Atlas.create(tmp_path / "atlas", target="population")
        atlas.add(summary)
        assert_bits(atlas.model, grown(near, "population", ["a", "b"]))
        with pytest.raises(
            TypeError, match="Expected moments of populations .*found moments of whole"
        ):
            atlas.add(Moments.of(*some_of(near, "c")))
        assert atlas.version == 2
