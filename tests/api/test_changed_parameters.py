"""A fit knows how it was made, whatever the parameters of the estimator are set to later."""

import numpy as np
import pandas as pd
import pytest

from data import make_cells
from registered_cells import cells as shifted_cells
from scbatchprox import BatchProx, Moments, diagnose


@pytest.fixture
def c(rng):
    return make_cells(rng, [200, 150, 90], 4)


@pytest.mark.parametrize("target", ["moment", "population"])
class TestSetAfterTheFit:
    @pytest.mark.parametrize("change", [{"rounds": 1}, {"strength": 0.25}, {"mu": 0.5}], ids=str)
    def test_rows_of_two_methods_are_not_mixed(self, c, target, change):
        old = c.codes < 2
        model = BatchProx(target=target).fit(c.Z[old], batch=c.codes[old]).set_params(**change)
        before = model.shift_
        for verb in (
            lambda: model.partial_fit(c.Z[~old], batch=c.codes[~old]),
            lambda: model.partial_fit(c.Z[old][:9], batch=c.codes[old][:9]),
            lambda: model.forget(1),
        ):
            with pytest.raises(ValueError, match="parameters that the model was fitted with"):
                verb()
        np.testing.assert_array_equal(model.shift_, before)

    @pytest.mark.parametrize("change", [{"rounds": 1}, {"strength": 0.25}], ids=str)
    def test_a_refit_takes_the_new_ones(self, c, target, change):
        old = c.codes < 2
        model = BatchProx(target=target).fit(c.Z[old], batch=c.codes[old]).set_params(**change)
        model.partial_fit(c.Z[~old], batch=c.codes[~old], policy="refit")
        again = BatchProx(target=target, **change).fit(c.Z, batch=c.codes)
        np.testing.assert_allclose(model.shift_, again.shift_, atol=1e-10)

    def test_a_file_holds_the_method_of_the_fit(self, c, target, tmp_path):
        model = BatchProx(target=target, rounds=4).fit(c.Z, batch=c.codes)
        model.set_params(rounds=1, strength=0.25).save(tmp_path / "m.safetensors")
        back = BatchProx.load(tmp_path / "m.safetensors")
        assert (back.rounds_, back.fit_.method.strength) == (4, 1.0)
        assert (back.rounds, back.strength) == (1, 0.25)
        pd.testing.assert_frame_equal(
            diagnose(c.Z, c.codes, model=back), diagnose(c.Z, c.codes, model=model)
        )


def test_names_of_coordinates_belong_to_one_fit(c):
    table = pd.DataFrame(c.Z, columns=list("pqrs"))
    model = BatchProx(target="moment").fit(table, batch=c.codes)
    assert model.feature_names_in_.tolist() == list("pqrs")
    model.fit_moments(Moments.of(c.Z[:, :3], c.codes))
    assert model.n_features_in_ == 3
    assert not hasattr(model, "feature_names_in_")
    model.transform(c.Z[:, :3], batch=c.codes)


def test_provenance_stays_and_a_diagnosis_goes_when_batches_are_added(c):
    old = c.codes < 2
    model = BatchProx(target="moment").fit(c.Z[old], batch=c.codes[old])
    model.provenance_ = {"batch_key": ["donor"], "n_cells": int(old.sum())}
    model.diagnosis_ = diagnose(c.Z[old], c.codes[old], model=model)
    model.partial_fit(c.Z[~old], batch=c.codes[~old])
    assert model.provenance_ == {"batch_key": ["donor"], "n_cells": len(c.Z)}
    assert model.diagnosis_ is None
    model.forget(2)
    assert model.provenance_ == {"batch_key": ["donor"], "n_cells": int(old.sum())}


def test_rounds_of_registration_do_not_converge(c):
    model = BatchProx(target="population", rounds=2).fit(c.Z, batch=c.codes)
    assert model.history_.round.tolist() == [0, 1, 2]
    assert not model.converged_


class TestFlagsAndNumbers:
    def test_a_flag_is_not_the_number_of_a_batch(self, c):
        model = BatchProx(target="moment").fit(c.Z, batch=c.codes)
        with pytest.raises(
            KeyError, match="Expected a known batch, found True; available: 0, 1, 2"
        ):
            model.forget(True)
        assert model.batches_.tolist() == [0, 1, 2]

    def test_a_number_is_not_a_flag(self, c):
        model = BatchProx(target="moment").fit(c.Z, batch=c.codes > 0)
        with pytest.raises(KeyError, match="found 1; available: False, True"):
            model.forget(1)
        assert model.forget(True).batches_.tolist() == [False]


def _too_large(Z, batch, model):
    """The input is finite; its refined value is not."""
    Z[np.flatnonzero(batch == 0)[0]] = 0.99 * np.finfo(Z.dtype).max
    before = Z.copy()
    with pytest.raises(ValueError, match="Expected values of moderate size"):
        model.transform(Z, batch, out=Z)
    np.testing.assert_array_equal(Z, before)


@pytest.mark.parametrize("out", ["float32", "float64"])
def test_results_that_overflow_leave_the_callers_array(c, out):
    Z = c.Z.astype(out)
    Z[c.codes == 2] *= 100
    _too_large(Z, c.codes, BatchProx(target="moment", rounds=None).fit(Z, batch=c.codes))


def test_cells_too_far_from_populations_leave_the_callers_array():
    rng = np.random.default_rng(0)
    kind, batch = rng.integers(0, 6, 1600), np.repeat([0, 1], 800)
    Z = 12.0 * np.eye(6, 8)[kind] + rng.normal(size=(1600, 8))
    # Types differ in their shifts, so cells move by the populations that they are near to.
    Z[batch == 1] += 2.0 + rng.normal(size=(6, 8))[kind[batch == 1]]
    model = BatchProx(target="population").fit(Z, batch=batch)
    assert (model.evidence_.removed > 0).all()
    assert np.ptp(model.transform(Z, batch) - Z, axis=0).max() > 1.0
    _too_large(Z, batch, model)


def test_a_batch_that_is_shifted_has_no_cell_too_far():
    Z, batch, _ = shifted_cells(0)
    model = BatchProx(target="population").fit(Z, batch=batch)
    assert (model.evidence_.removed > 0).all()
    far = np.flatnonzero(batch == 0)[0]
    Z[far] = 0.5 * np.finfo(Z.dtype).max
    np.testing.assert_array_equal(model.transform(Z, batch)[far], Z[far])


def test_masked_values_are_not_read(c):
    Z = np.ma.masked_array(c.Z, mask=c.Z > 3)
    with pytest.raises(ValueError, match="found a masked array with"):
        BatchProx(target="moment").fit(Z, batch=c.codes)
    BatchProx(target="moment").fit(np.ma.masked_array(c.Z), batch=c.codes)


def test_labels_that_no_integer_holds(c):
    with pytest.raises(ValueError, match="Expected whole numbers below"):
        BatchProx(target="moment").fit(c.Z, batch=c.codes.astype("u8") + np.uint64(2**63))


def test_batches_without_cells(c):
    moments = Moments.of(c.Z, c.codes)
    empty = Moments.per_batch(moments.batches, moments.n * [1, 0, 1], moments.mean, moments.m2)
    with pytest.raises(ValueError, match="Expected cells in every batch, found none in 1"):
        BatchProx(target="moment").fit_moments(empty)
