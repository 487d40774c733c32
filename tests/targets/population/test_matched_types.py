"""Shared types of batches are brought together, unmatched types follow their batch.

With a private type in each, not every pair of small batches has evidence: where the subject is how they meet,
and not whether, they are forced to. ``test_decisions.py`` is about the evidence.
"""

from dataclasses import replace

import numpy as np
import pytest

import population_oracles as oracles
from population_models import (
    BOTH,
    PAIR,
    PRIVATE,
    check_apart,
    check_follow,
    check_meet,
    check_stay,
    refined,
    shared_and_private,
)
from scbatchprox import BatchProx, PopulationTarget

FORCED = PopulationTarget(force=True)


class TestUnmatchedTypes:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize(("length", "part"), [(4.0, 0.35), (6.0, 0.35)])
    def test_follow_their_batch_and_shared_types_meet(self, seed, length, part):
        """The remaining distance is about the noise of populations, for any distance before."""
        Z, batch, kind = shared_and_private(seed, length)
        result = refined(Z, batch, target=FORCED)
        check_meet(Z, result, batch, kind, PAIR, part)
        before, after = (
            np.mean([oracles.offset(X, batch, kind, *pair) for pair in PAIR], axis=0)
            for X in (Z, result)
        )
        assert np.linalg.norm(after) < 0.35 * np.linalg.norm(before)
        check_follow(Z, result, batch, kind, PRIVATE)

    @pytest.mark.parametrize("seed", range(4))
    def test_follow_almost_completely_with_a_weak_identity_term(self, seed):
        Z, batch, kind = shared_and_private(seed)
        result = refined(Z, batch, target=FORCED, lambda_id=1e-5)
        check_meet(Z, result, batch, kind, PAIR, 0.35)
        check_follow(Z, result, batch, kind, PRIVATE, part=0.1)

    @pytest.mark.parametrize("seed", range(4))
    def test_other_shares_may_leave_no_evidence(self, seed):
        """With private types too, the shares hide the geometry: batches stay, unless they are forced."""
        n = [[300, 40, 150, 60], [60, 200, 40, 250]]
        Z, batch, kind = shared_and_private(seed, n=n)
        forced = refined(Z, batch, target=FORCED)
        check_meet(Z, forced, batch, kind, PAIR, 0.4)
        check_follow(Z, forced, batch, kind, PRIVATE)
        result = refined(Z, batch)
        assert np.array_equal(result, Z) or np.array_equal(result, forced)

    @pytest.mark.parametrize("seed", range(3))
    def test_in_a_chain_of_batches(self, seed):
        """Only one type is in all three batches; the first and the last have an unmatched one."""
        rng = np.random.default_rng(seed)
        shift = oracles.direction(rng, 12, 4.0)
        types = [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        Z, batch, kind = oracles.typed_cells(rng, types, [0 * shift, shift, 2 * shift])
        result = refined(Z, batch, target=FORCED)
        check_meet(Z, result, batch, kind, [(1, 0, 1), (2, 0, 2), (3, 1, 2)], 0.35)
        check_follow(Z, result, batch, kind, [(0, 0), (4, 2)])

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize(
        "types", [[[0, 1, 2, 3], [4, 5, 6]], [[0, 1, 2, 3, 4], [5, 6]]], ids=str
    )
    @BOTH
    def test_batches_without_shared_types_do_not_move(self, target, types, seed):
        rng = np.random.default_rng(seed)
        shift = oracles.direction(rng, 12, 4.0)
        Z, batch, kind = oracles.typed_cells(rng, types, [0 * shift, shift])
        result = refined(Z, batch, target=target)
        check_stay(Z, result, kind, range(7), 4.0, part=0.1)

    def test_types_stay_separate(self):
        Z, batch, kind = shared_and_private(1, length=6.0)
        result = refined(Z, batch, target=FORCED)
        check_apart(result, kind)
        # The moment target of the paper moves unmatched types onto other types.
        plain = BatchProx(rounds=None, target="moment").fit_transform(Z, batch=batch)
        before, after, by_moments = (
            oracles.gap(X, batch, kind, 0, 0, 1) for X in (Z, result, plain)
        )
        assert after < 0.3 * before
        assert by_moments > after

    @pytest.mark.parametrize("seed", range(4))
    def test_one_row_per_batch_shifts_it_as_a_whole(self, seed):
        Z, batch, kind = shared_and_private(seed)
        result = refined(Z, batch, target=replace(FORCED, conditioned=False))
        check_meet(Z, result, batch, kind, PAIR, 0.35)
        check_follow(Z, result, batch, kind, PRIVATE, part=1e-6)

    @pytest.mark.parametrize("seed", range(4))
    def test_follow_when_their_batch_is_added_to_a_frozen_reference(self, seed):
        Z, batch, kind = shared_and_private(seed)
        model = BatchProx(target=FORCED)
        model.fit(Z[batch == 0], batch=batch[batch == 0])
        model.partial_fit(Z[batch == 1], batch=batch[batch == 1])
        result = model.transform(Z, batch=batch)
        np.testing.assert_array_equal(result[batch == 0], Z[batch == 0])
        check_meet(Z, result, batch, kind, PAIR, 0.35)
        check_follow(Z, result, batch, kind, PRIVATE[1:])

    @pytest.mark.parametrize("seed", range(4))
    def test_a_new_batch_without_shared_types_does_not_move(self, seed):
        rng = np.random.default_rng(seed)
        shift = oracles.direction(rng, 12, 4.0)
        Z, batch, kind = oracles.typed_cells(rng, [[0, 1, 2, 3], [4, 5, 6]], [0 * shift, shift])
        model = BatchProx(target="population").fit(Z[batch == 0], batch=batch[batch == 0])
        model.partial_fit(Z[batch == 1], batch=batch[batch == 1])
        result = model.transform(Z, batch=batch)
        check_stay(Z, result, kind, range(7), 4.0, part=0.1)

    @pytest.mark.parametrize("seed", range(4))
    def test_follow_with_given_populations(self, seed):
        """True types as population= are at least as good as populations that are found."""
        Z, batch, kind = shared_and_private(seed)
        result = refined(Z, batch, kind, target=FORCED)
        check_meet(Z, result, batch, kind, PAIR, 0.2)
        check_follow(Z, result, batch, kind, PRIVATE)

    @pytest.mark.parametrize("given", [False, True])
    def test_do_not_move_if_the_batch_has_no_other_type(self, given):
        rng = np.random.default_rng(0)
        Z, batch, kind = oracles.typed_cells(rng, [[0, 1, 2, 3], [4]], np.zeros((2, 12)))
        result = refined(Z, batch, kind if given else None)
        check_stay(Z, result, kind, range(5), 4.0, part=0.1)

    @pytest.mark.parametrize("seed", range(4))
    def test_small_batches_among_large_ones(self, seed):
        n = [[200, 200, 200, 200], [12, 9, 10, 8]]
        Z, batch, kind = shared_and_private(seed, n=n)
        result = refined(Z, batch, target=FORCED)
        check_meet(Z, result, batch, kind, PAIR, 0.4)
        check_follow(Z, result, batch, kind, PRIVATE)


def far_away(d, n):
    """Two batches of the same five types, so far from each other that no populations are near."""
    rng = np.random.default_rng(0)
    types = [[0, 1, 2, 3, 4]] * 2
    Z, batch, kind = oracles.typed_cells(rng, types, np.zeros((2, d)), n=n, d=d, sep=8.0)
    Z[batch == 1] += oracles.direction(rng, d, 200.0)
    return Z, batch, kind


class TestDistantBatches:
    @pytest.mark.parametrize("d", [5, 8, 10, 20])
    @pytest.mark.parametrize("lambda_id", [1e-3, 0.0])
    @pytest.mark.parametrize("together", [True, False], ids=["together", "later"])
    @BOTH
    def test_one_of_the_same_shape_starts_from_the_common_mean(
        self, target, together, lambda_id, d
    ):
        """From there it is registered to its neighbours: every type meets its partner."""
        Z, batch, kind = far_away(d, [[200, 120, 60, 90, 150]] * 2)
        model = BatchProx(target=target, lambda_id=lambda_id)
        for part in [[0, 1]] if together else [[0], [1]]:
            rows = np.isin(batch, part)
            model.partial_fit(Z[rows], batch=batch[rows])
        result = model.transform(Z, batch=batch)
        check_meet(Z, result, batch, kind, [(t, 0, 1) for t in range(5)], 0.01)
        check_apart(result, kind)
        lengths = np.linalg.norm(result - Z, axis=1)
        for b, length in enumerate((100.0, 100.0) if together else (0.0, 200.0)):
            np.testing.assert_allclose(lengths[batch == b], length, rtol=0, atol=3.0)

    @pytest.mark.parametrize("d", [8, 20])
    @BOTH
    def test_the_identity_term_shortens_the_shift(self, target, d):
        Z, batch, _ = far_away(d, [[200, 120, 60, 90, 150]] * 2)
        lengths = []
        for lambda_id in (0.0, 1e-3, 0.1, 1.0, 10.0):
            displacement = refined(Z, batch, target=target, lambda_id=lambda_id) - Z
            lengths.append(np.linalg.norm(displacement, axis=1).mean())
        np.testing.assert_allclose(lengths[:2], 100.0, rtol=0.01)
        assert lengths[1:] == sorted(lengths[1:], reverse=True)
        assert lengths[-1] < 5.0

    @BOTH
    def test_without_a_pull_it_does_not_move(self, target):
        rng = np.random.default_rng(0)
        n = [[200, 120, 60, 90, 150]] * 2
        Z, batch, _ = oracles.typed_cells(rng, [[0, 1, 2, 3, 4]] * 2, np.zeros((2, 8)), n=n, d=8)
        Z[batch == 1] += oracles.direction(rng, 8, 200.0)
        np.testing.assert_array_equal(refined(Z, batch, target=target, lambda_target=0), Z)

    @pytest.mark.parametrize("d", [5, 8, 10, 20])
    def test_one_of_another_shape_does_not_move(self, d):
        rng = np.random.default_rng(1)
        n = [[200, 120, 60, 90, 150], [300, 30, 30, 200, 100]]
        Z, batch, _ = oracles.typed_cells(
            rng, [[0, 1, 2, 3, 4]] * 2, np.zeros((2, d)), n=n, d=d, sep=8.0
        )
        Z[batch == 1] = Z[batch == 1] @ np.linalg.qr(rng.normal(size=(d, d)))[0]
        Z[batch == 1] += oracles.direction(rng, d, 200.0)
        np.testing.assert_allclose(refined(Z, batch), Z, atol=1e-6)
