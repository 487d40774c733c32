"""A site that has pooled moments of all batches fits its rows as if it had all cells."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data import cells, make_cells
from scbatchprox import BatchProx, Moments, MomentTarget, Pooled


def own_and_all(c, mine):
    moments = Moments.of(c.Z, c.codes)
    return moments.select(mine), moments.pooled()


@pytest.mark.filterwarnings("ignore:Expected batches of cells")  # some have few
@given(
    cells(min_size=1),
    st.sampled_from([0, 1, 3, None]),
    st.sampled_from([{}, {"mu": 0.0}, {"lambda_id": 0.5}, {"strength": 0.3}]),
    st.booleans(),
    st.integers(0, 10_000),
)
def test_rows_of_a_site_are_those_of_the_whole(c, rounds, options, variance_matching, seed):
    options = options | {"rounds": rounds, "target": MomentTarget(variance_matching)}
    whole = BatchProx(**{"target": "moment"} | options).fit_moments(Moments.of(c.Z, c.codes))
    keep = np.random.default_rng(seed).random(c.B) < 0.5
    keep[seed % c.B] = True
    own, pooled = own_and_all(c, np.flatnonzero(keep).tolist())
    site = BatchProx(**{"target": "moment"} | options).fit_pooled(own, pooled)
    np.testing.assert_array_equal(site.scale_, whole.scale_[keep])
    np.testing.assert_array_equal(site.shift_, whole.shift_[keep])


class TestGrowing:
    @pytest.fixture
    def c(self, rng):
        return make_cells(rng, [60, 80, 50, 70], 3)

    @pytest.fixture
    def site(self, c):
        kept = Moments.of(c.Z, c.codes).select([0, 1, 2])
        return BatchProx(target="moment").fit_pooled(kept.select([1]), kept.pooled())

    def test_a_new_batch_is_fitted_to_the_whole_reference(self, c, site):
        """Not only to the batches of this site."""
        both = [np.isin(c.codes, some) for some in ([0, 1, 2], [3])]
        whole = BatchProx(target="moment").fit(c.Z[both[0]], batch=c.codes[both[0]])
        for model in (whole, site):
            model.partial_fit(c.Z[both[1]], batch=c.codes[both[1]])
        assert site.batches_.tolist() == [1, 3]
        np.testing.assert_allclose(site.scale_, whole.scale_[[1, 3]], rtol=1e-12)
        np.testing.assert_allclose(site.shift_, whole.shift_[[1, 3]], rtol=1e-9, atol=1e-12)

    def test_saved_and_loaded(self, c, site, tmp_path):
        site.save(tmp_path / "m.safetensors")
        back = BatchProx.load(tmp_path / "m.safetensors")
        new = c.codes == 3
        for model in (site, back):
            model.partial_fit(c.Z[new], batch=c.codes[new])
        np.testing.assert_array_equal(back.shift_, site.shift_)

    def test_operations_that_need_the_batches_of_other_sites(self, c, site):
        new = c.codes == 3
        with pytest.raises(ValueError, match="found that other sites hold 2 of them"):
            site.partial_fit(c.Z[new], batch=c.codes[new], policy="refit")
        site.partial_fit(c.Z[new], batch=c.codes[new])
        site.forget(3)
        assert site.batches_.tolist() == [1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_cells": 100}, "Expected sums over all cells, including the 140 in these 2 batches"),
        ({"n_batches": 1}, "found 260 cells in 1 batches"),
        ({"mean": np.zeros(2)}, "Expected sums over cells with 3 coordinates"),
    ],
)
def test_invalid_pooled_moments(rng, change, message):
    own, pooled = own_and_all(make_cells(rng, [60, 80, 50, 70], 3), [0, 1])
    model = BatchProx(target="moment")
    with pytest.raises(ValueError, match=message):
        model.fit_pooled(own, Pooled(**vars(pooled) | change))
    assert not hasattr(model, "fit_")


def test_the_population_target_needs_all_populations(rng):
    c = make_cells(rng, [60, 80], 3)
    model = BatchProx(target="population").fit(c.Z, batch=c.codes)
    own = model.fit_.moments
    with pytest.raises(ValueError, match="Expected the populations of all batches"):
        BatchProx(target="population").fit_pooled(own.select([0]), own.by_batch.pooled())
