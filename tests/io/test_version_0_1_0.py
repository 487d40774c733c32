"""Files of version 0.1.0: they load, give the same results, and can be extended where possible."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import population_oracles as oracles
from scbatchprox import Atlas, BatchProx

FILES = Path(__file__).parents[1] / "files" / "v0_1_0"
KINDS = ["moment", "population"]


@pytest.fixture
def expected():
    with np.load(FILES / "expected.npz", allow_pickle=False) as stored:
        return dict(stored)


@pytest.fixture
def arrival(expected):
    """Cells of a batch that is in none of the files."""
    return expected["new"] + 0.1, np.full(len(expected["new"]), "e")


def model_of(name):
    return BatchProx.load(FILES / f"{name}.safetensors")


def atlas_of(kind, tmp_path):
    """Open a copy, because opening an atlas creates a lock file in it."""
    return Atlas(shutil.copytree(FILES / f"atlas_{kind}", tmp_path / kind))


def applied(model, Z, batch):
    """Return cells mapped by the rows of a model, and a bound on the error of version 0.1.0.

    It omitted populations whose weight is below exp(-8) of the largest.
    """
    rows = model.adapter_
    if rows.anchors is None:
        code = np.searchsorted(rows.batches, batch)
        return rows.scale[code] * Z + rows.shift[code], np.zeros(len(Z))
    return oracles.mixture(
        Z,
        np.searchsorted(rows.batches, batch),
        rows.batch,
        rows.anchors,
        rows.bandwidth,
        rows.scale,
        rows.shift,
    )


def assert_same_result(model, Z, batch, expected):
    """The result is exact up to single-precision distances, and within the bound of the old result."""
    found = model.transform(Z, batch=batch)
    exact, bound = applied(model, Z, batch)
    tiny = (1e-6 if model.adapter_.anchors is not None else 1e-12) * np.abs(expected).max()
    np.testing.assert_allclose(found, exact, rtol=0, atol=tiny)
    assert (np.abs(found - expected).max(1) <= bound + tiny).all()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
class TestApplying:
    def test_models(self, kind, expected):
        Z, batch = expected["Z"], expected["batch"]
        assert np.abs(expected[kind] - Z).max() > 0.1
        assert_same_result(model_of(kind), Z, batch, expected[kind])
        grown, new = model_of(f"{kind}_grown"), expected["new"]
        assert_same_result(grown, Z, batch, expected[kind])
        assert_same_result(grown, new, np.full(len(new), "d"), expected[f"{kind}_grown"])

    def test_atlases(self, kind, expected, tmp_path):
        atlas, new = atlas_of(kind, tmp_path), expected["new"]
        assert atlas.version == 3
        model = atlas.model
        assert_same_result(model, expected["Z"], expected["batch"], expected[kind])
        assert_same_result(model, new, np.full(len(new), "d"), expected[f"{kind}_grown"])

    def test_saving_again(self, kind, expected, tmp_path):
        model = model_of(kind)
        model.save(tmp_path / "again.safetensors")
        again = BatchProx.load(tmp_path / "again.safetensors")
        assert_same_result(again, expected["Z"], expected["batch"], expected[kind])


@pytest.mark.parametrize("grown", ["", "_grown"])
class TestGrowing:
    def test_moment_models_grow(self, grown, arrival, expected):
        Z, batch = arrival
        model = model_of(f"moment{grown}").partial_fit(Z, batch=batch)
        assert "e" in model.batches_
        assert_same_result(model, expected["Z"], expected["batch"], expected["moment"])
        model_of(f"moment{grown}").partial_fit(Z, batch=batch, policy="refit")

    def test_population_models_need_a_refit(self, grown, arrival, expected):
        Z, batch = arrival
        model = model_of(f"population{grown}")
        with pytest.raises(ValueError, match="version 0.1.0.*policy='refit'"):
            model.partial_fit(Z, batch=batch)
        assert "e" not in model.batches_  # an error leaves the model unchanged
        model.partial_fit(Z, batch=batch, policy="refit")
        assert "e" in model.batches_
        assert np.isfinite(model.transform(expected["Z"], batch=expected["batch"])).all()
        # After the refit it has a consensus.
        model.partial_fit(Z, batch=np.full(len(Z), "f"))
        assert "f" in model.batches_

    def test_more_cells_of_a_known_batch_are_counted(self, grown, expected):
        model = model_of(f"population{grown}")
        before = model.transform(expected["Z"], batch=expected["batch"])
        n = model.moments_.n.sum()
        model.partial_fit(expected["Z"][:10], batch=expected["batch"][:10])
        assert model.moments_.n.sum() == n + 10
        after = model.transform(expected["Z"], batch=expected["batch"])
        np.testing.assert_array_equal(after, before)


class TestAtlases:
    def test_of_moments_grow(self, arrival, tmp_path):
        atlas = atlas_of("moment", tmp_path)
        atlas.add(*arrival, force=True)
        assert atlas.version == 4
        assert "e" in atlas.model.batches_

    def test_of_populations_need_a_refit(self, arrival, tmp_path):
        atlas = atlas_of("population", tmp_path)
        with pytest.raises(ValueError, match="version 0.1.0.*refit"):
            atlas.add(*arrival, force=True)
        assert Atlas(atlas.path).version == 3
        atlas.add(*arrival, policy="refit", force=True)
        assert Atlas(atlas.path).model.batches_.tolist() == list("abcde")

    @pytest.mark.parametrize("kind", KINDS)
    def test_forgetting(self, kind, tmp_path):
        atlas = atlas_of(kind, tmp_path)
        atlas.forget("d")
        assert atlas.model.batches_.tolist() == list("abc")
