"""Populations of different batches matched: where each should go, and what is too far from all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import population_oracles as oracles
from scbatchprox import set_num_threads
from scbatchprox.matching import _ridge_moves, match, reach, rivalry

SEEDS = st.integers(0, 10_000)


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


def points(seed, sizes=(20, 15, 25), d=6, types=5, shift=2.0):
    """Populations near a few types at right angles, batches shifted; sorted by batch."""
    rng = np.random.default_rng(seed)
    axes = 8.0 * np.linalg.qr(rng.normal(size=(d, d)))[0]
    batch = np.repeat(np.arange(len(sizes)), sizes)
    kind = np.concatenate([np.arange(m) % types for m in sizes])
    shifts = shift * rng.normal(size=(len(sizes), d)) / np.sqrt(d)
    X = axes[kind] + shifts[batch] + 0.5 * rng.normal(size=(len(batch), d))
    return X, rng.integers(5, 60, len(batch)), batch, kind


class TestOnePopulationABatch:
    @given(SEEDS, st.integers(2, 8), st.sampled_from([0.0, 0.2, 1.0, 5.0]))
    def test_all_go_to_the_common_mean_as_far_as_the_ridge_lets_them(self, seed, B, ridge):
        """Each has exactly the cells due from it, so the evidence is 1 / (1 + ridge) for all."""
        rng = np.random.default_rng(seed)
        X, n = 10.0 + rng.normal(size=(B, 4)), rng.integers(1, 500, B)
        mean = (n[:, None] * X).sum(0) / n.sum()
        way = match(X, n, np.arange(B), ridge=ridge)
        np.testing.assert_allclose(way, (mean - X) / (1.0 + ridge), rtol=1e-9, atol=1e-9)

    def test_a_newcomer_goes_to_the_mean_of_those_that_stay(self, rng):
        X, n = rng.normal(size=(4, 3)), np.array([10, 20, 30, 400])
        way = match(X, n, np.arange(4), np.array([True, True, True, False]), ridge=0.0)
        np.testing.assert_array_equal(way[:3], 0.0)
        there = (n[:3, None] * X[:3]).sum(0) / 60
        np.testing.assert_allclose(X[3] + way[3], there, rtol=1e-9)

    def test_one_batch_stays(self, rng):
        X = rng.normal(size=(9, 3))
        np.testing.assert_array_equal(match(X, np.full(9, 7), np.zeros(9, int)), 0.0)


class TestSeveralPopulations:
    @given(SEEDS)
    def test_like_meets_like(self, seed):
        X, n, batch, kind = points(seed)
        there = X + match(X, n, batch, ridge=0.05)
        before = after = 0.0
        for t in range(5):
            for b in range(3):
                own, others = (kind == t) & (batch == b), (kind == t) & (batch != b)
                before += np.linalg.norm(X[own].mean(0) - X[others].mean(0))
                after += np.linalg.norm(there[own].mean(0) - there[others].mean(0))
        assert after < 0.35 * before

    @given(SEEDS)
    def test_batches_that_do_not_differ_hardly_move(self, seed):
        X, n, batch, _ = points(seed, shift=0.0)
        way = match(X, n, batch)
        # The means of a type in two batches differ by 0.5 sqrt(2 d / m): sampling, not a batch effect.
        assert np.sqrt((way**2).sum(1).mean()) < 0.75

    @given(SEEDS, st.sampled_from([1e-3, 50.0]))
    def test_units_do_not_matter(self, seed, unit):
        X, n, batch, _ = points(seed)
        np.testing.assert_allclose(
            match(unit * X, n, batch) / unit, match(X, n, batch), rtol=1e-4, atol=1e-4
        )

    @given(SEEDS, st.sampled_from([1e2, 1e4, 1e6]))
    def test_neither_does_where_the_origin_is(self, seed, offset):
        X, n, batch, _ = points(seed)
        np.testing.assert_allclose(
            match(X + offset, n, batch), match(X, n, batch), rtol=1e-4, atol=1e-4
        )

    @given(SEEDS)
    def test_nor_how_the_axes_lie(self, seed):
        # But for the rounding of distances in single precision, which a softmax magnifies.
        X, n, batch, _ = points(seed)
        Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(6, 6)))[0]
        np.testing.assert_allclose(
            match(X @ Q, n, batch), match(X, n, batch) @ Q, rtol=1e-3, atol=1e-3
        )

    @given(SEEDS)
    def test_batches_that_are_to_stay_stay(self, seed):
        X, n, batch, _ = points(seed)
        still = np.array([True, False, True])
        way = match(X, n, batch, still)
        np.testing.assert_array_equal(way[batch != 1], 0.0)
        assert np.abs(way[batch == 1]).max() > 0.01

    def test_more_evidence_is_asked_with_a_larger_ridge(self, rng):
        X, n, batch, _ = points(3)
        lengths = [np.linalg.norm(match(X, n, batch, ridge=r)) for r in (0.05, 0.2, 1.0, 10.0, 1e6)]
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[-1] < 1e-3 * lengths[0]

    def test_is_deterministic_for_any_number_of_threads(self, threads):
        X, n, batch, _ = points(4, (60, 60, 60, 40), d=10, types=8)
        results = []
        for k in (1, 2, 3):
            threads(k)
            results.append(match(X, n, batch, seed=5))
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])
        assert (match(X, n, batch, seed=6) != results[0]).any()

    @pytest.mark.parametrize("sizes", [(1, 40), (2, 2), (1, 1, 30), (3, 1, 1, 1)])
    def test_batches_of_very_different_size(self, sizes):
        X, n, batch, _ = points(5, sizes)
        way = match(X, n, batch)
        assert np.isfinite(way).all()
        assert np.linalg.norm(way, axis=1).max() < np.ptp(X, axis=0).max() * np.sqrt(6)

    def test_equal_points(self):
        X, batch = np.ones((8, 3)), np.repeat([0, 1], 4)
        np.testing.assert_allclose(match(X, np.full(8, 9), batch), 0.0, atol=1e-12)


class TestRidge:
    @given(SEEDS, st.sampled_from([0.05, 0.2, 3.0]))
    def test_moves_solve_the_regression_in_every_group(self, seed, ridge):
        """Against one least-squares system per group, with offsets and centre as unknowns."""
        rng = np.random.default_rng(seed)
        B, G, K, d = 3, 4, 5, 2
        X = rng.normal(size=(B * K, d))
        weight = rng.uniform(1, 50, (B * K, 1))
        R = rng.dirichlet(np.ones(G), B * K)
        start = K * np.arange(B)
        share = np.add.reduceat(weight, start) / weight.sum()
        held = weight * R
        way = _ridge_moves(X, held, R, start, share, np.zeros(B, bool), ridge)
        expected = np.zeros_like(X)
        for g in range(G):
            own = held[:, g].reshape(B, K)
            mean = np.einsum("bk,bkd->bd", own, X.reshape(B, K, d)) / own.sum(1)[:, None]
            due = share[:, 0] * held[:, g].sum()
            offsets = oracles.ridge_offsets(mean, own.sum(1), due, ridge)
            expected += R[:, [g]] * np.repeat(offsets, K, axis=0)
        np.testing.assert_allclose(way, expected, rtol=1e-8, atol=1e-8)


class TestReach:
    @given(SEEDS, st.sampled_from([(20, 15, 25), (2, 2), (40, 3), (2, 30, 2)]))
    def test_is_the_distance_over_the_spacing(self, seed, sizes):
        X, _, batch, _ = points(seed, sizes)
        np.testing.assert_allclose(reach(X, batch), oracles.reach(X, batch), rtol=1e-6)

    def test_many_points(self, rng):
        X, batch = rng.normal(size=(2500, 3)), np.repeat(np.arange(5), 500)
        np.testing.assert_allclose(reach(X, batch), oracles.reach(X, batch), rtol=1e-6)

    @pytest.mark.parametrize("offset", [1e2, 1e4, 1e6, 1e8])
    def test_does_not_depend_on_where_the_origin_is(self, offset):
        X, _, batch, _ = points(1)
        X = np.round(X, 4)  # so that little is lost when the offset is added
        np.testing.assert_allclose(reach(X + offset, batch), reach(X, batch), rtol=1e-3)

    def test_without_another_batch_nothing_is_in_reach(self, rng):
        for K in (1, 2, 5):
            assert (reach(rng.normal(size=(K, 3)), np.zeros(K, int)) == np.inf).all()

    def test_populations_at_one_place_are_in_reach_of_it(self, rng):
        """Two populations of a batch may coincide: what lies on them is no further for that."""
        x = rng.normal(size=3)
        X = np.stack([x, x, x + 5.0, x, x + 5.0])
        batch = np.array([0, 0, 0, 1, 1])
        found = reach(X, batch)
        assert not np.isnan(found).any()
        assert (found <= 1.5).all()

    def test_a_batch_of_one_population_is_not_in_reach_of_everything(self, rng):
        """It has no spacing of its own, so that of the others must do."""
        X = np.concatenate([rng.normal(size=(10, 3)), [[1e3, 1e3, 1e3]]])
        found = reach(X, np.repeat([0, 1], [10, 1]))
        assert (found > 1.5).all()


class TestRivalry:
    @given(SEEDS, st.sampled_from([(20, 15, 25), (2, 2), (40, 3), (1, 30, 2)]))
    def test_asks_whether_the_nearest_has_nearer_ones(self, seed, sizes):
        X, _, batch, _ = points(seed, sizes)
        found = rivalry(X, batch)
        np.testing.assert_allclose(found, oracles.rivalry(X, batch), rtol=1e-6)
        assert found.min() >= 1 - 1e-9
        assert found.min() <= 1 + 1e-9  # the closest pair of all is mutual

    def test_does_not_depend_on_where_the_origin_is(self):
        X, _, batch, _ = points(1)
        X = np.round(X, 4)
        np.testing.assert_allclose(rivalry(X + 1e6, batch), rivalry(X, batch), rtol=1e-3)

    def test_without_another_batch_there_is_none(self, rng):
        assert (rivalry(rng.normal(size=(5, 3)), np.zeros(5, int)) == np.inf).all()

    def test_populations_at_one_place_have_none(self, rng):
        x = rng.normal(size=(4, 3))
        X, batch = np.concatenate([x, x]), np.repeat([0, 1], 4)
        found = rivalry(X, batch)
        assert not np.isnan(found).any()
        assert (found <= 1.0).all()
