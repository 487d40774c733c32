"""Matrix products over cells, compared with plain loops: k-means, nearest centres, moments, mixtures."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans, kmeans_plusplus
from threadpoolctl import threadpool_limits

import population_oracles as oracles
from data import labels_of, make_cells
from scbatchprox import Adapter, BatchProx, Moments, set_num_threads
from scbatchprox.core.moments import Anchors, group_moments
from scbatchprox.kernels import blocks
from scbatchprox.kernels.kmeans import kmeans, plus_plus


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


def slow_plus_plus(X, weight, draws):
    """One row at a time, in double precision."""
    near, chosen = np.ones(len(X)), []
    for draw in draws:
        mass = weight * near
        if mass.sum() <= 0:
            break
        at = int(np.argmax(np.cumsum(mass) > draw * mass.sum()))
        far = ((X - X[at]) ** 2).sum(1)
        near = far if not chosen else np.minimum(near, far)
        chosen.append(at)
    return chosen


def slow_lloyd(X, weight, C, rounds):
    for _ in range(rounds):
        near = oracles.squared_distances(X, C).argmin(1)
        mass = np.array([weight[near == k].sum() for k in range(len(C))])
        for k in np.flatnonzero(mass):
            C[k] = (weight[near == k, None] * X[near == k]).sum(0) / mass[k]
    return C[mass > 0]


class TestKMeans:
    @given(st.integers(0, 10_000), st.integers(1, 40), st.integers(1, 6), st.booleans())
    def test_equals_plain_loops(self, seed, k, d, weighted):
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(150, d)).astype(np.float32)
        weight = rng.uniform(0, 3, 150) if weighted else np.ones(150)
        draws = np.random.default_rng(1).random(k)
        doubles = X.astype(float)
        first = slow_plus_plus(doubles, weight, draws)
        assert plus_plus(np.ascontiguousarray(X.T), weight, draws).tolist() == first
        expected = slow_lloyd(doubles, weight, doubles[first], 5)
        result = kmeans(X, weight, k, 5, np.random.default_rng(1))
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("k", [5, 20, 60])
    def test_is_as_good_as_that_of_scikit_learn(self, rng, k):
        X = (3.0 * rng.normal(size=(25, 10))[rng.integers(0, 25, 2000)]).astype(np.float32)
        X += rng.normal(size=X.shape)
        ours = [
            oracles.inertia(X, kmeans(X, np.ones(2000), k, 8, np.random.default_rng(s)))
            for s in range(5)
        ]
        theirs = []
        for seed in range(5):
            # The default of scikit-learn tries several rows for each centre and takes the best.
            start, _ = kmeans_plusplus(X, k, random_state=seed, n_local_trials=1)
            theirs.append(KMeans(k, init=start, n_init=1, max_iter=8).fit(X).inertia_)
        assert np.mean(ours) < 1.05 * np.mean(theirs)

    def test_finds_distant_groups(self, rng):
        at = np.array([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0], [100.0, 100.0]])
        kind = rng.integers(0, 4, 400)
        X = (at[kind] + rng.normal(size=(400, 2)) - 50.0).astype(np.float32)
        C = kmeans(X, np.ones(400), 4, 8, rng)
        means = np.stack([X[kind == t].mean(0, dtype=float) for t in range(4)])
        np.testing.assert_allclose(C[np.lexsort(C.T)], means[np.lexsort(means.T)], atol=1e-4)

    def test_equal_rows_are_drawn_once_far_from_the_origin(self, rng):
        """Products have rounding errors there, but the distance of equal rows must be 0."""
        rows = (1000.0 + rng.normal(size=(4, 30))).astype(np.float32)
        X = rows[rng.integers(0, 4, 300)]
        assert len(plus_plus(np.ascontiguousarray(X.T), np.ones(300), rng.random(20))) == 4


class TestRuns:
    @given(st.integers(0, 10_000), st.sampled_from([1, 3, 300, 70_000]), st.integers(1, 400))
    def test_contain_every_row_once(self, seed, n_batches, n):
        rng = np.random.default_rng(seed)
        codes = rng.integers(0, n_batches, n).astype(np.int32)
        order, start = blocks.sorted_rows(codes, n_batches)
        np.testing.assert_array_equal(order, np.argsort(codes, kind="stable"))
        np.testing.assert_array_equal(np.diff(start), np.bincount(codes, minlength=n_batches))

    @pytest.mark.parametrize("step", [7, 64, 10_000])
    def test_do_not_depend_on_threads(self, rng, monkeypatch, threads, step):
        monkeypatch.setattr(blocks, "PART_ROWS", step)
        monkeypatch.setattr(blocks, "ROWS_PER_BATCH", 1)
        monkeypatch.setattr(blocks, "RUN_ROWS", 5)
        codes = np.sort(rng.integers(0, 4, 300))
        codes[100:250] = rng.integers(0, 4, 150)

        def work(b, rows):
            found = np.arange(300)[rows]
            assert (codes[found] == b).all()
            assert found.size <= 5
            return found.tolist()

        results = []
        for n in (1, 4):
            threads(n)
            results.append(list(blocks.map_runs(work, codes.astype(np.int32), 4)))
        assert results[0] == results[1]
        assert sorted(row for _, rows in results[0] for row in rows) == list(range(300))


def far_cells(rng, offset, dtype, sizes=(3000, 40, 5, 1)):
    c = make_cells(rng, list(sizes), 6, offset)
    return c.Z.astype(dtype), c.codes


def anchors_of(Z, codes):
    """The anchors of a fit."""
    found = BatchProx().fit(Z, batch=codes).fit_.moments
    return Anchors(found.batches, found.batch, found.anchors)


class TestMomentsOfAnchors:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("offset", [0.0, 1e4, -1e8])
    def test_are_those_of_plain_loops(self, rng, dtype, offset):
        Z, codes = far_cells(rng, offset, dtype)
        labels = labels_of(codes)
        anchors = anchors_of(Z, codes)
        result = anchors.moments(Z, labels)
        expected = oracles.moments_of(Z.astype(float), oracles.nearest_row(Z, codes, anchors))
        assert result.batches.tolist() == sorted(expected)
        scale = max(1.0, abs(offset))
        for p, (n, mean, m2) in enumerate(expected[k] for k in sorted(expected)):
            assert result.n[p] == n
            np.testing.assert_allclose(result.mean[p], mean, rtol=0, atol=1e-13 * scale)
            # The mean of the oracle has the rounding error of a double of this size.
            np.testing.assert_allclose(
                result.m2[p], m2, rtol=1e-11, atol=n * (1e-15 * scale) ** 2 + 1e-12
            )

    def test_do_not_cancel(self, rng):
        """Populations with standard deviation 1e-4 and distances of 1e4."""
        center = 1e4 * rng.normal(size=(3, 4))
        near = rng.integers(0, 3, 500)
        Z = center[near] + 1e-4 * rng.normal(size=(500, 4))
        result = Anchors(np.array(["a"]), np.zeros(3, int), center).moments(
            Z, labels_of(["a"] * 500)
        )
        for k in range(3):
            gap = Z[near == k] - center[k]
            np.testing.assert_allclose(result.m2[k], ((gap - gap.mean(0)) ** 2).sum(0), rtol=1e-9)

    @pytest.mark.parametrize("kind", [sp.csr_matrix, np.asfortranarray, np.asarray])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
    def test_any_container_and_number_of_threads(self, rng, kind, dtype, threads):
        Z = rng.poisson(1.0, (9000, 5)).astype(dtype)
        codes = rng.integers(0, 3, 9000)
        labels = labels_of(codes)
        anchors = anchors_of(Z, codes)
        plain = anchors.moments(Z, labels)
        for n in (1, 2, 3, 8):
            threads(n)
            other = anchors.moments(kind(Z), labels)
            for part in ("n", "mean", "m2"):
                np.testing.assert_array_equal(getattr(other, part), getattr(plain, part))

    @pytest.mark.filterwarnings("error")
    def test_cells_too_large_for_squares(self, rng):
        Z = rng.normal(size=(50, 3))
        Z[7] = 1e200
        anchors = Anchors(np.array(["all"]), np.zeros(2, int), rng.normal(size=(2, 3)))
        with pytest.raises(ValueError, match="Expected values of moderate size"):
            anchors.moments(Z, labels_of(["all"] * 50))


class TestMomentsOfGroups:
    @given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([0.0, -1e4]))
    def test_are_those_of_the_compiled_loops(self, seed, groups, offset):
        rng = np.random.default_rng(seed)
        Z = offset + rng.normal(size=(200, 3))
        labels = labels_of(rng.integers(0, groups, 200))
        one, two = group_moments(Z, labels), Moments.of(Z, labels)
        np.testing.assert_array_equal(one.batches, two.batches)
        np.testing.assert_array_equal(one.n, two.n)
        np.testing.assert_allclose(one.mean, two.mean, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(one.m2, two.m2, rtol=1e-11, atol=1e-11)

    def test_very_many(self, rng, threads):
        codes = rng.integers(0, 20_000, 60_000)
        Z = rng.normal(size=(60_000, 2)).astype(np.float32)
        results = []
        for n in (1, 3):
            threads(n)
            results.append(group_moments(Z, labels_of(codes)))
        two = Moments.of(Z, codes)
        for one in results:
            np.testing.assert_array_equal(one.mean, results[0].mean)
            np.testing.assert_array_equal(one.n, two.n)
            np.testing.assert_allclose(one.m2, two.m2, rtol=1e-10, atol=1e-12)


def mixed(rng, K, d, stretch, offset=0.0):
    center = offset + 2.0 * rng.normal(size=(K, d))
    scale = rng.uniform(0.5, 1.5, (K, d)) if stretch else np.ones((K, d))
    shift = (1.0 - scale) * center + rng.normal(size=(K, d))
    return Adapter(np.array(["a"]), np.zeros(K, int), scale, shift, center, np.array([1.5]))


class TestMixtures:
    @given(
        st.integers(0, 10_000),
        st.sampled_from([1, 2, 60]),
        st.booleans(),
        st.sampled_from([np.float32, np.float64]),
    )
    def test_are_those_of_plain_loops(self, seed, K, stretch, dtype):
        rng = np.random.default_rng(seed)
        adapter = mixed(rng, K, 7, stretch)
        Z = (3.0 * rng.normal(size=(50, 7))).astype(dtype)
        Z[0] *= 40.0  # weights of this cell underflow in single precision
        result = adapter.apply(Z)
        soft, bound = oracles.mixture(
            Z, np.zeros(50, int), adapter.batch, adapter.anchors,
            adapter.bandwidth, adapter.scale, adapter.shift,
        )  # fmt: skip
        rounding = 1e-11 if dtype is np.float64 else 1e-6 * (np.abs(Z).max() + 10.0)
        assert (np.abs(result - soft).max(1) <= bound + rounding).all()
        # No weights are ignored, so the error is only rounding.
        near = np.arange(50) > 0
        assert np.abs(result - soft)[near].max() < (1e-4 if dtype is np.float64 else 1e-3)

    @pytest.mark.parametrize("offset", [1e4, 1e8])
    def test_far_from_the_origin(self, rng, offset):
        adapter, far = (mixed(np.random.default_rng(3), 20, 5, True, at) for at in (0.0, offset))
        Z = np.round(3.0 * rng.normal(size=(80, 5)), 2)
        near_move, far_move = adapter.apply(Z) - Z, far.apply(Z + offset) - (Z + offset)
        np.testing.assert_allclose(far_move, near_move, rtol=0, atol=1e-4 + 1e-15 * offset)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_do_not_depend_on_threads_nor_other_cells(self, rng, dtype, threads):
        adapter = mixed(rng, 33, 51, True)
        Z = (2.0 * rng.normal(size=(20_000, 51))).astype(dtype)
        results = []
        for n in (1, 2, 3, 8):
            threads(n)
            with threadpool_limits(limits=n, user_api="blas"):
                results.append(adapter.apply(Z))
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])
        for rows in (np.arange(3), [19_999], rng.permutation(20_000)[:700]):
            np.testing.assert_array_equal(adapter.apply(Z[rows]), results[0][rows])

    @pytest.mark.parametrize("given", [np.float32, np.float64])
    @pytest.mark.parametrize("taken", [np.float32, np.float64])
    def test_into_either_type(self, rng, given, taken):
        adapter = mixed(rng, 5, 4, True)
        Z = rng.normal(size=(300, 4)).astype(given)
        out = np.empty(Z.shape, taken)
        adapter.apply(Z, out=out)
        doubles = adapter.apply(Z.astype(np.float64))
        np.testing.assert_allclose(
            out, doubles, rtol=0, atol=3e-6 if taken is np.float32 else 1e-12
        )
