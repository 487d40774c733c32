"""Growing atlases: batches are added, merged, forgotten, and rolled back."""

import numpy as np
import pytest

from atlas_cells import NAMES, assert_same_model, content, fitted, of
from scbatchprox import Atlas, BatchProx, Moments, MomentTarget


class TestGrowing:
    def test_is_empty_at_first(self, path):
        atlas = Atlas.create(path, rounds=None, mu=0.01, target="moment")
        assert atlas.model is None
        assert atlas.version == 1
        assert atlas.params["rounds"] is None
        assert sorted(content(path)) == ["atlas.json"]

    @pytest.mark.parametrize("options", [{}, {"rounds": None, "target": MomentTarget(False)}])
    def test_first_arrival_is_a_fit(self, path, c, options):
        atlas = Atlas.create(path, **{"target": "moment"} | options)
        arrival = atlas.add(*of(c, "a", "b"))
        assert arrival.version == atlas.version == 2
        assert arrival.judgement["level"].tolist() == ["first", "first"]
        assert_same_model(atlas.model, fitted(c, "a", "b", **options))
        assert atlas.model.get_params() == BatchProx(**{"target": "moment"} | options).get_params()

    @pytest.mark.parametrize("policy", ["frozen", "refit"])
    def test_add_is_partial_fit(self, atlas, c, policy):
        model = fitted(c, "a", "b")
        for name in "cd":
            Z, batch = of(c, name)
            atlas.add(Z, batch, policy=policy)
            model.partial_fit(Z, batch=batch, policy=policy)
        assert_same_model(atlas.model, model)

    def test_frozen_rows_stay_in_any_order(self, atlas, tmp_path, c):
        before = atlas.model
        other = Atlas.create(tmp_path / "other", target="moment")
        other.add(*of(c, "a", "b"))
        for name in "cde":
            atlas.add(*of(c, name))
        other.add(*of(c, "e", "d"))
        other.add(*of(c, "c"))
        assert_same_model(atlas.model, other.model)
        np.testing.assert_array_equal(atlas.model.scale_[:2], before.scale_)
        np.testing.assert_array_equal(atlas.model.shift_[:2], before.shift_)

    def test_moments_are_enough(self, atlas, tmp_path, c):
        other = Atlas.create(tmp_path / "other", target="moment")
        other.add(Moments.of(*of(c, "a", "b")))
        assert_same_model(atlas.model, other.model)
        with pytest.raises(ValueError, match="no labels with Moments"):
            other.add(Moments.of(*of(c, "c")), ["c"])

    @pytest.mark.parametrize("name", ["b", "c"])
    @pytest.mark.parametrize("policy", ["frozen", "refit"])
    def test_forget_equals_a_fit_without_the_batch(self, path, atlas, c, name, policy):
        atlas.add(*of(c, "c", "d"))
        model = atlas.model
        assert atlas.forget(name, policy=policy) == 4
        left = [other for other in "abcd" if other != name]
        if policy == "frozen":
            assert_same_model(atlas.model, model.forget(name))
        else:
            assert_same_model(
                atlas.model, BatchProx(target="moment").fit_moments(Moments.of(*of(c, *left)))
            )
        assert atlas.model.batches_.tolist() == left

    def test_forget_the_last(self, path, c):
        atlas = Atlas.create(path, target="moment")
        atlas.add(*of(c, "a"))
        atlas.add(*of(c, "b", "c"))
        with pytest.raises(ValueError, match=r"'a' is the last; policy='refit' \(--policy refit\)"):
            atlas.forget("a")
        atlas.forget("a", policy="refit")
        assert_same_model(atlas.model, fitted(c, "b", "c"))
        atlas.forget("b")
        atlas.forget("c")
        assert atlas.model is None
        atlas.add(*of(c, "d"))
        assert_same_model(atlas.model, fitted(c, "d"))

    def test_merge(self, atlas, c):
        Z, batch = of(c, "a")
        model = atlas.model.partial_fit(Z, batch=batch)
        atlas.add(Z, batch, merge=True)
        assert_same_model(atlas.model, model)
        assert atlas.model.moments_.n.tolist() == [120, 40]
        assert atlas.entries()[-1]["added"] == [{"batch": "a", "n_cells": 60}]

    def test_rollback_is_exact(self, path, atlas, c):
        files = {2: (path / "versions/000002.safetensors").read_bytes()}
        atlas.add(*of(c, "c"), policy="refit")
        atlas.forget("a")
        assert atlas.rollback(2) == 5
        entry = atlas.entries()[-1]
        assert (path / "versions" / entry["file"]).read_bytes() == files[2]
        assert_same_model(atlas.model, fitted(c, "a", "b"))
        assert entry["to"] == 2
        assert entry["added"] == [{"batch": "a", "n_cells": 60}]
        assert entry["removed"] == [{"batch": "c", "n_cells": 25}]
        # Batches can be added after a rollback, and later versions can be restored too.
        atlas.add(*of(c, "d"))
        assert_same_model(
            atlas.model, fitted(c, "a", "b").partial_fit(of(c, "d")[0], batch=["d"] * 90)
        )
        atlas.rollback(3)
        assert atlas.model.batches_.tolist() == ["a", "b", "c"]
        atlas.rollback(1)
        assert atlas.model is None

    def test_size_does_not_depend_on_cells(self, path, tmp_path, c):
        sizes = []
        for k, factor in enumerate((1, 1000)):
            m = Moments.of(c.Z, NAMES[c.codes])
            atlas = Atlas.create(tmp_path / str(k), target="moment")
            atlas.add(Moments.per_batch(m.batches, m.n * factor, m.mean, m.m2 * factor))
            sizes.append((tmp_path / str(k) / "versions/000002.safetensors").stat().st_size)
        assert abs(sizes[0] - sizes[1]) < 16

    @pytest.mark.parametrize("labels", [[3, 1, 2], [True, False], [0.5, 1.5]])
    def test_labels_need_not_be_strings(self, path, rng, labels):
        atlas = Atlas.create(path, target="moment")
        for label in labels:
            atlas.add(rng.normal(size=(30, 3)), [label] * 30)
        assert Atlas.open(path).model.batches_.tolist() == sorted(labels)
        Atlas.open(path).forget(labels[-1])
        assert Atlas.open(path).model.batches_.tolist() == sorted(labels[:-1])

    def test_an_atlas_opened_earlier_reads_later_versions(self, path, atlas, c):
        stale = Atlas.open(path)
        atlas.add(*of(c, "c"))
        assert stale.add(*of(c, "d")).version == 4
        assert stale.model.batches_.tolist() == ["a", "b", "c", "d"]

    def test_changing_a_model_does_not_change_the_atlas(self, atlas, c):
        atlas.model.forget("a")
        assert atlas.model.batches_.tolist() == ["a", "b"]
