"""The populations of each batch: their anchors, which cells belong to them, and their moments."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans

import population_oracles as oracles
from data import cells, in_memory, labels_of, make_cells
from scbatchprox import Moments, PopulationSettings, PopulationTarget
from scbatchprox.core.moments import Anchors
from scbatchprox.kernels.kmeans import kmeans
from scbatchprox.targets.population.find import anchors_for

RULE = PopulationTarget()


def described(Z, batch, population=None, known=None):
    labels = labels_of(batch)
    given = None if population is None else labels_of(population)
    return RULE.describe(in_memory(Z, labels), known, given)


def found(Z, batch, seed=0, **options):
    labels = labels_of(batch)
    return anchors_for(labels, in_memory(Z, labels).sample, seed, **options)


def anchors_of(moments):
    return Anchors(moments.batches, moments.batch, moments.anchors)


def centers(anchors, batch):
    return anchors.center[anchors.batch == anchors.batches.tolist().index(batch)]


def blobs(rng, n, d=6, K=8, spread=4.0):
    return spread * rng.normal(size=(K, d))[rng.integers(0, K, n)] + rng.normal(size=(n, d))


class TestKMeans:
    @pytest.mark.parametrize("k", [1, 2, 7, 25])
    def test_after_many_rounds_centres_are_the_means_of_their_rows(self, rng, k):
        X = blobs(rng, 400).astype(np.float32)
        C = kmeans(X, np.ones(400), k, 300, rng)
        assert len(C) == k
        near = oracles.squared_distances(X, C).argmin(1)
        means = np.stack([X[near == j].astype(float).mean(0) for j in range(k)])
        np.testing.assert_allclose(C, means, rtol=1e-5, atol=1e-5)

    def test_a_weight_is_a_number_of_equal_rows(self, rng):
        X = blobs(rng, 200).astype(np.float32)
        weight = rng.integers(0, 5, 200)
        one = kmeans(X, weight.astype(float), 9, 20, np.random.default_rng(1))
        many = np.repeat(X, weight, axis=0)
        np.testing.assert_allclose(
            one, kmeans(many, np.ones(len(many)), 9, 20, np.random.default_rng(1)), atol=1e-5
        )

    def test_no_more_centres_than_distinct_rows(self, rng):
        rows = rng.normal(size=(3, 4)).astype(np.float32)
        C = kmeans(rows[rng.integers(0, 3, 100)], np.ones(100), 10, 8, rng)
        assert len(C) == 3
        np.testing.assert_allclose(np.sort(C, 0), np.sort(rows, 0), atol=1e-6)


class TestAnchors:
    @pytest.mark.parametrize("n", [200, 1000, 5000])
    def test_describe_a_batch_about_as_well_as_scikit_learn(self, rng, n):
        Z = blobs(rng, n, K=30)
        C = found(Z, np.zeros(n, int)).center
        best = KMeans(len(C), n_init=2, random_state=0).fit(Z).inertia_
        # With 200 cells there are fewer populations than blobs, so chance decides which blobs share one.
        assert oracles.inertia(Z, C) < (1.3 if n == 200 else 1.05) * best

    def test_are_nearly_the_means_of_their_cells(self, rng):
        Z = blobs(rng, 1500)
        populations = described(Z, np.zeros(1500, int))
        C, means = populations.anchors, populations.mean
        assert 0 <= oracles.inertia(Z, C) - oracles.inertia(Z, means) < 0.05 * oracles.inertia(Z, C)

    @pytest.mark.parametrize(
        ("n", "wanted"),
        [
            (1, 1), (2, 2), (3, 2), (9, 2), (10, 2), (15, 3), (24, 4), (60, 12), (99, 19), (100, 20),
            (199, 20), (205, 20), (215, 21), (400, 40), (600, 60), (1500, 60),
        ],
    )  # fmt: skip
    def test_their_number_follows_that_of_the_cells(self, rng, n, wanted):
        """One per 10 cells, at most 60. Small batches have populations of 5 cells, until they have 20."""
        C = found(rng.normal(size=(n, 3)), ["a"] * n).center
        assert 1 <= len(C) <= wanted
        assert len(C) > 0.8 * wanted  # a few centres may have no cells
        assert len(np.unique(C, axis=0)) == len(C)

    def test_their_number_is_a_setting(self, rng):
        Z, batch = rng.normal(size=(120, 3)), ["a"] * 120
        cells = in_memory(Z, batch)
        for options, wanted in [
            ({"cells": 30, "most": 12}, 4),
            ({"cells": 30, "most": 21}, 7),
            ({"cells": 6}, 20),
            ({"most": 3}, 3),
        ]:
            settings = PopulationSettings(**options)
            assert len(found(Z, batch, settings=settings).center) == wanted
            assert PopulationTarget(settings=settings).describe(cells).n_rows == wanted

    @pytest.mark.parametrize("n", range(1, 61, 7))
    def test_every_population_of_a_small_batch_has_cells(self, rng, n):
        populations = described(rng.normal(size=(n, 3)), ["a"] * n)
        assert populations.n.min() > 0
        assert populations.n.sum() == n

    def test_equal_cells_are_one_population(self):
        populations = described(np.full((50, 3), 7.25), np.repeat(["a", "b"], 25))
        np.testing.assert_array_equal(populations.anchors, np.full((2, 3), 7.25))
        assert populations.n.tolist() == [25, 25]
        np.testing.assert_array_equal(populations.m2, 0.0)

    def test_a_few_distinct_cells_are_as_many_populations(self, rng):
        rows = rng.normal(size=(3, 5))
        code = rng.integers(0, 3, 90)
        populations = described(rows[code], ["a"] * 90)
        order = np.lexsort(populations.anchors.T)
        expected = np.lexsort(rows.T)
        np.testing.assert_allclose(populations.anchors[order], rows[expected], atol=1e-6)
        np.testing.assert_array_equal(
            populations.n[order], np.bincount(code, minlength=3)[expected]
        )

    def test_do_not_depend_on_other_batches(self, rng):
        c = make_cells(rng, [70, 4000, 9, 333], 5)  # the second is sampled
        for names in (["a", "b", "c", "d"], ["z", "y", "x", "w"], ["m", "a", "z", "b"]):
            names = np.array(names)
            together = found(c.Z, names[c.codes])
            assert together.batches.tolist() == sorted(names)
            for b in range(4):
                separate = found(c.rows(b), [names[b]] * len(c.rows(b)))
                np.testing.assert_array_equal(centers(together, names[b]), separate.center)

    def test_are_found_for_new_batches_and_kept_for_known_ones(self, rng):
        c = make_cells(rng, [70, 90, 9, 333], 5)
        known = described(*(x[np.isin(c.codes, [1, 3])] for x in (c.Z, c.codes)))
        labels = labels_of(c.codes)
        both = anchors_for(labels, in_memory(c.Z, labels).sample, 0, anchors_of(known))
        whole = found(c.Z, c.codes)
        assert both.batches.tolist() == [0, 1, 2, 3]
        for b in (1, 3):
            np.testing.assert_array_equal(centers(both, b), centers(anchors_of(known), b))
        for b in (0, 2):
            np.testing.assert_array_equal(centers(both, b), centers(whole, b))

    def test_are_the_same_for_any_number_of_threads(self, rng, threads):
        c = make_cells(rng, [700, 40, 3500], 7)
        results = []
        for n in (1, 2, 3, 8):
            threads(n)
            results.append(described(c.Z, c.codes))
        for other in results[1:]:
            np.testing.assert_array_equal(other.anchors, results[0].anchors)
            for part in ("n", "mean", "m2"):
                np.testing.assert_array_equal(getattr(other, part), getattr(results[0], part))

    def test_another_seed_is_another_clustering(self, rng):
        Z = rng.normal(size=(500, 4))
        one, again, two = (found(Z, ["a"] * 500, seed).center for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, again)
        assert one.shape != two.shape or (one != two).any()

    def test_move_with_the_cells(self, rng):
        Z = np.round(blobs(rng, 900), 3)
        far = found(Z + 1e4, ["a"] * 900).center
        near = found(Z, ["a"] * 900).center
        assert abs(oracles.inertia(Z, far - 1e4) / oracles.inertia(Z, near) - 1) < 0.01

    @pytest.mark.parametrize("kind", [np.float32, sp.csr_matrix, sp.csc_array, np.asfortranarray])
    def test_any_container(self, rng, kind):
        Z = np.round(rng.normal(size=(400, 5)), 2).astype(np.float32)
        Z[rng.random(Z.shape) < 0.3] = 0.0
        codes = np.repeat([0, 1], 200)
        from scbatchprox.core.checks import check_embedding

        expected = described(Z, codes)
        result = described(check_embedding(kind(Z) if kind is not np.float32 else Z), codes)
        np.testing.assert_array_equal(result.anchors, expected.anchors)
        np.testing.assert_allclose(result.mean, expected.mean, rtol=1e-12)

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_cells_that_are_not_finite(self, rng, bad):
        Z = rng.normal(size=(80, 3))
        Z[17, 2] = bad
        with pytest.raises(ValueError, match="Expected finite values.*row 17, column 2"):
            described(Z, np.repeat(["a", "b"], 40))


def assert_moments(a, b, rtol=1e-10):
    assert a.batches.tolist() == b.batches.tolist()
    np.testing.assert_array_equal(a.n, b.n)
    np.testing.assert_allclose(a.mean, b.mean, rtol=rtol, atol=1e-10)
    np.testing.assert_allclose(a.m2, b.m2, rtol=rtol, atol=1e-8)


def assert_populations(a, b, rtol=1e-10):
    assert a.batches.tolist() == b.batches.tolist()
    np.testing.assert_array_equal(a.batch, b.batch)
    np.testing.assert_array_equal(a.anchors, b.anchors)
    assert_moments(a, b, rtol)


def some_of(c, *batches):
    rows = np.isin(c.codes, batches)
    return c.Z[rows], c.codes[rows]


class TestMoments:
    @given(cells(max_batches=6), st.booleans())
    def test_of_populations_add_up_to_those_of_batches(self, c, given):
        labels = np.arange(len(c.Z)) % 3 if given else None
        populations = described(c.Z, c.codes, labels)
        whole = Moments.of(c.Z, c.codes)
        assert_moments(populations.by_batch, whole)
        assert populations.n_cells == len(c.Z)
        assert populations.n_dims == c.d

    @given(cells(max_batches=5))
    def test_are_those_of_the_cells_nearest_to_each_anchor(self, c):
        populations = described(c.Z, c.codes)
        codes = oracles.nearest_row(c.Z, c.codes, populations)
        expected = oracles.moments_of(c.Z, codes)
        assert sorted(expected) == list(range(populations.n_rows))
        for p, (n, mean, m2) in expected.items():
            assert populations.n[p] == n
            np.testing.assert_allclose(populations.mean[p], mean, rtol=1e-10, atol=1e-10)
            np.testing.assert_allclose(populations.m2[p], m2, rtol=1e-8, atol=1e-8)
        for b in range(c.B):
            within = sum(
                m2.sum() for p, (_, _, m2) in expected.items() if populations.batch[p] == b
            )
            assert populations.within[b] == pytest.approx(within / (c.codes == b).sum(), abs=1e-9)

    def test_given_populations_are_pairs_of_labels(self, rng):
        c = make_cells(rng, [50, 40, 30], 4)
        kind = rng.choice(["T", "B", "NK"], len(c.Z))
        kind[c.codes == 2] = "mast"
        batch = np.array(["x", "y", "w"])[c.codes]
        populations = described(c.Z, batch, kind)
        expected = oracles.moments_of(c.Z, list(zip(batch.tolist(), kind.tolist(), strict=True)))
        assert populations.batches.tolist() == ["w", "x", "y"]
        assert populations.batches[populations.batch].tolist() == [b for b, _ in expected]
        for p, (n, mean, m2) in enumerate(expected.values()):
            assert populations.n[p] == n
            np.testing.assert_allclose(populations.mean[p], mean, rtol=1e-12)
            np.testing.assert_allclose(populations.m2[p], m2, rtol=1e-10)
        np.testing.assert_array_equal(populations.anchors, populations.mean)

    @pytest.mark.parametrize("order", list(itertools.permutations([[0], [1, 3], [2]])))
    def test_batches_merge_in_any_order(self, rng, order):
        c = make_cells(rng, [50, 400, 30, 7], 4)
        parts = [described(*some_of(c, *batches)) for batches in order]
        merged = parts[0].merge(parts[1]).merge(parts[2])
        assert_populations(merged, described(c.Z, c.codes))

    def test_more_cells_of_a_batch_join_its_populations(self, rng):
        c = make_cells(rng, [300, 200], 4)
        first = np.arange(len(c.Z)) < 250
        before = described(c.Z[first], c.codes[first])
        more = described(c.Z[~first], c.codes[~first], known=before)
        merged = before.merge(more)
        np.testing.assert_array_equal(merged.anchors, before.anchors)
        codes = oracles.nearest_row(c.Z, c.codes, before)
        expected = Moments.of(c.Z, codes)
        np.testing.assert_array_equal(merged.n, expected.n)
        np.testing.assert_allclose(merged.mean, expected.mean, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(merged.m2, expected.m2, rtol=1e-10, atol=1e-10)
        assert_moments(merged.by_batch, Moments.of(c.Z, c.codes))

    def test_a_single_cell_more(self, rng):
        c = make_cells(rng, [60, 50], 3, offset=1e4)
        before = described(c.Z, c.codes)
        more = described(c.Z[:1] + 0.1, c.codes[:1], known=before)
        assert more.batches.tolist() == [c.codes[0]]
        assert more.n_cells == 1
        np.testing.assert_allclose(more.by_batch.mean, c.Z[:1] + 0.1, rtol=1e-12)
        np.testing.assert_allclose(more.by_batch.m2, 0.0, atol=1e-12)
        merged = before.merge(more)
        assert merged.n_cells == 111
        both = np.r_[c.Z, c.Z[:1] + 0.1], np.r_[c.codes, c.codes[:1]]
        assert_moments(merged.by_batch, Moments.of(*both))

    def test_moments_at_other_anchors_do_not_merge(self, rng):
        c = make_cells(rng, [60, 50], 3)
        populations = described(c.Z, c.codes)
        with pytest.raises(ValueError, match="Expected the populations that are known"):
            populations.merge(described(c.Z + 0.5, c.codes))

    def test_dropped_and_selected_batches(self, rng):
        c = make_cells(rng, [50, 400, 30, 7], 4)
        whole = described(c.Z, c.codes)
        assert_populations(whole.drop(1), described(*some_of(c, 0, 2, 3)))
        assert_populations(whole.select([3, 1]), described(*some_of(c, 1, 3)))
        assert_populations(whole.select([0]).merge(whole.select([2, 3])), whole.drop(1))
        none = whole.select([])
        assert none.n_cells == 0
        assert_populations(none.merge(whole), whole)
        assert_populations(whole.merge(none), whole)
        with pytest.raises(KeyError, match="found 9; available: 0, 1, 2, 3"):
            whole.drop(9)

    def test_short_and_long_names(self, rng):
        """numpy arrays of strings have a fixed length: names must not be cut when batches merge."""
        Z = rng.normal(size=(90, 3))
        short, long = described(Z[:40], ["a"] * 40), described(Z[40:], ["a longer name"] * 50)
        merged = short.merge(long)
        assert merged.batches.tolist() == ["a", "a longer name"]
        assert merged.by_batch.n.tolist() == [40, 50]
        assert merged.select(["a longer name"]).n_cells == 50
        assert short.select(["a longer name"]).n_cells == 0

    def test_other_numbers_of_coordinates_do_not_merge(self, rng):
        one = described(rng.normal(size=(40, 3)), ["a"] * 40)
        two = described(rng.normal(size=(40, 4)), ["b"] * 40)
        with pytest.raises(ValueError, match="Expected moments of 3 coordinates, found 4"):
            one.merge(two)


def test_rows_of_each_batch():
    anchors = Anchors(np.array(["a", "b"]), np.array([0, 0, 1]), np.arange(6.0).reshape(3, 2))
    assert anchors.start.tolist() == [0, 2, 3]
    np.testing.assert_array_equal(anchors.origin, [[1.0, 2.0], [4.0, 5.0]])
    n, zeros = np.array([1, 3, 2]), np.zeros((3, 2))
    moments = Moments(np.array(["a", "b"]), np.array([0, 0, 1]), n, zeros, zeros)
    assert [moments.own(b) for b in range(2)] == [slice(0, 2), slice(2, 3)]
    assert moments.by_batch.n.tolist() == [4, 2]
    assert moments.rows_of(np.array(["b"])).tolist() == [2]
