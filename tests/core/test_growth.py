"""Batches that are added and forgotten: equal to the result of a fit on all cells."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from data import make_cells
from scbatchprox import Adam, BatchProx, MomentTarget

SIZES = [60, 40, 25, 90, 15]


@pytest.fixture
def c(rng):
    return make_cells(rng, SIZES, 4)


def cells_of(c, *batches):
    some = np.isin(c.codes, batches)
    return c.Z[some], c.codes[some]


def grown(c, start, *arrivals, policy="frozen", **options):
    Z, codes = cells_of(c, *start)
    model = BatchProx(**{"target": "moment"} | options).fit(Z, batch=codes)
    for batches in arrivals:
        Z, codes = cells_of(c, *batches)
        model.partial_fit(Z, batch=codes, policy=policy)
    return model


def assert_same(a, b, atol=1e-10):
    assert a.batches_.tolist() == b.batches_.tolist()
    np.testing.assert_allclose(a.scale_, b.scale_, atol=atol, rtol=1e-10)
    np.testing.assert_allclose(a.shift_, b.shift_, atol=atol, rtol=1e-10)
    np.testing.assert_allclose(a.moments_.mean, b.moments_.mean, atol=atol, rtol=1e-10)


def assert_bits(a, b):
    assert a.batches_.tolist() == b.batches_.tolist()
    np.testing.assert_array_equal(a.scale_, b.scale_)
    np.testing.assert_array_equal(a.shift_, b.shift_)


class TestRefit:
    @pytest.mark.parametrize(
        "options",
        [{}, {"rounds": None}, {"target": MomentTarget(variance_matching=False)}, {"mu": 0}],
    )
    def test_equals_a_fit_on_all_cells(self, c, options):
        whole = BatchProx(**{"target": "moment"} | options).fit(c.Z, batch=c.codes)
        assert_same(grown(c, [0, 1], [2], [4, 3], policy="refit", **options), whole)

    def test_cells_of_a_known_batch_join_it(self, c, rng):
        half = rng.random(len(c.Z)) < 0.5
        model = BatchProx(target="moment").fit(c.Z[half], batch=c.codes[half])
        model.partial_fit(c.Z[~half], batch=c.codes[~half], policy="refit")
        assert_same(model, BatchProx(target="moment").fit(c.Z, batch=c.codes))

    def test_first_call_is_a_fit(self, c):
        assert_bits(
            BatchProx(target="moment").partial_fit(c.Z, batch=c.codes),
            BatchProx(target="moment").fit(c.Z, batch=c.codes),
        )

    def test_fit_resets(self, c):
        model = grown(c, [0, 1], [2])
        assert_bits(
            model.fit(c.Z, batch=c.codes), BatchProx(target="moment").fit(c.Z, batch=c.codes)
        )


class TestFrozen:
    def test_does_not_change_existing_rows(self, c):
        before = grown(c, [0, 1])
        after = grown(c, [0, 1], [2, 3])
        np.testing.assert_array_equal(after.scale_[:2], before.scale_)
        np.testing.assert_array_equal(after.shift_[:2], before.shift_)
        assert after.batches_.tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("order", list(itertools.permutations([2, 3, 4])))
    def test_the_order_of_arrival_does_not_matter(self, c, order):
        together = grown(c, [0, 1], [2, 3, 4])
        assert_bits(grown(c, [0, 1], *[[b] for b in order]), together)
        assert_bits(grown(c, [0, 1], [order[0]], list(order[1:])), together)

    @given(st.integers(0, 1000), st.sampled_from([1, 3, 8]), st.sampled_from([0.0, 1e-3, 0.1]))
    def test_new_row_is_that_of_a_client_that_joins(self, seed, rounds, lambda_id):
        """Compared with clients and a server on raw cells: a new batch with weight n / (N_ref + n)."""
        c = make_cells(np.random.default_rng(seed), [40, 30, 20], 2)
        options = dict(rounds=rounds, lambda_id=lambda_id)
        model = grown(c, [0, 1], [2], **options)
        ref, _ = cells_of(c, 0, 1)
        Z, _ = cells_of(c, 2)
        mean, std = ref.mean(0), ref.std(0)
        T = mean + (std + 1e-6) / (Z.std(0) + 1e-6) * (Z - Z.mean(0))
        w = len(Z) / (len(ref) + len(Z))
        # Two other clients represent the reference: the identity term counts B_ref + 1 batches.
        codes = np.r_[np.zeros(len(Z), int), [1, 2]]
        padded, targets = np.r_[Z, np.zeros((2, 2))], np.r_[T, np.zeros((2, 2))]
        theta = np.ones((3, 2)), np.zeros((3, 2))
        for _ in range(rounds):
            own = oracles.client_solve(0, theta, padded, codes, targets, 0.5, 1e-3, lambda_id)
            other = oracles.client_solve(1, theta, padded, codes, targets, 0.5, 1e-3, lambda_id)
            theta = tuple(w * a + (1 - w) * b for a, b in zip(own, other, strict=True))
        np.testing.assert_allclose(model.scale_[2], theta[0][0], rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(model.shift_[2], theta[1][0], rtol=1e-6, atol=1e-6)

    def test_more_cells_of_a_known_batch_move_nothing_but_count(self, c):
        model = grown(c, [0, 1], [2])
        before = model.scale_.copy(), model.shift_.copy()
        Z, codes = cells_of(c, 0, 2)
        model.partial_fit(Z, batch=codes)
        np.testing.assert_array_equal(model.scale_, before[0])
        np.testing.assert_array_equal(model.shift_, before[1])
        assert model.moments_.n.tolist() == [120, 40, 50]
        # A refit uses them.
        Z3, codes3 = cells_of(c, 3)
        model.partial_fit(Z3, batch=codes3, policy="refit")
        twice = np.isin(c.codes, [0, 2])
        keep = np.isin(c.codes, [0, 1, 2, 3])
        whole = BatchProx(target="moment").fit(
            np.r_[c.Z[keep], c.Z[twice]], batch=np.r_[c.codes[keep], c.codes[twice]]
        )
        assert_same(model, whole)


class TestForget:
    @pytest.mark.parametrize("batch", [0, 1, 2])
    def test_of_a_fit_equals_never_having_seen(self, c, batch):
        rest = [b for b in range(5) if b != batch]
        assert_same(
            BatchProx(target="moment").fit(c.Z, batch=c.codes).forget(batch), grown(c, rest)
        )

    @pytest.mark.parametrize("batch", [2, 3])
    def test_of_an_added_batch_takes_only_its_row(self, c, batch):
        other = 5 - batch
        assert_bits(grown(c, [0, 1], [2, 3]).forget(batch), grown(c, [0, 1], [other]))

    def test_of_a_reference_batch_changes_the_reference(self, c):
        assert_bits(grown(c, [0, 1, 4], [2, 3]).forget(4), grown(c, [0, 1], [2, 3]))

    def test_after_a_refit(self, c):
        model = grown(c, [0, 1], [2, 3], policy="refit").forget(1)
        assert_same(model, grown(c, [0, 2, 3]))

    def test_unknown_and_last(self, c):
        model = grown(c, [0, 1])
        with pytest.raises(KeyError, match="found 7; available: 0, 1"):
            model.forget(7)
        model.forget(0)
        with pytest.raises(ValueError, match="found that 1 is its last"):
            model.forget(1)
        assert model.batches_.tolist() == [1]


class TestInterfaces:
    def test_growth_is_saved(self, c, tmp_path):
        model = grown(c, [0, 1], [2])
        model.save(tmp_path / "m.safetensors")
        back = BatchProx.load(tmp_path / "m.safetensors")
        Z, codes = cells_of(c, 3)
        for other in (model, back):
            other.partial_fit(Z, batch=codes)
        assert_bits(model, back)
        assert_bits(model.forget(1), back.forget(1))

    def test_dask_arrays_arrive_too(self, c):
        da = pytest.importorskip("dask.array")
        Z, codes = cells_of(c, 2, 3)
        lazy = grown(c, [0, 1]).partial_fit(da.from_array(Z, chunks=(20, 4)), batch=codes)
        assert_same(lazy, grown(c, [0, 1], [2, 3]))

    def test_adam_would_need_the_old_cells(self, c):
        model = BatchProx(solver=Adam(), target="moment").fit(c.Z, batch=c.codes)
        for verb in (
            lambda: model.partial_fit(c.Z, batch=c.codes + 1),
            lambda: model.partial_fit(c.Z, batch=c.codes, policy="refit"),
            lambda: model.forget(0),
        ):
            with pytest.raises(ValueError, match="needs only moments .*solver='exact'"):
                verb()

    def test_bad_input_changes_nothing(self, c):
        model = grown(c, [0, 1])
        before = model.scale_
        for arguments, message in [
            ((c.Z[:, :2],), "expecting 4 features"),
            ((np.full((9, 4), np.nan),), "36 NaN"),
            ((np.empty((0, 4)),), "at least one cell"),
        ]:
            with pytest.raises(ValueError, match=message):
                model.partial_fit(*arguments, batch=[7] * len(arguments[0]))
        with pytest.raises(ValueError, match="Expected policy to be one of 'frozen', 'refit'"):
            model.partial_fit(c.Z, batch=c.codes, policy="thaw")
        with pytest.raises(TypeError, match="of one type"):
            model.partial_fit(c.Z[:20], batch=["a"] * 20)
        assert model.scale_ is before
