"""Registration of populations: what it must not depend on, what it removes, and what it does not move."""

import numpy as np
import pytest

from registration_data import SETTINGS, Planted, Server, Site, register, register_to
from scbatchprox.targets.population.batches import spacing, spacing_sums
from scbatchprox.targets.population.consensus import Strengths

USUAL = Strengths(0.2, 0.2)
WIDE = 1e9  # a variance so large that it does not limit the spacing
SAME = [[0, 1, 2, 3, 4]] * 3
MIXED = [[0, 1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 4, 6], [1], [2, 3, 4, 5, 6, 7, 8]]


def registered(p, strengths=USUAL, rounds=10, X=None, variance=WIDE, **options):
    X = p.X if X is None else X
    return register(X, p.n, p.start, variance, SETTINGS, strengths, rounds, **options)


def unit(p):
    return np.sqrt(spacing(*spacing_sums(p.X, p.n, p.start), WIDE, SETTINGS))


def directions(seed, lengths, d=8):
    x = np.random.default_rng(seed).normal(size=(len(lengths), d))
    return np.asarray(lengths)[:, None] * x / np.linalg.norm(x, axis=1, keepdims=True)


def mixed(seed, lengths=(0.0, 1.0, 2.0, 0.5, 0.0)):
    return Planted(seed, MIXED, directions(seed, lengths))


def offsets(p, move):
    """Largest mean offset between two batches, over their common types, in units of the spacing."""
    found, off = 0.0, p.X + move - p.truth
    for a in range(p.batch.max() + 1):
        for b in range(a):
            kinds = np.intersect1d(p.kind[p.batch == a], p.kind[p.batch == b])
            one, two = (off[(p.batch == c) & np.isin(p.kind, kinds)].mean(0) for c in (a, b))
            found = max(found, np.linalg.norm(one - two))
    return found / unit(p)


def lengths(move):
    return np.linalg.norm(move, axis=1)


class TestDoesNotDependOn:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("far", [1.0, 25.0])
    def test_the_order_of_batches(self, seed, far):
        p = mixed(seed, (0.0, far, 2.0, 0.5, far))
        move, consensus = registered(p)
        order = np.random.default_rng(seed).permutation(5)
        rows, start = p.rows(order)
        other, same = register(p.X[rows], p.n[rows], start, WIDE, SETTINGS, USUAL, 10)
        assert np.abs(move).max() > 0.1
        np.testing.assert_allclose(other, move[rows], atol=1e-8)
        np.testing.assert_allclose(same.total, consensus.total, atol=1e-7)

    def test_the_order_of_populations_in_a_batch(self):
        p = mixed(0)
        rng = np.random.default_rng(1)
        pairs = zip(p.start[:-1], p.start[1:], strict=True)
        rows = np.concatenate([rng.permutation(np.arange(lo, hi)) for lo, hi in pairs])
        other, _ = register(p.X[rows], p.n[rows], p.start, WIDE, SETTINGS, USUAL, 10)
        np.testing.assert_allclose(other, registered(p)[0][rows], atol=1e-8)

    @pytest.mark.parametrize("offset", [1.0, 1e3, 1e6])
    def test_where_the_origin_is(self, offset):
        p = mixed(1)
        there = registered(p, X=p.X + offset * np.linspace(-1, 1, 8))[0]
        np.testing.assert_allclose(there, registered(p)[0], atol=1e-9 * max(1.0, offset))

    @pytest.mark.parametrize("scale", [1e-6, 0.3, 7.0, 1e6])
    @pytest.mark.parametrize("variance", [0.1, WIDE])
    def test_the_scale_of_coordinates(self, scale, variance):
        p = mixed(2)
        expected = scale * registered(p, variance=variance)[0]
        found = registered(p, X=scale * p.X, variance=scale**2 * variance)[0]
        np.testing.assert_allclose(found, expected, atol=1e-8 * scale)

    @pytest.mark.parametrize("seed", range(3))
    def test_much_on_rotations(self, seed):
        p = Planted(seed, SAME, directions(seed, [0.0, 1.0, 15.0]))
        Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(8, 8)))[0]
        move, rotated = registered(p)[0], registered(p, X=p.X @ Q)[0] @ Q.T
        # A common displacement of all batches has no meaning.
        difference = rotated - move
        assert lengths(difference - difference.mean(0)).mean() < 0.25 * unit(p)
        assert offsets(p, rotated) < 0.35

    def test_the_number_of_cells_but_on_their_proportions(self):
        """The weight of a batch is its number of populations."""
        p = mixed(0)
        p.n = p.n * 1000
        more = registered(p)[0]
        p.n = p.n // 1000
        np.testing.assert_allclose(more, registered(p)[0], atol=1e-9)


class TestOnlySumsLeaveASite:
    """Sites have some of the batches each, and a server adds the sums that they send."""

    @pytest.mark.parametrize("split", [[[0, 1], [2, 3, 4]], [[4], [3, 1], [0, 2]]], ids=str)
    @pytest.mark.parametrize(
        "far", [(0, 1, 2, 0.5, 0), (0, 25, 2, 0.5, 9), (60, 0, 0, 9, 0)], ids=str
    )
    def test_and_give_the_same_displacements(self, split, far):
        p = mixed(3, far)
        move, consensus = registered(p)
        sites = []
        for batches in split:
            rows, start = p.rows(batches)
            sites.append(Site(p.X[rows], p.n[rows], start))
        server = Server(sites, USUAL)
        assert server.unit == pytest.approx(consensus.unit)
        for batches, found in zip(split, server.register(10), strict=True):
            np.testing.assert_allclose(found, move[p.rows(batches)[0]], atol=1e-9)

    def test_of_what_they_share(self):
        """A check of the test above: the batches of other sites have an effect."""
        p = mixed(3)
        rows, start = p.rows([0, 1])
        only = Server([Site(p.X[rows], p.n[rows], start)], USUAL).register(10)[0]
        assert np.abs(only - registered(p)[0][rows]).max() > 1e-2


class TestDoesNotMove:
    @pytest.mark.parametrize("seed", range(3))
    def test_identical_batches(self, seed):
        p = Planted(seed, SAME, noise=0.0)
        p.n = np.tile(p.n[:20], 3)
        move, _ = registered(p)
        assert np.abs(move).max() < 1e-9

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("noise", [0.1, 0.5])
    def test_batches_that_differ_by_chance_hardly_move(self, seed, noise):
        p = Planted(seed, SAME, noise=noise)
        move, _ = registered(p)
        assert lengths(move).mean() < 0.3 * unit(p)
        assert offsets(p, move) < 0.35

    def test_a_single_batch(self):
        p = Planted(0, [[0, 1, 2]])
        np.testing.assert_array_equal(registered(p)[0], 0.0)

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("far", [0.0, 10.0, 300.0])
    def test_batches_without_shared_types(self, seed, far):
        """At any distance: their means are no evidence of a match."""
        p = Planted(
            seed, [[0, 1, 2, 3], [4, 5, 6, 7]], directions(seed, [0.0, far], 12), d=12, sep=14
        )
        move, _ = registered(p)
        assert lengths(move).max() < max(0.5 * unit(p), 0.02 * far)

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("far", [30.0, 1e3, 1e6])
    def test_an_unmatched_batch_while_others_meet(self, seed, far):
        """It stays far away, and the others still come closer to each other."""
        types = [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]
        p = Planted(seed, types, directions(seed, [0.0, 2.0, far], 12), d=12, sep=14)
        move, _ = registered(p)
        assert lengths(move[p.batch == 2]).max() < 0.05 * unit(p)
        two = p.batch < 2
        before, after = (
            np.linalg.norm(off[two & (p.batch == 0)].mean(0) - off[two & (p.batch == 1)].mean(0))
            for off in (p.X - p.truth, p.X + move - p.truth)
        )
        assert after < 0.8 * before


class TestRemoves:
    @pytest.mark.parametrize("d", [5, 8, 10, 12])
    @pytest.mark.parametrize("size", [0.1, 0.5, 1, 2, 4, 8, 15, 30])
    def test_a_shift_between_batches_of_the_same_types(self, size, d):
        for seed in range(2):
            p = Planted(seed, SAME, size * directions(seed, [0.0, 1.0, 1.0], d), d=d)
            assert offsets(p, 0.0) > size
            # At about two spacings populations may match the wrong neighbours, and the batch starts from
            # the mean only if it fits twice as well there: part of such a shift may remain.
            assert offsets(p, registered(p)[0]) < (0.55 * size if size == 2 else 0.5)

    @pytest.mark.parametrize("n_batches", [2, 3, 6, 12, 40])
    def test_a_shift_of_one_batch_among_many(self, n_batches):
        shifts = directions(0, [15.0] + [0.0] * (n_batches - 1))
        p = Planted(0, SAME[:1] * n_batches, shifts)
        assert offsets(p, registered(p)[0]) < 0.5

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("size", [0.5, 1.0, 2.0])
    def test_a_shift_and_unmatched_types_follow_their_batch(self, seed, size):
        types = [[0, 1, 2, 3, 4], [0, 1, 2, 3, 5]]
        shift = directions(seed, [0.0, size])
        p = Planted(seed, types, shift)
        move, _ = registered(p)
        Y, h = p.X + move, unit(p)
        shared, own = (p.batch == 1) & (p.kind < 5), p.kind == 5
        assert np.linalg.norm(move[own].mean(0) - move[shared].mean(0)) < 0.5 * h
        others = np.stack([Y[p.kind == t].mean(0) for t in range(5)])
        away = np.linalg.norm(others - Y[own].mean(0), axis=1).min()
        before = np.stack([p.truth[p.kind == t].mean(0) for t in range(6)])
        assert away > 0.8 * np.linalg.norm(before[:5] - before[5], axis=1).min()

    def test_no_difference_between_types(self):
        p = mixed(5)
        Y = p.X + registered(p)[0]
        centres = np.stack([p.truth[p.kind == t].mean(0) for t in range(9)])
        centres += (Y - p.truth).mean(0)
        nearest = ((Y[:, None] - centres) ** 2).sum(2).argmin(1)
        assert (nearest == p.kind).mean() > 0.99


class TestWeights:
    """Strengths: the prior is the identity term, the damping the proximal one."""

    @pytest.mark.parametrize("size", [1.0, 20.0])
    def test_a_stronger_prior_shortens_displacements(self, size):
        p = Planted(0, SAME, size * directions(0, [0.0, 1.0, 1.0]))
        moves = [registered(p, Strengths(r, 0.2))[0] for r in (0.0, 0.2, 2.0, 20.0, 200.0, 2e5)]
        far = [lengths(move).mean() for move in moves]
        assert (np.diff(far) < 0).all()
        assert far[-1] < 1e-3 * far[0]

    @pytest.mark.parametrize("seed", range(2))
    def test_damping_slows(self, seed):
        types = [[0, 1, 2, 3, 4], [0, 1, 2, 3, 5], [0, 1, 2, 4, 6]]
        p = Planted(seed, types, directions(seed, [0.0, 0.3, 0.3]))
        few = [lengths(registered(p, Strengths(0.2, r), 1)[0]).mean() for r in (0, 20, 2e2, 2e3)]
        assert (np.diff(few) < 0).all()
        assert few[-1] < 0.02 * few[0]
        ends = [registered(p, Strengths(0.2, r), 300)[0] for r in (0.0, 20.0)]
        assert lengths(ends[1] - ends[0]).mean() < 0.5 * lengths(ends[0]).mean()

    def test_displacements_are_finite_without_weights(self):
        p = mixed(0)
        assert np.isfinite(registered(p, Strengths(0.0, 0.0))[0]).all()


class TestToAConsensus:
    @pytest.mark.parametrize("size", [0.1, 1.0, 4.0, 30.0])
    def test_a_later_batch_moves_to_the_others(self, size):
        p = Planted(1, [*SAME, SAME[0]], size * directions(1, [0.0, 0.0, 0.0, 1.0]))
        first, late = p.batch < 3, p.batch == 3
        move = np.zeros_like(p.X)
        move[first], consensus = register(
            p.X[first], p.n[first], p.start[:4], WIDE, SETTINGS, USUAL, 10
        )
        move[late] = register_to(consensus, p.X[late], p.n[late], USUAL, 10)
        assert offsets(p, move) < max(0.3, 0.1 * offsets(p, 0.0))

    def test_the_origin_does_not_matter(self):
        p = mixed(4)
        rows, start = p.rows([0, 1, 2, 3])
        late = p.batch == 4
        found = []
        for offset in (0.0, 1e6):
            X = p.X + offset
            _, consensus = register(X[rows], p.n[rows], start, WIDE, SETTINGS, USUAL, 10)
            found.append(register_to(consensus, X[late], p.n[late], USUAL, 10))
        assert np.abs(found[0]).max() > 0.01
        np.testing.assert_allclose(found[1], found[0], atol=1e-3)

    def test_the_order_of_populations_does_not_matter(self):
        p = mixed(4)
        _, consensus = registered(p)
        own = np.flatnonzero(p.batch == 2)
        order = np.random.default_rng(0).permutation(own)
        one, two = (register_to(consensus, p.X[i], p.n[i], USUAL, 10) for i in (own, order))
        np.testing.assert_allclose(two, one[order - own[0]], atol=1e-9)

    def test_a_distant_batch_of_other_types_does_not_move(self):
        p = Planted(0, [[0, 1, 2, 3]] * 2 + [[4, 5, 6, 7]], d=12, sep=14)
        early, late = p.batch < 2, p.batch == 2
        _, consensus = register(p.X[early], p.n[early], p.start[:3], WIDE, SETTINGS, USUAL, 10)
        move = register_to(consensus, p.X[late] + 100.0, p.n[late], USUAL, 10)
        assert lengths(move).max() < 1e-3 * unit(p)
