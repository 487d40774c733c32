"""Planted effects: the truth undoes them, nothing else changes, and scores follow from the truth."""

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from planted_data import one_batch
from research.planted import (
    KINDS,
    Planted,
    displacement_error,
    knowing_types,
    plant,
    possible,
    relative_error,
    type_distance,
)
from scbatchprox.errors import BadKey, BadValue

NULL = ("null", "null_unequal", "null_many_10", "null_many_30")
ABSENT = (
    *("missing_one", "missing_several", "private", "missing_many_10", "missing_many_30"),
    *("disjoint_2x1", "disjoint_2x2", "disjoint_4x1", "pure"),
)
SIZES = {"shift_0.1": 0.1, "shift_0.3": 0.3, "shift_1": 1.0, "shift_3": 3.0, "shift_10": 10.0}


@pytest.fixture(scope="module")
def source():
    return one_batch()


def composition(planted):
    return pd.crosstab(planted.batch, planted.cell_type)


def centred(X):
    return X - X.mean(0)


def sides(planted, values):
    return [values[planted.batch == b] for b in np.unique(planted.batch)]


class TestTruth:
    @pytest.mark.parametrize("kind", KINDS)
    def test_undoes_the_effect(self, source, kind):
        Z, types = source
        planted = plant(Z, types, kind, seed=3)
        back = planted.Z + planted.truth
        np.testing.assert_allclose(centred(back), centred(Z[planted.rows]), atol=1e-9)
        np.testing.assert_array_equal(planted.cell_type, types[planted.rows])
        assert (np.diff(planted.rows) > 0).all()
        assert displacement_error(planted, back) == pytest.approx(0.0, abs=1e-12)

    @pytest.mark.parametrize("kind", [*NULL, *ABSENT])
    def test_is_none_where_nothing_is_displaced(self, source, kind):
        planted = plant(*source, kind)
        assert KINDS[kind].null
        assert not planted.truth.any()
        np.testing.assert_array_equal(planted.Z, source[0][planted.rows])

    def test_every_other_kind_displaces(self, source):
        for kind in set(KINDS) - {*NULL, *ABSENT}:
            assert not KINDS[kind].null
            planted = plant(*source, kind)
            assert displacement_error(planted, planted.Z) > 0.01

    @pytest.mark.parametrize("kind", KINDS)
    def test_depends_only_on_the_seed(self, source, kind):
        one, same, *others = (plant(*source, kind, seed=seed) for seed in (1, 1, 2, 3, 4))
        np.testing.assert_array_equal(one.Z, same.Z)
        np.testing.assert_array_equal(one.batch, same.batch)
        # Where whole types are drawn, two seeds may draw the same.
        assert any(not np.array_equal(one.batch, other.batch) for other in others)

    def test_kinds_with_the_same_split_have_the_same_batches(self, source):
        whole = [plant(*source, kind) for kind in ("null", *SIZES, "type_shift", "field", "scale")]
        for planted in whole[1:]:
            np.testing.assert_array_equal(planted.batch, whole[0].batch)
        directions = [p.truth / SIZES[kind] for kind, p in zip(SIZES, whole[1:], strict=False)]
        for other in directions[1:]:
            np.testing.assert_allclose(other, directions[0])


class TestSplits:
    def test_sizes(self, source):
        n = len(source[0])
        sizes = {
            kind: sorted(pd.Series(plant(*source, kind).batch).value_counts()) for kind in NULL
        }
        assert sizes["null"] == [n // 2, n - n // 2]
        assert sizes["null_unequal"] == [30, n - 30]  # one part in 51 would be fewer cells
        assert len(sizes["null_many_10"]) == 10
        assert len(sizes["null_many_30"]) == 30
        for kind in ("null_many_10", "null_many_30"):
            assert sizes[kind][0] >= 40
            assert sizes[kind][-1] - sizes[kind][0] <= 1

    def test_one_to_fifty_where_there_are_cells(self, rng):
        planted = plant(rng.normal(size=(5100, 2)), ["a", "b"] * 2550, "null_unequal")
        assert sorted(pd.Series(planted.batch).value_counts()) == [100, 5000]

    def test_as_many_as_cells_allow(self, rng):
        for n, kind, found in ((480, "null_many_30", 12), (200, "null_many_10", 5)):
            planted = plant(rng.normal(size=(n, 2)), ["a", "b"] * (n // 2), kind)
            assert len(set(planted.batch)) == found

    def test_batches_are_random_and_not_by_place(self, source):
        """The half of a cell is independent of its coordinates and type."""
        Z, types = source
        first = plant(Z, types, "null").batch == "b00"
        error = Z.std(0) * np.sqrt(1 / first.sum() + 1 / (~first).sum())
        assert (np.abs(Z[first].mean(0) - Z[~first].mean(0)) < 4 * error).all()

    @pytest.mark.parametrize(
        ("kind", "lost"), [("missing_one", 1), ("missing_several", 2), ("shift_missing", 2)]
    )
    def test_types_are_gone_from_one_side(self, source, kind, lost):
        for seed in range(5):
            whole, left = (composition(plant(*source, k, seed=seed)) for k in ("null", kind))
            pd.testing.assert_series_equal(left.loc["b00"], whole.loc["b00"])
            gone = left.columns[left.loc["b01"] == 0]
            assert len(set(gone) - {"rare"}) == lost
            kept = left.columns.difference(gone)
            pd.testing.assert_series_equal(left.loc["b01", kept], whole.loc["b01", kept])
            assert "rare" not in gone or whole.loc["b01", "rare"] == 0

    def test_each_half_lacks_a_different_type(self, source):
        for seed in range(5):
            left = composition(plant(*source, "private", seed=seed)).drop(columns="rare")
            gone = [list(left.columns[left.loc[b] == 0]) for b in ("b00", "b01")]
            assert [len(g) for g in gone] == [1, 1]
            assert gone[0] != gone[1]

    @pytest.mark.parametrize("kind", ["missing_many_10", "missing_many_30"])
    def test_every_batch_of_many_lacks_types(self, source, kind):
        whole, left = (
            composition(plant(*source, k)) for k in (kind.replace("missing", "null"), kind)
        )
        assert len(whole) == len(left)
        common = left.columns.drop("rare")
        gone = left[common] == 0
        assert (gone.sum(axis=1) >= 1).all()
        assert ((left[common] == whole[common]) | gone).all(axis=None)
        assert (~gone).any(axis=0).all()  # no type is gone from all batches

    @pytest.mark.parametrize(
        ("kind", "n", "each"),
        [("disjoint_2x1", 2, 1), ("disjoint_2x2", 2, 2), ("disjoint_4x1", 4, 1)],
    )
    def test_disjoint_batches_share_no_type(self, source, kind, n, each):
        types = source[1]
        for seed in range(5):
            planted = plant(*source, kind, seed=seed)
            held = composition(planted) > 0
            assert len(held) == n
            assert (held.sum(axis=1) == each).all()
            assert (held.sum(axis=0) == 1).all()
            # Whole types: nothing else of the real batch distinguishes the new batches.
            kept = planted.cell_type
            assert len(kept) == np.isin(types, kept).sum()

    def test_a_pure_batch_is_beside_whole_ones(self, source):
        held = composition(plant(*source, "pure")) > 0
        assert held.drop(columns="rare").sum(axis=1).tolist() == [4, 4, 4, 1]

    def test_two_types_are_shared(self, rng):
        types = np.repeat(list("abcdefgh"), 100)
        for seed in range(5):
            held = composition(
                plant(rng.normal(size=(800, 3)), types, "shift_two_shared", seed=seed)
            )
            assert (held > 0).sum(axis=1).tolist() == [4, 4]
            assert (held > 0).all().sum() == 2
            assert held.shape[1] == 6

    def test_impossible_kinds_have_a_reason(self, rng):
        few = np.repeat(["a", "b"], 50)
        for kind, reason in (
            ("null_many_10", "cells for 3 batches of 40, found 100"),
            ("missing_several", "more than 2 types of 10 cells to remove 2, found 2"),
            ("private", "three types of 10 cells, found 2"),
            ("missing_one", "30 cells to be left without 1 of the types"),
            ("disjoint_2x2", "4 types of 30 cells, found 2"),
            ("shift_two_shared", "4 types of 60 cells, found 0"),
        ):
            assert reason in possible(few, kind)
            with pytest.raises(BadValue, match=reason):
                plant(rng.normal(size=(100, 2)), few, kind)
        assert possible(few, "null") is None
        assert "batches of 30 cells, found 59" in possible(few[:59], "null")


class TestEffects:
    @pytest.mark.parametrize("kind", SIZES)
    def test_shifts_have_their_size(self, source, kind):
        planted = plant(*source, kind)
        still, moved = sides(planted, planted.truth)
        assert not still.any()
        lengths = np.linalg.norm(moved, axis=1) / planted.unit
        np.testing.assert_allclose(lengths, SIZES[kind])
        np.testing.assert_allclose(moved, np.broadcast_to(moved[0], moved.shape))
        # One of two halves is shifted by s: about the mean, all cells are shifted by s / 2.
        assert displacement_error(planted, planted.Z) == pytest.approx(SIZES[kind] / 2, rel=1e-3)

    def test_many_batches_have_different_directions(self, source):
        planted = plant(*source, "shift_many")
        ways = np.array([side[0] for side in sides(planted, planted.truth)]) / planted.unit
        np.testing.assert_allclose(np.linalg.norm(ways, axis=1), [0.0, *[1.0] * 9])
        assert np.linalg.matrix_rank(ways) == 6

    def test_types_have_further_shifts(self, source):
        planted = plant(*source, "type_shift")
        common = plant(*source, "shift_1")
        rest = (planted.truth - 0.5 * common.truth) / planted.unit
        still, moved = sides(planted, rest)
        assert not still.any()
        np.testing.assert_allclose(np.linalg.norm(moved, axis=1), 0.25)
        types = sides(planted, planted.cell_type)[1]
        assert len(np.unique(moved.round(9), axis=0)) == len(set(types))
        for t in set(types):
            assert np.ptp(moved[types == t], axis=0).max() < 1e-9

    def test_the_field_is_smooth(self, source):
        """Close cells have similar displacements, distant cells do not; the size is half of the unit."""
        planted = plant(*source, "field")
        Z, truth = (sides(planted, X)[1] for X in (planted.Z + planted.truth, planted.truth))
        assert not sides(planted, planted.truth)[0].any()
        assert np.sqrt((truth**2).sum(1).mean()) == pytest.approx(0.5 * planted.unit)
        D, T = (np.linalg.norm(X[:, None] - X[None], axis=2) / planted.unit for X in (Z, truth))
        near, far = (D > 0) & (D < 0.15), D > 1.0
        assert near.sum() > 20
        assert np.median(T[near]) < 0.3 * np.median(T[far])

    def test_coordinates_are_scaled_about_the_mean(self, source):
        planted = plant(*source, "scale")
        was, now = (sides(planted, X)[1] for X in (planted.Z + planted.truth, planted.Z))
        factor = now.std(0) / was.std(0)
        assert ((factor >= 0.7) & (factor <= 1.4)).all()
        assert np.ptp(factor) > 0.1
        np.testing.assert_allclose(centred(now), factor * centred(was), atol=1e-9)
        assert np.linalg.norm(now.mean(0) - was.mean(0)) == pytest.approx(0.5 * planted.unit)


class TestScores:
    def test_the_unit_is_a_median_over_pairs_of_types(self, source):
        Z, types = source
        means = [Z[types == t].mean(0) for t in np.unique(types)]
        pairs = [np.linalg.norm(a - b) for a, b in itertools.combinations(means, 2)]
        assert type_distance(Z, types) == pytest.approx(np.median(pairs))
        assert plant(Z, types, "missing_several").unit == pytest.approx(np.median(pairs))

    def test_error_is_the_definition(self, source, rng):
        planted = plant(*source, "type_shift")
        after = planted.Z + rng.normal(size=planted.Z.shape)
        off = [a - z - t for a, z, t in zip(after, planted.Z, planted.truth, strict=True)]
        mean = sum(off) / len(off)
        squares = [((o - mean) ** 2).sum() for o in off]
        expected = np.sqrt(sum(squares) / len(squares)) / type_distance(*source)
        assert displacement_error(planted, after) == pytest.approx(expected)

    def test_relative_error_is_the_definition(self, source, rng):
        planted = plant(*source, "shift_many", seed=2)
        few = rng.permutation(len(planted.Z))[:200]
        planted = replace(
            planted,
            **{name: getattr(planted, name)[few] for name in ("Z", "batch", "cell_type", "truth")},
        )
        after = planted.Z + rng.normal(size=planted.Z.shape)
        off, origin = after - planted.Z - planted.truth, planted.Z + planted.truth
        squares = []
        for i in range(200):
            others = [j for j in range(200) if planted.batch[j] != planted.batch[i]]
            others.sort(key=lambda j: np.linalg.norm(origin[j] - origin[i]))
            squares.append(((off[i] - sum(off[j] for j in others[:15]) / 15) ** 2).sum())
        expected = 0.5 * np.sqrt(np.mean(squares)) / planted.unit
        assert relative_error(planted, after) == pytest.approx(expected)

    def test_batches_that_meet_half_way_have_no_relative_error(self, source):
        """Where each type has its own shift, its mean position is as good as that of the first batch."""
        planted = plant(*source, "type_shift")
        middle = planted.Z + planted.truth
        codes = np.unique(planted.cell_type, return_inverse=True)[1]
        middle += 0.1 * planted.unit * np.random.default_rng(0).normal(size=(5, 6))[codes]
        assert displacement_error(planted, middle) > 0.05
        # A few neighbours are of another type, which moved otherwise.
        assert relative_error(planted, middle) < 0.1 * displacement_error(planted, middle)
        assert relative_error(planted, planted.Z) > 0.2

    def test_for_one_shift_of_two_halves_both_errors_agree(self, source):
        planted = plant(*source, "shift_1")
        assert relative_error(planted, planted.Z) == pytest.approx(
            displacement_error(planted, planted.Z), rel=1e-3
        )

    @pytest.mark.parametrize("kind", ["shift_1", "shift_missing", "shift_many"])
    def test_who_knows_the_types_finds_shifts_but_for_noise(self, source, kind):
        planted = plant(*source, kind)
        error = displacement_error(planted, knowing_types(planted))
        assert 0 < error < 0.2 * displacement_error(planted, planted.Z)
        means = pd.DataFrame(planted.Z + planted.truth).groupby(planted.cell_type).transform("mean")
        without_noise = replace(planted, Z=means.to_numpy() - planted.truth)
        after = knowing_types(without_noise)
        assert displacement_error(without_noise, after) == pytest.approx(0.0, abs=1e-10)

    def test_two_balanced_halves_differ_by_the_means_of_types(self, rng):
        """By hand: the shift is the mean over types of the difference between batches."""
        Z, types = rng.normal(size=(8, 2)), np.array(["T", "T", "B", "B"] * 2)
        batch = np.repeat(["b00", "b01"], 4)
        planted = Planted(Z, batch, types, np.zeros_like(Z), np.arange(8), 1.0)
        expected = Z[4:].mean(0) - Z[:4].mean(0)
        np.testing.assert_allclose(Z - knowing_types(planted), np.repeat([[0, 0], expected], 4, 0))

    def test_a_translation_of_all_cells_does_not_matter(self, source, rng):
        planted = plant(*source, "field")
        after = planted.Z + rng.normal(size=planted.Z.shape)
        error = displacement_error(planted, after)
        assert displacement_error(planted, after + 50.0) == pytest.approx(error)
        scaled = replace(planted, Z=3 * planted.Z, truth=3 * planted.truth, unit=3 * planted.unit)
        assert displacement_error(scaled, 3 * after) == pytest.approx(error)

    def test_bad_input(self, source):
        Z, types = source
        with pytest.raises(
            BadKey, match="a kind of planted set, found 'shif'; available: 'null', "
        ):
            plant(Z, types, "shif")
        with pytest.raises(BadValue, match=r"one cell type per cell \(1406\), found 1405"):
            plant(Z, types[1:], "null")
        with pytest.raises(BadValue, match="two cell types with different means, found 1"):
            plant(Z, ["T"] * len(Z), "null")
        planted = plant(Z, types, "null")
        with pytest.raises(BadValue, match=r"planted cells, \(1406, 6\), .*found \(1405, 6\)"):
            displacement_error(planted, planted.Z[1:])
