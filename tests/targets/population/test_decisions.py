"""Evidence decides: what is moved, what is left alone to the bit, and that both follow from the evidence."""

import numpy as np
import pytest

import population_oracles as oracles
from scbatchprox import BatchProx, Decision, PopulationSettings, PopulationTarget

D, SEP = 10, 7.0
#: The distance of any two types.
APART = SEP * np.sqrt(2.0)
#: Errors of a shift that are the noise of means of some tens of cells.
CLOSE = 0.08 * APART
STAY = (Decision.NO_EFFECT, Decision.ALONE)


def fitted(Z, batch, population=None, **options):
    return BatchProx(**options).fit(Z, batch=batch, population=population)


def far(Z, result):
    return np.linalg.norm(result - Z, axis=1).mean()


def one_batch(seed, n=(150, 100, 80, 60, 40)):
    """Cells of several types, and their types."""
    rng = np.random.default_rng(seed)
    Z, _, kind = oracles.typed_cells(rng, [range(len(n))], np.zeros((1, D)), [list(n)], D, SEP)
    return Z, kind


def shifted(seed, types_of, size, n=80):
    """Batches of which the last is shifted, and the shift."""
    rng = np.random.default_rng(seed)
    shift = oracles.direction(rng, D, size)
    shifts = [0.0 * shift] * (len(types_of) - 1) + [shift]
    return *oracles.typed_cells(rng, types_of, shifts, n, D, SEP), shift


def mutual(moved, batch):
    """How far the last batch moved, less how far the first did."""
    return moved[batch == batch.max()].mean(0) - moved[batch == batch.min()].mean(0)


def check_decisions(model, Z, batch):
    """Batches that are left alone do not move by a bit; the others do."""
    result, found = model.transform(Z, batch=batch), model.evidence_
    for b, decision in zip(found.batches.tolist(), found.decision.tolist(), strict=True):
        own = batch == b
        assert np.array_equal(result[own], Z[own]) == (decision in STAY)
    np.testing.assert_array_equal(found.removed == 0.0, np.isin(found.decision, STAY))
    limit = PopulationSettings().evidence
    evidence = {kind: found.evidence[found.decision == kind] for kind in Decision}
    # Less than twice what is needed is weak; batches that have evidence together need half.
    assert (evidence[Decision.WEAK] <= 2.0 * limit).all()
    assert (evidence[Decision.REMOVED] > limit * (2.0 if len(found.batches) == 2 else 1.0)).all()
    return result


class TestNothingToRemove:
    def test_random_parts_of_a_batch_stay(self):
        moved = []
        for seed in range(10):
            Z, _ = one_batch(seed)
            batch = np.random.default_rng(seed).integers(0, 2, len(Z))
            result = check_decisions(fitted(Z, batch), Z, batch)
            moved.append(far(Z, result) / APART)
        assert np.mean(moved) <= 0.02
        assert np.sum(np.array(moved) == 0.0) >= 6

    def test_many_random_parts_stay(self):
        moved = []
        for seed in range(5):
            Z, _ = one_batch(seed, (300, 200, 160, 120, 80))
            batch = np.random.default_rng(seed).integers(0, 8, len(Z))
            moved.append(far(Z, check_decisions(fitted(Z, batch), Z, batch)) / APART)
        assert np.mean(moved) <= 0.02

    @pytest.mark.parametrize("force", [False, True])
    def test_batches_of_one_type_each_stay_unless_forced(self, force):
        stayed = 0
        for seed in range(10):
            Z, kind = one_batch(seed)
            rows = kind < 2
            Z, batch = Z[rows], kind[rows]
            model = fitted(Z, batch, target=PopulationTarget(force=force))
            stayed += np.array_equal(check_decisions(model, Z, batch), Z)
            assert set(model.evidence_.decision) <= set(STAY) or force or stayed <= seed
        assert stayed <= 1 if force else stayed >= 9

    @pytest.mark.parametrize("size", [0.0, 4.0, 400.0])
    def test_batches_of_other_types_stay_at_any_distance(self, size):
        Z, batch, _, _ = shifted(6, [[0, 1, 2, 3], [4, 5, 6, 7]], size)
        np.testing.assert_array_equal(check_decisions(fitted(Z, batch), Z, batch), Z)

    def test_copies_of_a_batch_stay(self):
        Z, _ = one_batch(3)
        twice, batch = np.r_[Z, Z], np.repeat(["a", "b"], len(Z))
        model = fitted(twice, batch)
        np.testing.assert_array_equal(check_decisions(model, twice, batch), twice)
        assert set(model.evidence_.decision) == {Decision.NO_EFFECT}
        assert model.evidence_.composition.tolist() == [0.0, 0.0]


class TestNothingIsACompetitor:
    """A batch that meets the others as well where it is has no reason to move."""

    def test_gain_is_named_where_it_decides(self):
        stayed = 0
        for seed in range(8):
            Z, _ = one_batch(seed, (300, 200, 160, 120, 80))
            batch = np.random.default_rng(seed).integers(0, 4, len(Z))
            model = fitted(Z, batch)
            check_decisions(model, Z, batch)
            found = model.evidence_
            gained = ~np.isnan(found.gain)
            stays = found.decision == Decision.NO_EFFECT
            limit = PopulationTarget().settings.better
            assert (found.gain[gained & stays] <= limit).all()
            assert (found.gain[gained & ~stays] > limit).all()
            stayed += np.array_equal(model.transform(Z, batch=batch), Z)
        assert stayed >= 7

    def test_without_it_random_parts_move(self):
        """The same parts with ``better=0`` are shifted by chance: so it is this limit that holds them."""
        settings = PopulationSettings(better=0.0, agreement=0.0)
        moved = 0
        for seed in range(4):
            Z, _ = one_batch(seed)
            batch = np.random.default_rng(seed).integers(0, 2, len(Z))
            held = PopulationSettings(agreement=0.0)
            free, kept = (
                fitted(Z, batch, target=PopulationTarget(settings=one)).transform(Z, batch=batch)
                for one in (settings, held)
            )
            moved += not np.array_equal(free, Z)
            np.testing.assert_array_equal(kept, Z)
        assert moved >= 2


#: Types and cells of batches, the last of which is shifted.
SHARED = {
    "all": ([[0, 1, 2, 3, 4]] * 2, 80),
    "three of five": ([[0, 1, 2, 3, 4], [0, 1, 2, 5, 6]], 80),
    "other shares": ([[0, 1, 2, 3]] * 2, [[200, 120, 60, 30], [40, 60, 100, 150]]),
    "three batches": ([[0, 1, 2, 3], [0, 1, 2, 4], [0, 1, 2, 5]], 80),
}


class TestShifts:
    @pytest.mark.parametrize("shared", SHARED)
    @pytest.mark.parametrize("size", [3.0, 60.0])  # near the distance of types, neighbours may meet
    def test_are_removed(self, shared, size):
        types, n = SHARED[shared]
        Z, batch, _, shift = shifted(1, types, size, n)
        model = fitted(Z, batch)
        moved = check_decisions(model, Z, batch) - Z
        weak = shared == "three of five" and size == 60.0
        assert set(model.evidence_.decision) == {Decision.WEAK if weak else Decision.REMOVED}
        assert np.linalg.norm(mutual(moved, batch) + shift) < CLOSE

    def test_of_batches_that_share_few_types_are_removed_or_left(self):
        """Two shared types of five are hardly a geometry: few pairs have evidence, the others stay.

        Those that have it move as if they were forced to, and forced ones mostly remove the shift.
        """
        removed = 0
        for seed in range(8):
            Z, batch, _, shift = shifted(seed, [[0, 1, 2, 3, 4], [0, 1, 5, 6, 7]], 3.0)
            result = check_decisions(fitted(Z, batch), Z, batch)
            forced = fitted(Z, batch, target=PopulationTarget(force=True)).transform(Z, batch=batch)
            assert np.array_equal(result, Z) or np.array_equal(result, forced)
            removed += np.linalg.norm(mutual(forced - Z, batch) + shift) < 0.5 * 3.0
        assert removed >= 6

    @pytest.mark.parametrize("size", [30.0, 1e3, 1e5])
    @pytest.mark.parametrize("later", [False, True])
    def test_of_any_length(self, size, later):
        """Distant batches start from the common mean, and the identity term does not take them back."""
        Z, batch, kind, _ = shifted(2, [[0, 1, 2, 3, 4]] * 2, size, [[100, 80, 60, 50, 40]] * 2)
        model = BatchProx()
        for rows in (batch == 0, batch == 1) if later else (batch < 2,):
            model.partial_fit(Z[rows], batch=batch[rows])
        result = model.transform(Z, batch=batch)
        for t in range(5):
            assert oracles.gap(result, batch, kind, t, 0, 1) < 0.2 * APART
        length = np.linalg.norm(result - Z, axis=1)
        for b, part in enumerate((0.0, 1.0) if later else (0.5, 0.5)):
            np.testing.assert_allclose(length[batch == b], part * size, atol=0.05 * size)

    def test_private_types_follow_their_batch(self):
        Z, batch, kind, _ = shifted(3, [[0, 1, 2, 3], [0, 1, 2, 4]], 3.0)
        moved = fitted(Z, batch).transform(Z, batch=batch) - Z
        own, rest = (moved[(batch == 1) & part].mean(0) for part in (kind == 4, kind < 4))
        assert np.linalg.norm(own - rest) < 0.35 * np.linalg.norm(rest)

    def test_with_given_populations(self):
        """Labels of finer groups than types: every batch has as many."""
        Z, batch, kind, shift = shifted(4, [[0, 1, 2, 3, 4, 5]] * 2, 5.0)
        model = fitted(Z, batch, population=kind)
        assert len(model.shift_) == 12
        moved = check_decisions(model, Z, batch) - Z
        assert np.linalg.norm(mutual(moved, batch) + shift) < CLOSE

    def test_one_row_per_batch_is_the_mean_displacement(self):
        Z, batch, _, _ = shifted(4, [[0, 1, 2, 3]] * 3, 3.0)
        each = fitted(Z, batch)
        whole = fitted(Z, batch, target=PopulationTarget(conditioned=False))
        assert whole.shift_.shape == (3, D)
        rows = each.fit_.moments
        for b in range(3):
            own = rows.batch == b
            mean = np.average(each.shift_[own], axis=0, weights=rows.n[own])
            np.testing.assert_allclose(whole.shift_[b], mean, atol=1e-10)
        np.testing.assert_array_equal(whole.evidence_.decision, each.evidence_.decision)


class TestAlone:
    @pytest.fixture
    def study(self):
        """Three batches that share their types, and one that shares none."""
        Z, batch, _, _ = shifted(5, [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]], 2.0)
        Z[batch == 1] += 2.0 / np.sqrt(D)
        return Z, batch

    def test_one_that_shares_nothing_stays_while_others_meet(self, study):
        Z, batch = study
        model = fitted(Z, batch)
        check_decisions(model, Z, batch)
        assert model.evidence_.decision[3] in STAY
        assert (model.evidence_.decision[:3] == Decision.REMOVED).any()

    def test_and_so_does_one_that_is_added(self, study):
        Z, batch = study
        model = fitted(Z[batch < 3], batch[batch < 3])
        model.partial_fit(Z[batch == 3], batch=batch[batch == 3])
        assert model.evidence_.batches.tolist() == [0, 1, 2, 3]
        assert model.evidence_.decision[3] == Decision.ALONE
        check_decisions(model, Z, batch)

    @pytest.mark.xfail(reason="its cells take most centres, and all others are refused in one look")
    def test_one_that_is_very_wide_does_not_hide_the_others(self):
        Z, batch, _, _ = shifted(5, [[0, 1, 2, 3]] * 4, 3.0)
        Z[batch == 0] = 30.0 * np.random.default_rng(0).normal(size=((batch == 0).sum(), D))
        rest = batch > 0
        if Decision.REMOVED not in fitted(Z[rest], batch[rest]).evidence_.decision:
            pytest.skip("a check of this test")
        assert fitted(Z, batch).evidence_.decision.tolist()[1:] != [Decision.ALONE] * 3

    def test_far_ones_do_not_move_random_parts_of_a_batch(self):
        rng = np.random.default_rng(7)
        batch = np.repeat(np.arange(42), 100)
        Z = rng.normal(size=(4200, 4)) + 8.0 * np.eye(4)[rng.integers(0, 4, 4200)]
        Z[batch >= 40] = rng.normal(size=(200, 4)) + 40.0 * rng.normal(size=(2, 4)).repeat(100, 0)
        parts = batch < 40
        if np.median(fitted(Z[parts], batch[parts]).evidence_.removed) > 0:
            pytest.skip("a check of this test")
        assert np.median(fitted(Z, batch).evidence_.removed[:40]) == 0.0

    def test_unless_it_is_forced(self, study):
        Z, batch = study
        target = PopulationTarget(force=True)
        model = fitted(Z[batch < 3], batch[batch < 3], target=target)
        model.partial_fit(Z[batch == 3], batch=batch[batch == 3])
        assert model.evidence_.decision[3] != Decision.ALONE


class TestLater:
    @pytest.mark.parametrize("size", [6.0, 12.0, 60.0])
    @pytest.mark.parametrize("seed", range(3))
    def test_a_batch_is_registered_about_as_if_fitted_together(self, seed, size, tmp_path):
        """With 250 cells of a type; with 80, noise alone is up to a fifth of a shift of 6."""
        Z, batch, _, shift = shifted(seed, [[0, 1, 2, 3]] * 3, size, n=250)
        first, last = batch < 2, batch == 2
        model = fitted(Z[first], batch[first])
        model.save(tmp_path / "model.safetensors")
        model = BatchProx.load(tmp_path / "model.safetensors")
        model.partial_fit(Z[last], batch=batch[last])
        assert model.evidence_.decision[2] == Decision.REMOVED
        assert (model.evidence_.frame().loc[2].drop("decision").astype(float).notna()).all()
        later, together = (
            mutual(one.transform(Z, batch=batch) - Z, np.where(last, 1, 0))
            for one in (model, fitted(Z, batch))
        )
        assert np.linalg.norm(later - together) < 0.1 * size
        assert np.linalg.norm(later + shift) < CLOSE

    def test_to_a_reference_of_one_batch(self):
        Z, batch, _, shift = shifted(8, [[0, 1, 2, 3]] * 2, 3.0)
        model = fitted(Z[batch == 0], batch[batch == 0])
        assert model.evidence_.decision.tolist() == [Decision.ALONE] or not model.shift_.any()
        model.partial_fit(Z[batch == 1], batch=batch[batch == 1])
        moved = check_decisions(model, Z, batch) - Z
        assert not moved[batch == 0].any()
        assert np.linalg.norm(moved[batch == 1].mean(0) + shift) < CLOSE

    def test_a_random_part_of_the_reference_stays(self):
        moved = []
        for seed in range(5):
            Z, _ = one_batch(seed)
            batch = np.random.default_rng(seed).integers(0, 3, len(Z))
            model = fitted(Z[batch < 2], batch[batch < 2])
            model.partial_fit(Z[batch == 2], batch=batch[batch == 2])
            moved.append(far(Z, check_decisions(model, Z, batch)) / APART)
        assert np.mean(moved) <= 0.02


class TestTrace:
    @pytest.mark.parametrize("rounds", [1, 2, 3, 10])
    @pytest.mark.parametrize("strength", [1.0, 0.5])
    def test_ends_with_the_movement_of_the_adapter(self, rounds, strength):
        Z, batch, _, _ = shifted(9, [[0, 1, 2, 3]] * 3, 3.0)
        model = fitted(Z, batch, rounds=rounds, strength=strength)
        trace, n = model.history_, model.fit_.moments.n
        length = np.sqrt(np.average((model.shift_**2).sum(1), weights=n)) / strength
        assert trace.movement[-1] == pytest.approx(length, rel=1e-9, abs=1e-12)
        assert trace.movement[0] == 0.0
        assert trace.round.tolist() == list(range(len(trace.round)))
        # As many rounds in which batches shift (and one more to settle), and perhaps those of a smooth part.
        assert len(trace.round) - 1 in (max(rounds, 2), max(rounds, 2) + rounds)
        assert trace.matched[-1] == pytest.approx(model.evidence_.matched.mean())
        assert trace.agreement[-1] == pytest.approx(model.evidence_.agreement.mean())
        assert np.isfinite(trace.matched[1:]).all()
        assert np.isfinite(trace.agreement[1:]).all()

    def test_ends_with_zero_where_batches_went_back(self):
        Z, kind = one_batch(0)
        rows = kind < 2
        model = fitted(Z[rows], kind[rows])
        assert set(model.evidence_.decision) == {Decision.ALONE}
        assert model.history_.movement[-1] == 0.0

    @pytest.mark.parametrize("options", [{"rounds": 0}, {"lambda_target": 0.0}], ids=str)
    def test_of_no_rounds(self, options):
        Z, batch, _, _ = shifted(9, [[0, 1, 2, 3]] * 3, 3.0)
        model = fitted(Z, batch, **options)
        assert model.history_.movement.tolist() == [0.0]
        np.testing.assert_array_equal(check_decisions(model, Z, batch), Z)


class TestWeights:
    def test_a_stronger_identity_term_moves_less(self):
        for size in (3.0, 60.0):
            Z, batch, _, _ = shifted(8, [[0, 1, 2, 3]] * 3, size)
            weights = [0.0, 1e-3, 1e-2, 0.03, 0.1, 0.3, 1.0, 1e4]
            models = [fitted(Z, batch, lambda_id=w) for w in weights]
            moved = [far(Z, model.transform(Z, batch=batch)) for model in models]
            assert (np.diff(moved) <= 0.002 * moved[0]).all(), moved
            assert moved[-1] < 0.01 * moved[0]
            assert moved[1] == pytest.approx(moved[0], rel=0.05)  # the default hardly matters

    def test_a_weaker_target_moves_less_and_only_ratios_count(self):
        Z, batch, _, _ = shifted(8, [[0, 1, 2, 3]] * 3, 3.0)
        models = [fitted(Z, batch, lambda_target=w) for w in (0.5, 0.02, 1e-4)]
        moved = [far(Z, model.transform(Z, batch=batch)) for model in models]
        assert moved[0] > moved[1] > moved[2]
        same = fitted(Z, batch, lambda_target=5.0, mu=1e-2, lambda_id=1e-2)
        np.testing.assert_allclose(same.shift_, models[0].shift_, atol=1e-9)

    def test_the_proximal_term_alone_takes_no_batch_back(self):
        Z, batch, _, shift = shifted(8, [[0, 1, 2, 3]] * 3, 3.0)
        for mu in (0.0, 1e-2):
            moved = fitted(Z, batch, mu=mu, lambda_id=0.0).transform(Z, batch=batch) - Z
            assert np.linalg.norm(mutual(moved, batch) + shift) < CLOSE

    def test_strength_is_a_part_of_the_displacement(self):
        Z, batch, _, _ = shifted(8, [[0, 1, 2, 3]] * 3, 3.0)
        whole, half = (fitted(Z, batch, strength=s).transform(Z, batch=batch) for s in (1.0, 0.5))
        np.testing.assert_allclose(half - Z, 0.5 * (whole - Z), atol=1e-10)


def test_many_shifted_batches_have_no_smooth_part():
    """Means of populations vary between samples by more than their cells tell: that is no smooth part."""
    rng = np.random.default_rng(0)
    shifts = [oracles.direction(rng, 40, 5.0) for _ in range(20)]
    Z, batch, _ = oracles.typed_cells(rng, [range(12)] * 20, shifts, n=80, d=40)
    found = fitted(Z, batch).evidence_
    assert (found.decision == Decision.REMOVED).all()
    assert found.smooth.mean() < 0
