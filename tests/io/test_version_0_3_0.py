"""A model that version 0.3.0 registered: a consensus of three batches, evidence, and a batch added to it."""

from pathlib import Path

import numpy as np
import pytest

from scbatchprox import BatchProx, Decision, Trace

FILES = Path(__file__).parents[1] / "files" / "v0_3_0"


@pytest.fixture
def expected():
    with np.load(FILES / "expected.npz", allow_pickle=False) as stored:
        return dict(stored)


@pytest.fixture
def model():
    return BatchProx.load(FILES / "population_grown.safetensors")


def test_it_applies_to_the_bit(model, expected):
    Z, batch = expected["Z"], expected["batch"]
    np.testing.assert_array_equal(model.transform(Z, batch=batch), expected["refined"])
    assert np.abs(expected["refined"] - Z).max() > 0.5


def test_its_trace_and_its_evidence(model, expected, tmp_path):
    model.save(tmp_path / "again.safetensors")
    for one in (model, BatchProx.load(tmp_path / "again.safetensors")):
        assert isinstance(one.history_, Trace)
        for part in ("history", "evidence"):
            for name, values in vars(getattr(one, f"{part}_")).items():
                np.testing.assert_array_equal(values, expected[f"{part}_{name}"], err_msg=name)
        assert one.evidence_.batches.tolist() == one.batches_.tolist() == ["a", "b", "c", "d"]
        assert one.fit_.added.batches.tolist() == ["d"]


def test_it_takes_a_new_batch(model, expected):
    """The cells of batch d, further away, end where those of batch d do; other rows stay as they are."""
    Z, batch = expected["Z"], expected["batch"]
    own = batch == "d"
    names = np.full(own.sum(), "e")
    model.partial_fit(Z[own] + 2.0, batch=names)
    np.testing.assert_array_equal(model.transform(Z, batch=batch), expected["refined"])
    assert model.evidence_.decision.tolist()[-1] == Decision.REMOVED
    difference = model.transform(Z[own] + 2.0, batch=names) - expected["refined"][own]
    assert np.linalg.norm(difference.mean(0)) < 0.1 * np.linalg.norm(np.full(4, 2.0))


@pytest.mark.parametrize("batch", ["a", "d"])
def test_it_forgets_and_is_fitted_again(model, expected, batch):
    model.forget(batch)
    assert batch not in model.batches_
    own = expected["batch"] == batch
    model.partial_fit(expected["Z"][own], batch=expected["batch"][own], policy="refit")
    assert model.batches_.tolist() == ["a", "b", "c", "d"]
    found = model.transform(expected["Z"], batch=expected["batch"])
    assert np.isfinite(found).all()
