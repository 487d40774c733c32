"""Turned copies: what turning keeps, and the support of a batch compared with plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evidence_oracles as oracles
from scbatchprox.targets.population.copies import RIDGE, Support, Turning, supported
from scbatchprox.targets.population.meeting import Sums

SEEDS = st.integers(0, 10_000)


def covariances(seed, d):
    """Within regions, and of all populations: the same and more in some directions."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(2, d, d))
    return a @ a.T, a @ a.T + 9.0 * b[:, :2] @ b[:, :2].T


@given(SEEDS, st.integers(1, 7))
def test_copies_are_turned_in_the_metric_within_regions(seed, d):
    within, spread = covariances(seed, d)
    turning = Turning.of(within, spread)
    q = turning.into.shape[1]
    assert min(3, d) <= q <= d
    np.testing.assert_allclose(turning.back @ turning.into, np.eye(q), atol=1e-8)
    ridged = within + RIDGE * np.trace(within) / d * np.eye(d)
    np.testing.assert_allclose(turning.into.T @ ridged @ turning.into, np.eye(q), atol=1e-8)
    x = np.random.default_rng(seed).normal(size=(9, d))
    first, *copies = turning.copies(x, 4)
    np.testing.assert_array_equal(first, x)
    metric = np.linalg.inv(ridged)
    for copy in copies:
        assert np.abs(copy - x).max() > 1e-3 or d == 1
        # Distances between populations, in that metric, are those of the batch.
        np.testing.assert_allclose(copy @ metric @ copy.T, x @ metric @ x.T, rtol=1e-6, atol=1e-6)


def test_the_directions_are_those_between_regions():
    d = 6
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(d, d)))[0]
    spread = np.eye(d) + axes[:, :3] @ axes[:, :3].T * 1e4
    turning = Turning.of(np.eye(d), spread)
    assert turning.into.shape[1] in (3, 4)
    np.testing.assert_allclose(axes[:, 3:].T @ turning.into[:, :3], 0.0, atol=1e-8)


def support_of_one(x, unmoved, n, rest, turning, n_copies, temperatures, unit):
    """Of one batch, beside another one with more populations, whose centres are all there."""
    P, K = len(x), len(rest.mass)
    rng = np.random.default_rng(P)
    beside = rng.normal(size=(P + 2, x.shape[1]))
    places, before = (np.stack([np.r_[y, 0.0 * beside[:2]], beside]) for y in (x, unmoved))
    cells = np.stack([np.r_[n, 0.0, 0.0], np.full(P + 2, 5.0)])
    sums = Sums(
        np.stack([rest.mass, np.ones(K)]), np.stack([rest.total, rng.normal(size=rest.total.shape)])
    )
    found = supported(places, before, cells, sums, turning, n_copies, temperatures, unit)
    return Support(*(float(part[0]) for part in found))


@given(SEEDS, st.integers(1, 12), st.sampled_from([0.0, 1.0, 25.0]))
def test_support(seed, P, away):
    rng = np.random.default_rng(seed)
    d, K = 3, 7
    x, n = 2.0 * rng.normal(size=(P, d)) + away, rng.integers(1, 30, P).astype(float)
    mass = rng.uniform(0.5, 50.0, K) * (rng.random(K) < 0.9)
    total = mass[:, None] * 2.0 * rng.normal(size=(K, d))
    turning, temperatures = Turning.of(*covariances(seed, d)), np.array([2.0, 0.7, 0.3, 0.3])
    unmoved = x + rng.normal(size=d)
    found = support_of_one(x, unmoved, n, Sums(mass, total), turning, 3, temperatures, 1.3)
    copies = turning.copies(x - n @ x / n.sum(), 3)
    rest = list(zip(mass.tolist(), total, strict=True))
    expected = oracles.support(x, unmoved, n.tolist(), rest, copies, temperatures, 1.3)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)  # single precision
    assert 0.0 <= found.support <= 1.0


def test_a_batch_has_all_support_of_itself_and_its_copies_have_not():
    rng = np.random.default_rng(1)
    x, n = 6.0 * rng.normal(size=(8, 4)), np.full(8, 20.0)
    turning = Turning.of(np.eye(4), np.cov(x.T))
    for shift in (0.0, 40.0):
        rest = Sums(n, n[:, None] * (x + shift))
        found = support_of_one(x, x, n, rest, turning, 8, np.array([2.0, 0.3, 0.3]), 4.0)
        assert found.support > 0.99
        assert found.gain == pytest.approx(1.0) if shift == 0.0 else found.gain > 10.0
        assert found.chance < 0.5
        assert found.evidence > 2.0


@pytest.mark.parametrize(("mass", "P"), [([0.0, 0.0], 5), ([3.0, 4.0], 1)])
def test_nothing_to_compare_with_is_no_support(mass, P):
    turning = Turning.of(np.eye(2), np.eye(2))
    rest = Sums(np.array(mass), np.ones((2, 2)))
    x = np.ones((P, 2))
    found = support_of_one(x, x, np.ones(P), rest, turning, 2, np.array([0.3]), 1.0)
    assert found == (0.0, 0.0, 0.0)
    assert found.evidence < 0.01
    assert found.gain == 1.0


def test_one_region_that_meets_another_is_no_support():
    """Two distinct regions must meet two others: any one of them can be laid on any other."""
    rng = np.random.default_rng(2)
    near, far = 3.0 * rng.normal(size=(2, 4, 3)) + np.array([[[0.0] * 3], [[50.0] * 3]])
    x, n, temperatures = np.r_[near, far], np.full(8, 20.0), np.array([0.3])
    turning = Turning.of(np.eye(3), np.cov(x.T))
    both = Sums(n, n[:, None] * x)
    one = Sums(n, n[:, None] * np.r_[near, far + 200.0])
    whole, half = (
        support_of_one(x, x, n, rest, turning, 1, temperatures, 1.0) for rest in (both, one)
    )
    assert whole.before > 0.9
    assert half.before < 0.1 * whole.before


def test_evidence_is_support_over_chance_and_poor_support_counts_less():
    assert Support(0.81, 0.3, 0.0).evidence == pytest.approx(0.81 * 0.9 / 0.3)
    assert Support(0.2, 0.1, 0.0).evidence < Support(0.8, 0.4, 0.0).evidence
    assert Support(0.6, 0.2, 0.5).gain == pytest.approx(1.2)
    assert np.isfinite(np.log(Support(0.0, 0.0, 0.0).evidence))
