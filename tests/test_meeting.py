"""Mutual neighbours across batches, and the field by which they meet."""

import numpy as np
import pytest

import population_oracles as oracles
from scbatchprox import set_num_threads
from scbatchprox.meeting import capped, meet, neighbours, spacing


def plain_neighbours(Y, unit, n, batch, b, still=()):
    """Weights of batch b, and ways times these, every sum written out in doubles."""
    D = oracles.squared_distances(Y, Y) / unit**2
    own = np.flatnonzero(batch == b)
    weight, pull = np.zeros(own.size), np.zeros((own.size, Y.shape[1]))
    for row, i in enumerate(own):
        for c in set(batch.tolist()) - {b}:
            theirs = np.flatnonzero(batch == c)
            for j in theirs:
                there = np.exp(-D[i, j] / 0.2) / np.exp(-D[i, theirs] / 0.2).sum()
                back = np.exp(-D[i, j] / 0.2) / np.exp(-D[own, j] / 0.2).sum()
                w = np.sqrt(n[i] * n[j]) * there * back * (1.0 + D[i, j]) ** -4
                weight[row] += w
                part = 1.0 if c in still else n[j] / (n[i] + n[j])
                pull[row] += w * part * (Y[j] - Y[i])
    return weight, pull


def grid(rng, sizes, d=5, sep=8.0, wide=0.0):
    """Populations at common places, ``sep`` apart, the first so many of them in each batch."""
    places = np.linalg.qr(rng.normal(size=(d, d)))[0] * sep
    X = np.concatenate([places[:k] + wide * rng.normal(size=(k, d)) for k in sizes])
    return X, rng.integers(20, 90, len(X)), np.concatenate([[0], np.cumsum(sizes)])


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


def still(start, *batches):
    return np.isin(np.arange(start.size - 1), batches)


def test_neighbours_are_as_defined(rng):
    Y = 3.0 * rng.normal(size=(14, 3)) + 1e4
    batch = np.repeat([0, 1, 2], [5, 1, 8])
    n, start = rng.integers(1, 90, 14).astype(float), np.array([0, 5, 6, 14])
    for b in range(3):
        weight, pull = neighbours(Y, 3.0, n, start, still(start, 2), b)
        expected = plain_neighbours(Y, 3.0, n, batch, b, {2})
        for found, exact in zip((weight, weight[:, None] * pull), expected, strict=True):
            # What is fainter than exp(-12) is left out.
            np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())


def test_spacing_is_the_mean_of_least_squares_within_batches(rng):
    X, n, _ = grid(rng, [4, 3], wide=1.0)
    parts = [slice(0, 4), slice(4, 7)]
    D = [oracles.squared_distances(X[p], X[p]) + np.diag([np.inf] * len(X[p])) for p in parts]
    expected = np.average(np.concatenate([d.min(1) for d in D]), weights=n)
    assert spacing(X, n, parts) == pytest.approx(expected)
    assert spacing(X[:2], n[:2], [slice(0, 1), slice(1, 2)]) == 0.0


def test_batches_that_coincide_stay(rng):
    X, n, start = grid(rng, [5, 5, 5])
    ways = rng.normal(size=(3, 5))  # the field takes back what the batches' ways would tear apart
    assert np.ptp(np.stack(np.split(X + np.repeat(ways, 5, axis=0), 3)), axis=0).max() > 1.0
    for way in (np.zeros((3, 5)), np.tile(ways[:1], (3, 1))):
        found = meet(X, n, start, way, still(start), 0.02)
        np.testing.assert_allclose(found, np.repeat(way, 5, axis=0), atol=1e-3)
    met = X + meet(X, n, start, ways, still(start), 0.02)
    assert np.ptp(np.stack(np.split(met, 3)), axis=0).max() < 0.3


def test_a_small_batch_comes_to_a_large_one(rng):
    X, n, start = grid(rng, [5, 5])
    X[7] += [1.5, 0, 0, 0, 0]
    for large, small in ((0, 1), (1, 0)):
        n[:] = 50
        n[start[large] : start[large + 1]] = 5000
        way = meet(X, n, start, np.zeros((2, 5)), still(start), 0.02)
        moved = np.linalg.norm(way[[2, 7]], axis=1)
        assert moved[small] > 1.0
        assert moved[large] < 0.05


def test_a_pair_far_from_the_bulk_is_seen_as_sharply(rng):
    """Single precision about the middle of all cells would see nothing at such distances."""
    X, n, start = grid(rng, [4, 4], wide=0.5)
    pair = meet(X, n, start, np.zeros((2, 5)), still(start), 0.02)
    bulk = [X[:4] - 1e6 + k for k in range(3)]
    Y, m = np.concatenate([*bulk, X]), np.concatenate([np.tile(n[:4], 3), n])
    edges = np.arange(0, 21, 4)
    far = meet(Y, m, edges, np.zeros((5, 5)), still(edges), 0.02 * n.mean() / m.mean())
    assert np.abs(pair).max() > 0.1
    np.testing.assert_allclose(far[12:], pair, atol=0.05)


def test_what_is_off_by_itself_meets_and_the_rest_hardly_moves(rng):
    """A batch effect in one population, which no shift of the batch could mend."""
    X, n, start = grid(rng, [5, 5])
    n[:] = 50
    X[7] += [1.5, 0, 0, 0, 0]
    way = meet(X, n, start, np.zeros((2, 5)), still(start), 0.02)
    assert np.linalg.norm((X + way)[7] - (X + way)[2]) < 0.3
    others = np.delete(way, [2, 7], axis=0)
    assert np.linalg.norm(others, axis=1).max() < 0.15


def test_what_has_no_neighbour_follows_its_batch(rng):
    X, n, start = grid(rng, [4, 5])
    X[-1] *= 50.0
    ways = rng.normal(size=(2, 5))
    way = meet(X, n, start, ways, still(start), 0.02, width=1.0)
    pulled = np.average(way[4:8] - ways[1], axis=0)  # of those with neighbours: all of it is shared
    off = np.linalg.norm(way[-1] - ways[1])
    assert off <= np.linalg.norm(pulled) + 1e-6
    assert np.linalg.norm(ways[1]) > 0.5


def test_batches_that_are_far_are_not_drawn_together(rng):
    X, n, start = grid(rng, [5, 5])
    X[5:] += 100.0
    ways = rng.normal(size=(2, 5))
    way = meet(X, n, start, ways, still(start), 0.02, width=5.0)
    np.testing.assert_allclose(way, np.repeat(ways, 5, axis=0), atol=1e-3)


def test_more_noise_is_a_shorter_way(rng):
    X, n, start = grid(rng, [5, 5, 4], wide=1.0)
    ways = [meet(X, n, start, np.zeros((3, 5)), still(start), s) for s in (0, 0.02, 0.5, 1e6)]
    lengths = [np.linalg.norm(way) for way in ways]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < 1e-3 * lengths[0]


def test_those_that_stay_stay_and_the_others_come_to_them(rng):
    X, n, start = grid(rng, [5, 5], wide=0.3)
    way = meet(X, n, start, np.zeros((2, 5)), still(start, 0), 0.02)
    np.testing.assert_array_equal(way[:5], 0.0)
    before, after = (np.linalg.norm(Y[5:] - Y[:5], axis=1).mean() for Y in (X, X + way))
    assert after < 0.2 * before


@pytest.mark.parametrize("offset", [1e3, -1e5])
def test_where_the_origin_is(rng, offset):
    X, n, start = grid(rng, [5, 5, 3], wide=1.0)
    here, far = (meet(Y, n, start, np.zeros((3, 5)), still(start), 0.02) for Y in (X, X + offset))
    assert np.abs(here).max() > 0.1
    np.testing.assert_allclose(far, here, atol=1e-4)


def test_any_number_of_threads(rng, threads):
    X, n, start = grid(rng, [20, 30, 25, 8], d=30, wide=1.0)
    results = []
    for k in (1, 2, 3):
        threads(k)
        results.append(meet(X, n, start, np.zeros((4, 30)), still(start), 0.02))
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_the_width_of_populations_caps_their_spacing():
    """Tight populations count for their spacing in part, points too: nothing jumps at 0."""
    assert capped(9.0, np.inf) == 9.0
    assert capped(9.0, 4.0) == pytest.approx(6.0)
    for width in (0.0, 1e-18, 1e-3):
        assert capped(9.0, width) == pytest.approx(9.0 / 16.0)
    np.testing.assert_allclose(capped(np.array([1.0, np.inf]), 0.5), [0.75, np.inf])
