"""Models that version 0.2.0 registered: they have two points of a history, and no evidence."""

from pathlib import Path

import numpy as np
import pytest

from scbatchprox import BatchProx, History, PopulationSettings, Trace, pl

FILES = Path(__file__).parents[1] / "files" / "v0_2_0"


@pytest.fixture
def expected():
    with np.load(FILES / "expected.npz", allow_pickle=False) as stored:
        return dict(stored)


@pytest.fixture
def model():
    return BatchProx.load(FILES / "population_grown.safetensors")


def test_it_applies_as_before(model, expected):
    """Up to rounding: cells were mixed in single precision then, whose rounding depends on the processor."""
    found = model.transform(expected["Z"], batch=expected["batch"])
    tiny = 1e-7 * np.abs(expected["Z"]).max()
    np.testing.assert_allclose(found, expected["refined"], rtol=0, atol=tiny)


def test_its_history_is_shown_as_it_is(model, expected, tmp_path):
    model.save(tmp_path / "again.safetensors")
    for one in (model, BatchProx.load(tmp_path / "again.safetensors")):
        assert isinstance(one.history_, History)
        for name, values in vars(one.history_).items():
            np.testing.assert_array_equal(values, expected[f"history_{name}"])
        assert one.evidence_.batches.size == 0
    assert len(pl.history(model)) == 3


def test_a_batch_is_added_after_a_refit(model, expected):
    """Its consensus was made without evidence, so nothing is compared with it."""
    new = expected["Z"][:50] + 0.5
    before = model.shift_
    with pytest.raises(ValueError, match=r"0\.2\.0.*fit it again first \(policy='refit'\)"):
        model.partial_fit(new, batch=np.full(50, "d"))
    assert model.shift_ is before
    assert model.batches_.tolist() == ["a", "b", "c"]
    model.partial_fit(new, batch=np.full(50, "d"), policy="refit")
    assert model.evidence_.batches.tolist() == model.batches_.tolist() == ["a", "b", "c", "d"]
    assert isinstance(model.history_, Trace)
    model.partial_fit(new + 1.0, batch=np.full(50, "e"))
    assert model.evidence_.batches.tolist() == ["a", "b", "c", "d", "e"]


def test_more_cells_of_a_known_batch_and_forgetting_an_added_one(model, expected):
    before = model.transform(expected["Z"], batch=expected["batch"])
    model.partial_fit(expected["Z"][:10], batch=expected["batch"][:10])
    np.testing.assert_array_equal(model.transform(expected["Z"], batch=expected["batch"]), before)
    model.forget("c")
    assert model.batches_.tolist() == ["a", "b"]


def test_its_settings_are_those_of_this_version(model):
    """They had other meanings, and a refit uses the new target."""
    settings = model.fit_.method.rule.settings
    assert settings == PopulationSettings()
