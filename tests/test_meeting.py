"""Mutual neighbours across batches, and the field by which they meet."""

import numpy as np
import pytest

import population_oracles as oracles
from scbatchprox import set_num_threads
from scbatchprox.meeting import meet, neighbours, spacing


def plain_neighbours(X, Y, n, batch, b):
    """Weights of batch b, and pulls times these, every sum written out in doubles."""
    D = oracles.squared_distances(X, X)
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
                pull[row] += w * (Y[j] - Y[i])
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
    X = rng.normal(size=(14, 3))
    batch = np.repeat([0, 1, 2], [5, 1, 8])
    n, start = rng.integers(1, 90, 14), np.array([0, 5, 6, 14])
    for b in range(3):
        weight, pull = neighbours(X.astype(np.float32), 3.0 * X, np.sqrt(n), start, b)
        expected = plain_neighbours(X, 3.0 * X, n, batch, b)
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
    way = meet(X, n, start, np.zeros((3, 5)), still(start), 0.02)
    np.testing.assert_allclose(way, 0.0, atol=1e-3)


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
    ways = rng.normal(size=(2, 5)) * 0.01
    way = meet(X, n, start, ways, still(start), 0.02, width=1.0)
    np.testing.assert_allclose(way[-1], ways[1], atol=0.02)


def test_batches_that_are_far_are_not_drawn_together(rng):
    X, n, start = grid(rng, [5, 5])
    X[5:] += 100.0
    way = meet(X, n, start, np.zeros((2, 5)), still(start), 0.02, width=5.0)
    np.testing.assert_allclose(way, 0.0, atol=1e-3)


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
    np.testing.assert_allclose(far, here, atol=1e-4)


def test_any_number_of_threads(rng, threads):
    X, n, start = grid(rng, [20, 30, 25, 8], d=30, wide=1.0)
    results = []
    for k in (1, 2, 3):
        threads(k)
        results.append(meet(X, n, start, np.zeros((4, 30)), still(start), 0.02))
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])
