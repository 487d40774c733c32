"""The population target as an estimator, and its limit of one population per batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.utils.estimator_checks import parametrize_with_checks

from data import cells, make_cells
from population_models import BOTH, refined
from scbatchprox import BatchProx, MomentTarget, PopulationTarget


@pytest.mark.filterwarnings("ignore:Expected labels as batch")
@parametrize_with_checks(
    [BatchProx(target="population"), BatchProx(target=PopulationTarget(conditioned=False))]
)
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


class TestOnePopulationPerBatch:
    """With one population per batch it is the mean-only method of the paper."""

    @given(
        cells(min_size=10, max_batches=8),
        st.booleans(),
        st.sampled_from([1, 3, 10]),
        st.sampled_from([0.0, 1e-3, 0.1]),
        st.sampled_from([0.0, 1e-3, 0.1]),
    )
    @settings(max_examples=120)
    def test_is_the_mean_only_moment_target(self, c, conditioned, rounds, mu, lambda_id):
        options = dict(rounds=rounds, mu=mu, lambda_id=lambda_id)
        one = BatchProx(target=PopulationTarget(conditioned=conditioned), **options)
        result = one.fit_transform(c.Z, batch=c.codes, population=["all"] * len(c.Z))
        plain = BatchProx(target=MomentTarget(variance_matching=False), **options)
        expected = plain.fit_transform(c.Z, batch=c.codes)
        size = max(1.0, np.abs(c.Z).max())
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-10 * size)
        np.testing.assert_allclose(one.scale_, plain.scale_, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(one.shift_, plain.shift_, rtol=1e-10, atol=1e-10 * size)
        np.testing.assert_allclose(
            one.history_.objective, plain.history_.objective, atol=1e-8 * size**2
        )

    @pytest.mark.parametrize("conditioned", [True, False])
    @pytest.mark.parametrize("rounds", [2, 10])
    def test_also_for_batches_that_are_added_later(self, rng, conditioned, rounds):
        c = make_cells(rng, [60, 30, 80, 25], 4, offset=10.0)
        models = [
            BatchProx(target=PopulationTarget(conditioned=conditioned), rounds=rounds),
            BatchProx(target=MomentTarget(variance_matching=False), rounds=rounds),
        ]
        for model, extra in zip(models, [{"population": 1}, {}], strict=True):
            for batches in ([0, 1], [2], [3]):
                rows = np.isin(c.codes, batches)
                given = {name: np.full(rows.sum(), x) for name, x in extra.items()}
                model.partial_fit(c.Z[rows], batch=c.codes[rows], **given)
        np.testing.assert_allclose(models[0].scale_, models[1].scale_, atol=1e-10)
        np.testing.assert_allclose(models[0].shift_, models[1].shift_, atol=1e-9)

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("n", [1, 2, 50])
    @BOTH
    def test_a_single_batch_does_not_move(self, rng, target, n):
        Z = rng.normal(size=(n, 3))
        np.testing.assert_array_equal(refined(Z, ["a"] * n, target=target), Z)
        np.testing.assert_array_equal(refined(Z, ["a"] * n, ["x"] * n, target=target), Z)
