"""BatchProx(target="population"): what it must not depend on, and what each of its parameters does."""

import numpy as np
import pytest

import population_oracles as oracles
from registered_cells import MIXED, SAME, D, cells
from scbatchprox import BatchProx


def refined(Z, batch, **options):
    return BatchProx(**{"target": "population"} | options).fit_transform(Z, batch=batch)


def gaps(Z, batch, kind):
    """The mean distance between the means of a type in two batches."""
    found = {(b, t) for b, t in zip(batch.tolist(), kind.tolist(), strict=True)}
    return np.mean([
        oracles.gap(Z, batch, kind, t, a, b)
        for a, t in found for b, u in found if t == u and a < b
    ])  # fmt: skip


def far(Z, result):
    return np.linalg.norm(result - Z, axis=1).mean()


class TestDoesNotDependOn:
    def test_names_nor_order_of_batches(self):
        Z, batch, _ = cells(0)
        result = refined(Z, batch)
        assert far(Z, result) > 0.5
        for names in (["z", "m", "a"], [7, -1, 3]):
            np.testing.assert_allclose(refined(Z, np.array(names)[batch]), result, atol=1e-8)

    def test_the_order_of_cells(self):
        Z, batch, _ = cells(1)
        order = np.random.default_rng(0).permutation(len(Z))
        np.testing.assert_allclose(
            refined(Z[order], batch[order]), refined(Z, batch)[order], atol=1e-8
        )

    @pytest.mark.parametrize("offset", [10.0, 1e3, 1e6])
    def test_where_the_origin_is(self, offset):
        """Populations are found in single precision: rounding may assign a cell to another one."""
        Z, batch, _ = cells(2)
        shifted = refined(Z + offset, batch) - offset
        difference = np.linalg.norm(shifted - refined(Z, batch), axis=1)
        assert np.median(difference) < 1e-6 * max(1.0, offset / 1e3)
        assert difference.max() < 0.5

    @pytest.mark.parametrize("scale", [2.0**-20, 0.125, 1024.0])
    def test_the_scale_of_coordinates(self, scale):
        Z, batch, _ = cells(3)
        np.testing.assert_allclose(
            refined(scale * Z, batch) / scale, refined(Z, batch), rtol=0, atol=1e-6
        )

    def test_much_on_rotations(self):
        Z, batch, kind = cells(4)
        Q = np.linalg.qr(np.random.default_rng(4).normal(size=(D, D)))[0]
        one, two = refined(Z, batch), refined(Z @ Q, batch) @ Q.T
        before = gaps(Z, batch, kind)
        assert gaps(one, batch, kind) < 0.4 * before
        assert gaps(two, batch, kind) < 0.4 * before


class TestOutcome:
    @pytest.mark.parametrize("seed", range(2))
    def test_batches_that_differ_by_chance_hardly_move(self, seed):
        Z, batch, kind = cells(seed, size=0.0)
        result = refined(Z, batch)
        radius = np.sqrt(D)
        assert far(Z, result) < 0.25 * radius
        assert gaps(result, batch, kind) < 0.3 * radius

    @pytest.mark.parametrize("size", [2.0, 8.0, 30.0, 200.0])
    def test_a_shift_is_removed(self, size):
        Z, batch, kind = cells(5, size=size)
        assert gaps(refined(Z, batch), batch, kind) < 1.2  # a third of the radius of a type

    @pytest.mark.parametrize("size", [0.0, 4.0, 400.0])
    def test_batches_without_shared_types_do_not_move(self, size):
        Z, batch, _ = cells(6, [[0, 1, 2, 3], [4, 5, 6, 7]], size)
        assert far(Z, refined(Z, batch)) < 0.2

    def test_equal_batches_do_not_move(self):
        Z, _, _ = cells(7, [[0, 1, 2]])
        twice, batch = np.r_[Z, Z], np.repeat(["a", "b"], len(Z))
        np.testing.assert_allclose(refined(twice, batch), twice, atol=1e-6)

    @pytest.mark.parametrize("seed", range(3))
    def test_an_unmatched_type_follows_its_batch_and_stays_separate(self, seed):
        Z, batch, kind = cells(seed, [[0, 1, 2, 3], [0, 1, 2, 4]])
        result = refined(Z, batch)
        own, shared = kind == 4, (batch == 1) & (kind < 4)
        one, two = ((result - Z)[rows].mean(0) for rows in (own, shared))
        assert np.linalg.norm(one - two) < 0.5 * np.linalg.norm(two)
        centres = np.stack([result[kind == t].mean(0) for t in range(5)])
        assert (oracles.squared_distances(result, centres).argmin(1) == kind).mean() > 0.995
        apart = np.sqrt(oracles.squared_distances(centres[:4], centres[4:]))
        assert apart.min() > 0.8 * 14.0 * np.sqrt(2.0)


class TestParameters:
    @pytest.mark.parametrize("size", [3.0, 60.0])
    def test_the_identity_term_shortens_displacements(self, size):
        Z, batch, _ = cells(8, size=size)
        weights = [1e-3, 1e-2, 3e-2, 0.1, 1.0, 1e4]
        moved = [far(Z, refined(Z, batch, lambda_id=w)) for w in weights]
        assert (np.diff(moved) < 0).all()
        assert moved[-1] < 1e-4 * moved[0]
        # The default has almost no effect.
        assert far(Z, refined(Z, batch, lambda_id=0.0)) == pytest.approx(moved[0], rel=0.05)

    def test_the_weight_of_the_target_lengthens_displacements(self):
        Z, batch, _ = cells(8)
        moved = [far(Z, refined(Z, batch, lambda_target=w)) for w in (1e-4, 1e-2, 0.5)]
        assert (np.diff(moved) > 0).all()
        assert moved[0] < 0.1 * moved[-1]
        # Only the ratio to the other two weights matters.
        options = dict(lambda_target=5.0, mu=1e-2, lambda_id=1e-2)
        np.testing.assert_allclose(refined(Z, batch, **options), refined(Z, batch), atol=1e-9)

    @pytest.mark.parametrize("types", [MIXED, SAME], ids=["mixed", "same"])
    def test_the_proximal_term_slows(self, types):
        Z, batch, _ = cells(9, types, size=2.0)
        few = [far(Z, refined(Z, batch, mu=mu, rounds=1)) for mu in (1e-3, 1.0, 10.0)]
        assert (np.diff(few) < 0).all()
        assert few[-1] < 0.3 * few[0]
        ends = [refined(Z, batch, mu=mu, rounds=300) for mu in (0.0, 0.1)]
        assert far(*ends) < 0.35 * far(Z, ends[0])

    def test_no_rounds_and_no_weight_are_the_identity(self):
        Z, batch, _ = cells(8)
        for options in (dict(rounds=0), dict(lambda_target=0.0), dict(strength=0.0)):
            np.testing.assert_array_equal(refined(Z, batch, **options), Z)

    def test_strength_is_a_part_of_the_displacement(self):
        Z, batch, _ = cells(8)
        whole = refined(Z, batch) - Z
        for strength in (0.25, 0.7):
            part = refined(Z, batch, strength=strength) - Z
            np.testing.assert_allclose(part, strength * whole, atol=1e-9)

    def test_many_rounds_change_little(self):
        Z, batch, _ = cells(8)
        ten, many = (refined(Z, batch, rounds=r) for r in (10, 60))
        assert far(ten, many) < 0.1 * far(Z, ten)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rounds": None}, "Expected a whole number of rounds for target='population'.* None"),
            ({"solver": "adam"}, "Expected solver='exact' for target='population'"),
            ({"strength": 1.5}, "Expected strength between 0 and 1"),
        ],
    )
    def test_invalid_options(self, options, message):
        Z, batch, _ = cells(8)
        with pytest.raises(ValueError, match=message):
            refined(Z, batch, **options)
