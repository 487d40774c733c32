"""Sites that hold some of the batches, and only exchange sums, find what one process finds."""

import numpy as np
import pytest

import population_oracles as oracles
from data import in_memory
from in_step import in_step
from scbatchprox import BatchProx


def at_sites(own, pooled, **options):
    """Fit models of all sites in step: their sums are added up."""

    def fit(one):
        return lambda exchange: BatchProx(**options).fit_pooled(one, pooled, exchange)

    return in_step([fit(one) for one in own], sum)


@pytest.mark.parametrize("split", [[[0], [1], [2], [3]], [[0, 3], [1, 2]]], ids=str)
@pytest.mark.parametrize("size", [0.0, 3.0, 60.0])
@pytest.mark.parametrize("options", [{}, {"lambda_id": 0.01}], ids=str)
def test_sites_find_what_one_process_finds(split, size, options):
    rng = np.random.default_rng(2)
    types = [[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 3], [5, 6, 7]]
    shifts = [oracles.direction(rng, 8, size) for _ in types]
    Z, batch, _ = oracles.typed_cells(rng, types, shifts, n=60, d=8, sep=8.0)
    moments = BatchProx().describe(in_memory(Z, batch))
    whole = BatchProx(**options).fit_moments(moments)
    pooled = moments.by_batch.pooled()
    for names, model in zip(
        split, at_sites([moments.select(one) for one in split], pooled, **options), strict=True
    ):
        own = np.isin(moments.batch, names)
        np.testing.assert_allclose(
            model.shift_, whole.shift_[own], rtol=0, atol=1e-8 * max(1, size)
        )
        found, expected = model.evidence_, whole.evidence_.select(names)
        np.testing.assert_array_equal(found.decision, expected.decision)
        np.testing.assert_allclose(found.support, expected.support, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(model.history_.movement, whole.history_.movement, atol=1e-6)
        np.testing.assert_allclose(model.history_.matched, whole.history_.matched, atol=1e-6)
