"""The evidence on batches: which rows it has, and how it is shown."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scbatchprox import (
    BatchProx,
    Decision,
    Evidence,
    History,
    MomentTarget,
    PopulationTarget,
    Trace,
)

LABELS = st.lists(st.sampled_from("abcdefgh"), unique=True).map(sorted)


def evidence(batches):
    """Evidence with a different number everywhere."""
    own = np.array([ord(batch) for batch in batches], float)
    known = {name: own + i / 10 for i, name in enumerate(Evidence.numbers())}
    return Evidence.of(np.array(batches, dtype=object).astype(str), own.astype(int) % 4, **known)


def assert_equal(one, two):
    pd.testing.assert_frame_equal(one.frame(), two.frame(), check_index_type=False)
    np.testing.assert_array_equal(one.decision, two.decision)


@given(LABELS, st.sets(st.sampled_from("abcdefgh")))
def test_parts_that_are_joined_are_the_whole(batches, first):
    whole = evidence(batches)
    one, two = (whole.select([b for b in batches if (b in first) is own]) for own in (True, False))
    for joined in (one.joined(two), two.joined(one), one.joined(two).joined(Evidence.none())):
        assert_equal(joined, whole)
        assert joined.batches.tolist() == batches


@given(LABELS.filter(bool))
def test_without_a_batch(batches):
    assert_equal(evidence(batches).without(batches[0]), evidence(batches[1:]))
    assert_equal(evidence(batches).without("x"), evidence(batches))


def test_long_names_are_not_cut():
    joined = evidence(["a"]).joined(Evidence.of(["a long name"], [Decision.WEAK], removed=[1.0]))
    assert joined.batches.tolist() == ["a", "a long name"]
    assert joined.frame()["decision"].tolist() == ["removed", "weak"]
    assert np.isnan(joined.matched[1])


def test_what_it_says_of_itself():
    found = Evidence.of([1, 2, 3], [Decision.REMOVED, Decision.ALONE, Decision.REMOVED])
    assert repr(found) == "<Evidence: 3 batches, 2 removed, 1 alone>"
    assert repr(Trace.none()) == "<Trace: no rounds>"
    assert "50% of a batch met others" in repr(Trace.of([np.nan, 0.5], [0.0, 2.0]))
    assert repr(Trace.of([np.nan], [0.0])) == "<Trace: 0 rounds, populations moved by 0>"


@pytest.mark.parametrize("change", [{"decision": [7, 0]}, {"removed": [1.0]}])
def test_what_is_not_evidence(change):
    with pytest.raises(ValueError, match="Expected"):
        Evidence.of(**{"batches": ["a", "b"], "decision": [0, 1]} | change)


class TestOfFits:
    @pytest.fixture
    def cells(self):
        rng = np.random.default_rng(5)
        kind, batch = rng.integers(0, 4, 400), np.repeat(["a", "b", "c", "far"], 100)
        Z = rng.normal(size=(400, 5)) + 8.0 * np.eye(5)[kind]
        Z[batch == "b"] += 1.5
        Z[batch == "far"] = 1e3 * rng.normal(size=(100, 5))  # like nothing else
        return Z, batch

    def test_the_last_movement_is_that_of_the_adapter(self, cells):
        Z, batch = cells
        model = BatchProx(strength=0.5).fit(Z, batch=batch)
        moments = model.fit_.moments
        length = np.sqrt((model.shift_**2).sum(1)) / 0.5
        whole = np.sqrt(np.average(length**2, weights=moments.n))
        assert model.history_.movement[-1] == pytest.approx(whole)
        for b, removed in enumerate(model.evidence_.removed):
            own = moments.own(b)
            expected = np.sqrt(np.average(length[own] ** 2, weights=moments.n[own]))
            assert removed == pytest.approx(expected)

    def test_matched_is_that_of_the_last_round(self, cells):
        near = cells[1] != "far"
        model = BatchProx().fit(cells[0][near], batch=cells[1][near])
        found, trace = model.evidence_, model.history_
        assert trace.matched[-1] == pytest.approx(found.matched.mean())
        assert np.isnan(trace.matched[0])
        assert ((found.matched > 0.1) & (found.matched <= 1.0)).all()

    def test_one_like_nothing_else_is_alone(self, cells):
        """Its cells are so far apart that hardly any other centre is left for the others."""
        model = BatchProx().fit(cells[0], batch=cells[1])
        found = model.evidence_
        assert found.decision[3] == Decision.ALONE
        assert found.removed[3] == 0.0
        assert found.matched[3] < 0.2

    def test_one_row_per_batch_is_the_mean_of_its_populations(self, cells):
        model = BatchProx(target=PopulationTarget(conditioned=False)).fit(cells[0], batch=cells[1])
        expected = np.sqrt((model.shift_**2).sum(1))
        np.testing.assert_allclose(model.evidence_.removed, expected)

    def test_a_batch_among_copies_of_itself_meets_them_and_stays(self, cells):
        Z = cells[0][:100]
        model = BatchProx().fit(np.r_[Z, Z, Z], batch=np.repeat([1, 2, 3], 100))
        found = model.evidence_
        assert found.matched.min() > 0.5
        np.testing.assert_allclose(found.matched, found.matched[0])
        assert set(found.decision) == {Decision.NO_EFFECT}
        assert not model.shift_.any()

    @pytest.mark.parametrize("options", [{"rounds": 0}, {"lambda_target": 0.0}], ids=str)
    def test_what_moves_nothing_has_one_entry(self, cells, options):
        Z, batch = cells
        model = BatchProx(**options).fit(Z[:300], batch=batch[:300])
        model.partial_fit(Z[300:], batch=batch[300:])
        assert model.history_.round.tolist() == model.history_.movement.tolist() == [0.0]
        assert model.evidence_.removed.tolist() == [0.0] * 4
        assert set(model.evidence_.decision) == {Decision.NO_EFFECT}

    def test_a_solver_has_a_history_and_no_evidence(self, cells):
        plain = BatchProx(target=MomentTarget(variance_matching=False))
        plain.fit(cells[0], batch=cells[1])
        assert isinstance(plain.history_, History)
        assert plain.history_.round.tolist() == [0, 1, 2, 3]
        assert plain.evidence_.batches.size == 0

    def test_batches_of_one_population_have_no_evidence_and_stay(self, cells):
        Z, batch = cells
        one = BatchProx(rounds=3).fit(Z, batch=batch, population=np.zeros(len(Z), int))
        assert isinstance(one.history_, Trace)
        assert one.evidence_.support.tolist() == [0.0] * 4
        assert not one.shift_.any()
