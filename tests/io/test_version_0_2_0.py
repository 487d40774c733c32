"""Models that version 0.2.0 registered: they have two points of a history, and no evidence."""

from pathlib import Path

import numpy as np
import pytest

from scbatchprox import BatchProx, History, Trace, pl

FILES = Path(__file__).parents[1] / "files" / "v0_2_0"


@pytest.fixture
def expected():
    with np.load(FILES / "expected.npz", allow_pickle=False) as stored:
        return dict(stored)


@pytest.fixture
def model():
    return BatchProx.load(FILES / "population_grown.safetensors")


def test_it_applies_to_the_bit(model, expected):
    found = model.transform(expected["Z"], batch=expected["batch"])
    np.testing.assert_array_equal(found, expected["refined"])


def test_its_history_is_shown_as_it_is(model, expected, tmp_path):
    model.save(tmp_path / "again.safetensors")
    for one in (model, BatchProx.load(tmp_path / "again.safetensors")):
        assert isinstance(one.history_, History)
        for name, values in vars(one.history_).items():
            np.testing.assert_array_equal(values, expected[f"history_{name}"])
        assert one.evidence_.batches.size == 0
    assert len(pl.history(model)) == 3


def test_a_batch_that_is_added_has_evidence(model, expected):
    """And nothing is made up for the others, until they are fitted again."""
    new = expected["Z"][:50] + 0.5
    model.partial_fit(new, batch=np.full(50, "d"))
    assert model.evidence_.batches.tolist() == ["d"]
    model.forget("c")
    assert model.evidence_.batches.tolist() == ["d"]
    model.partial_fit(new + 1.0, batch=np.full(50, "e"), policy="refit")
    assert model.evidence_.batches.tolist() == model.batches_.tolist() == ["a", "b", "d", "e"]
    assert isinstance(model.history_, Trace)
