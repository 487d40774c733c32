"""The population target as an estimator, and batches of one population."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from population_models import BOTH, refined
from scbatchprox import BatchProx, Decision, PopulationTarget


@pytest.mark.filterwarnings("ignore:Expected labels as batch")
@parametrize_with_checks(
    [BatchProx(target="population"), BatchProx(target=PopulationTarget(conditioned=False))]
)
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


class TestOnePopulation:
    """A batch with one population has no geometry to compare: it is left alone."""

    @BOTH
    @pytest.mark.parametrize("size", [0.0, 2.0, 100.0])
    def test_batches_of_one_given_population_stay(self, rng, target, size):
        Z, batch = rng.normal(size=(200, 3)), np.repeat(["a", "b"], 100)
        Z[batch == "b"] += size
        model = BatchProx(target=target).fit(Z, batch=batch, population=["all"] * 200)
        np.testing.assert_array_equal(model.transform(Z, batch=batch), Z)
        assert set(model.evidence_.decision) <= {Decision.NO_EFFECT, Decision.ALONE}

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("n", [1, 2, 50])
    @BOTH
    def test_a_single_batch_does_not_move(self, rng, target, n):
        Z = rng.normal(size=(n, 3))
        np.testing.assert_array_equal(refined(Z, ["a"] * n, target=target), Z)
        np.testing.assert_array_equal(refined(Z, ["a"] * n, ["x"] * n, target=target), Z)
