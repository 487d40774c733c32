"""Populations with few cells are merged into their neighbours."""

import numpy as np
import pytest

from scbatchprox import BatchProx, Moments
from scbatchprox.targets.population.find import dissolved


def populations(seed=0, sizes=(300, 90, 40), offset=0.0):
    rng = np.random.default_rng(seed)
    Z = 3.0 * rng.normal(size=(sum(sizes), 4)) + offset
    batch = np.repeat(np.arange(len(sizes)), sizes)
    return BatchProx(target="population").fit(Z, batch=batch).fit_.moments


@pytest.mark.parametrize("min_cells", [1, 8, 20, 45])
@pytest.mark.parametrize("offset", [0.0, 1e7])
def test_all_that_remain_have_enough_cells(min_cells, offset):
    before = populations(offset=offset)
    after = dissolved(before, min_cells)
    small = after.n < min_cells
    # A batch that is too small altogether is one population.
    assert all(np.sum(after.batch == b) == 1 for b in after.batch[small])
    assert (after.n_rows == before.n_rows) == (min_cells == 1)
    np.testing.assert_array_equal(after.by_batch.n, before.by_batch.n)
    np.testing.assert_allclose(after.by_batch.mean, before.by_batch.mean, rtol=1e-13)
    np.testing.assert_allclose(
        after.by_batch.m2, before.by_batch.m2, rtol=1e-6 if offset else 1e-12
    )
    # Anchors are some of the anchors before: later cells are assigned by them.
    assert {tuple(a) for a in after.anchors} <= {tuple(a) for a in before.anchors}


def test_moments_are_those_of_the_cells_of_both():
    rng = np.random.default_rng(1)
    cells = [rng.normal(size=(n, 3)) + place for n, place in ((30, 0.0), (5, 2.0), (40, 9.0))]
    mean, m2 = (
        np.array([f(z) for z in cells]) for f in (lambda z: z.mean(0), lambda z: z.var(0) * len(z))
    )
    given = Moments(np.array(["a"]), np.zeros(3, int), np.array([30, 5, 40]), mean, m2, mean)
    after = dissolved(given, 20)
    both = np.concatenate(cells[:2])
    assert after.n.tolist() == [35, 40]
    np.testing.assert_allclose(after.mean[0], both.mean(0), rtol=1e-12)
    np.testing.assert_allclose(after.m2[0], both.var(0) * 35, rtol=1e-12)
    np.testing.assert_array_equal(after.anchors, mean[[0, 2]])


def test_whole_batches_stay_as_they_are():
    whole = Moments.of(np.random.default_rng(0).normal(size=(12, 2)), np.arange(12) // 4)
    assert dissolved(whole, 20) is whole
