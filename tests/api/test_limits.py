"""At the limits of a type and of the weights: a finite result that can be saved and loaded, or one sentence.

Warnings are errors in all tests, so that none of numpy's reaches users.
"""

from contextlib import suppress

import numpy as np
import pytest

from scbatchprox import Adam, BatchProx, InputError, Trace, Weights, diagnose
from scbatchprox.errors import NotFinite

SIZES = {
    "float32": [1e-45, 1e-38, 1.0, 1e19, 1e30, 1e38, 3e38],
    "float64": [5e-324, 1e-308, 1.0, 1e100, 1e154, 1e200, 1e300, 1.7e308],
}
WEIGHTS = [0.0, 1e-100, 1e-50, 1e-3, 1.0, 1e50, 1e100]
N = 40


def cells(rng, dtype):
    """Cells of some size, which may be far from the origin, and one batch of which may be one point."""
    size, offset = rng.choice(SIZES[dtype], 2)
    with np.errstate(all="ignore"):
        Z = rng.normal(size=(2 * N, 2)) * size + rng.choice([0.0, offset]) * rng.normal(size=2)
        if rng.random() < 0.3:
            Z[:N] = Z[0]
        most = np.finfo(dtype).max
        return np.clip(np.nan_to_num(Z), -most, most).astype(dtype)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("dtype", SIZES)
@pytest.mark.parametrize("target", ["moment", "population", "adam"])
def test_a_finite_result_or_one_sentence(tmp_path, seed, dtype, target):
    rng = np.random.default_rng(seed)
    batch = np.repeat(["a", "b"], N)
    for _ in range(8):
        Z = cells(rng, dtype)
        weights = dict(
            zip(("lambda_target", "mu", "lambda_id"), rng.choice(WEIGHTS, 3).tolist(), strict=True)
        )
        solver = (
            Adam(lr=float(rng.choice([1e-3, 1e300])), local_epochs=1)
            if target == "adam"
            else "exact"
        )
        model = BatchProx(target="moment" if target == "adam" else target, solver=solver, **weights)
        refined = refined_or_refused(model, Z, batch)
        if refined is None:
            continue
        assert np.isfinite(refined).all()
        told = model.history_
        values = told.movement if isinstance(told, Trace) else told.objective
        assert np.isfinite(values).all()
        assert np.isfinite(model.evidence_.removed).all()
        model.save(tmp_path / "m")
        assert np.array_equal(BatchProx.load(tmp_path / "m").transform(Z, batch=batch), refined)
        with suppress(NotFinite):
            diagnose(Z, batch)


def refined_or_refused(model, Z, batch):
    """The refined cells; nothing if they are refused."""
    if not (model.lambda_target or model.mu or model.lambda_id):
        return None
    with suppress(NotFinite):
        return model.fit(Z, batch=batch).transform(Z, batch=batch)


@pytest.mark.parametrize("name", ["lambda_target", "mu", "lambda_id"])
@pytest.mark.parametrize("value", [5e-324, 1e-310, 1e-300, 9e-101])
def test_a_weight_that_is_almost_zero_is_refused(rng, name, value):
    with pytest.raises(InputError, match=f"Expected {name} of 0, or at least 1e-100, found"):
        BatchProx(**{name: value}).fit(rng.normal(size=(40, 2)), batch=list("ab") * 20)
    assert getattr(Weights(**{name: 1e-100}), name) == 1e-100


def test_distances_beyond_float32_are_refused(rng):
    """Populations are found by distances in float32."""
    with pytest.raises(InputError, match="moderate size"):
        BatchProx().fit(rng.normal(size=(200, 2)) * 1e30, batch=list("ab") * 100)
