"""Scores that use batches and types together, compared with their definitions, cell by cell."""

import numpy as np
import pandas as pd
import pytest

from scbatchprox.errors import BadType, BadValue
from scbatchprox.evaluate import (
    ilisi,
    leave_one_batch_out_f1,
    mixing_within_types,
    neighbours_kept,
    over_correction,
    variance_kept,
)
from scbatchprox.evaluate.comparison import neighbourhood_scores
from scbatchprox.evaluate.mixing import mean_kept_in_batch


def make_labelled(rng, n=200, batch_effect=1.0):
    """Return cells shifted by type and by batch; groups differ in size."""
    cell_type = rng.choice(list("abc"), n, p=[0.2, 0.3, 0.5]).astype("<U12")
    batch = rng.choice(list("xyz"), n, p=[0.5, 0.3, 0.2])
    Z = rng.normal(size=(n, 4))
    for labels, width in ((cell_type, 1.5), (batch, batch_effect)):
        for label in np.unique(labels):
            Z[labels == label] += width * rng.normal(size=4)
    return Z, batch, cell_type


def nearest(Z, i, among, k):
    """Return the k nearest cells of cell i in ``among``, without cell i itself."""
    others = [j for j in among if j != i]
    return sorted(others, key=lambda j: np.linalg.norm(Z[i] - Z[j]))[:k]


def simpson(labels):
    """Return the inverse Simpson index of a list."""
    share = pd.Series(labels).value_counts(normalize=True)
    return 1.0 / sum(p * p for p in share)


class TestMixingWithinTypes:
    def expected(self, Z, batch, cell_type, k):
        total = weight = 0.0
        for t in set(cell_type):
            held = [b for b in set(batch) if sum((batch == b) & (cell_type == t)) >= 5]
            cells = [i for i in range(len(Z)) if cell_type[i] == t and batch[i] in held]
            if len(held) < 2:
                continue
            found = np.mean([simpson(batch[nearest(Z, i, cells, k)]) for i in cells])
            total += len(cells) * (found - 1) / (simpson(batch[cells]) - 1)
            weight += len(cells)
        return total / weight

    @pytest.mark.parametrize("k", [5, 30])
    def test_is_the_definition(self, rng, k):
        Z, batch, cell_type = make_labelled(rng)
        cell_type[:4], batch[:4] = "few in y", "y"  # too few cells in that batch,
        cell_type[4:20], batch[4:20] = "few in y", "x"  # so only batch x is left
        cell_type[20:23], batch[20:23] = "scarce", "y"
        cell_type[23:40], batch[23:40] = "scarce", "z"
        cell_type[40:50], batch[40:50] = "scarce", "x"  # 27 cells: all are neighbours
        score = mixing_within_types(Z, batch, cell_type, k=k)
        assert 0.1 < score < 0.95
        assert score == pytest.approx(self.expected(Z, batch, cell_type, k))

    def test_mixed_is_about_one_and_separate_is_zero(self, rng):
        batch, cell_type = rng.choice(list("xyz"), 900, p=[0.6, 0.3, 0.1]), ["a", "b"] * 450
        Z = rng.normal(size=(900, 3))
        assert mixing_within_types(Z, batch, cell_type) == pytest.approx(1.0, abs=0.05)
        far = 50.0 * (batch[:, None] == np.array(list("xyz")))
        assert mixing_within_types(Z + far, batch, cell_type) == 0.0

    def test_overlapping_types_do_not_raise_the_score(self, rng):
        """Type a of each batch overlaps with type b of the other: iLISI is high although it is wrong."""
        batch, cell_type = rng.choice(["x", "y"], 400), rng.choice(["a", "b"], 400)
        Z = rng.normal(size=(400, 3)) + 30.0 * ((batch == "x") == (cell_type == "a"))[:, None]
        assert ilisi(Z, batch) > 0.8
        assert mixing_within_types(Z, batch, cell_type) == 0.0
        assert over_correction(Z, batch, cell_type) == 1.0

    def test_a_type_with_few_cells_may_exceed_what_is_allowed(self):
        """Five cells in each batch: a cell has four neighbours in its batch, and five in the other."""
        score = mixing_within_types(np.arange(10.0)[:, None], ["x", "y"] * 5, ["a"] * 10)
        assert score == pytest.approx(1 / ((4 / 9) ** 2 + (5 / 9) ** 2) - 1)
        score = mixing_within_types(
            np.arange(15.0)[:, None], ["x"] * 10 + ["y"] * 5, ["a"] * 15, k=14
        )
        of_x, of_y = (1 / ((a / 14) ** 2 + (b / 14) ** 2) for a, b in ((9, 5), (10, 4)))
        assert score == pytest.approx(((10 * of_x + 5 * of_y) / 15 - 1) / (1 / (5 / 9) - 1))

    def test_no_answer(self, rng):
        Z = rng.normal(size=(40, 2))
        assert np.isnan(mixing_within_types(Z, ["x"] * 40, ["a", "b"] * 20))
        assert np.isnan(mixing_within_types(Z, ["x", "y"] * 20, ["a", "b"] * 20))
        batch = ["y"] * 4 + ["x"] * 36
        assert np.isnan(mixing_within_types(Z, batch, ["a"] * 40))


class TestOverCorrection:
    def test_is_the_definition(self, rng):
        Z, batch, cell_type = make_labelled(rng, 120)
        met = wrong = 0
        for i in range(120):
            for j in nearest(Z, i, range(120), 9):
                met += batch[i] != batch[j]
                wrong += batch[i] != batch[j] and cell_type[i] != cell_type[j]
        assert 0.05 < wrong / met < 0.95
        assert over_correction(Z, batch, cell_type, k=9) == pytest.approx(wrong / met)

    def test_other_types_in_the_same_batch_are_not_counted(self):
        Z = np.array([[0.0], [0.1], [0.2], [0.3]])
        # Four of the six pairs are of two batches.
        assert over_correction(Z, list("xxyy"), list("abab"), k=3) == 0.5
        assert over_correction(Z, list("xxyy"), list("aaaa"), k=3) == 0.0

    def test_no_answer(self, rng):
        Z = rng.normal(size=(20, 2))
        assert np.isnan(over_correction(Z, ["x"] * 20, ["a", "b"] * 10))
        apart = Z + 90.0 * np.repeat([[0.0], [1.0]], 10, axis=0)
        assert np.isnan(over_correction(apart, np.repeat(["x", "y"], 10), ["a", "b"] * 10, k=5))


class TestVarianceKept:
    def test_is_the_ratio_of_sums_of_squares(self, rng):
        Z, batch, cell_type = make_labelled(rng, 90)
        cell_type[0] = "alone"
        after = Z * rng.uniform(0.5, 2.0, 4) + rng.normal(size=4)
        sums = [
            sum(
                group.var(ddof=0).sum() * len(group)
                for _, group in pd.DataFrame(X).groupby([batch, cell_type])
            )
            for X in (Z, after)
        ]
        assert variance_kept(Z, after, batch, cell_type) == pytest.approx(sums[1] / sums[0])

    def test_moving_groups_as_a_whole_changes_nothing(self, rng):
        Z, batch, cell_type = make_labelled(rng, 90)
        moved = Z + 7.0 * (batch == "x")[:, None] - 3.0 * (cell_type == "a")[:, None]
        assert variance_kept(Z, moved, batch, cell_type) == pytest.approx(1.0)
        assert variance_kept(Z, 3.0 * Z + 1e6, batch, cell_type) == pytest.approx(9.0)
        assert variance_kept(Z, np.zeros_like(Z), batch, cell_type) == 0.0

    def test_no_answer(self, rng):
        Z, batch, cell_type = make_labelled(rng, 50)
        assert np.isnan(variance_kept(Z, Z[:, :3], batch, cell_type))
        assert np.isnan(variance_kept(np.ones((50, 2)), Z[:, :2], batch, cell_type))
        assert np.isnan(variance_kept(Z, Z, np.arange(50), cell_type))  # each cell is a group


class TestNeighboursWithinBatches:
    def test_equals_separate_runs_on_each_batch(self, rng):
        Z, batch, _ = make_labelled(rng, 90)
        after = Z + 0.7 * rng.normal(size=Z.shape)
        kept = neighbours_kept(Z, after, k=6, batch=batch)
        for i in range(90):
            own = np.flatnonzero(batch == batch[i])
            both = set(nearest(Z, i, own, 6)) & set(nearest(after, i, own, 6))
            assert kept[i] == pytest.approx(len(both) / 6)
        assert 0.2 < kept.mean() < 0.9
        assert mean_kept_in_batch(Z, after, batch, k=6) == pytest.approx(kept.mean())

    def test_moving_batches_keeps_all_within_them_but_not_between(self, rng):
        Z, batch, _ = make_labelled(rng, 90, batch_effect=0.0)
        moved = Z + 9.0 * (batch == "x")[:, None]
        assert (neighbours_kept(Z, moved, k=10, batch=batch) == 1.0).all()
        assert neighbours_kept(Z, moved, k=10).mean() < 0.9

    def test_the_only_cell_of_a_batch_has_no_neighbours(self, rng):
        Z = rng.normal(size=(30, 2))
        batch = ["alone", *["x"] * 29]
        kept = neighbours_kept(Z, Z, batch=batch)
        assert np.isnan(kept[0])
        assert (kept[1:] == 1.0).all()
        assert mean_kept_in_batch(Z, Z, batch) == 1.0
        assert np.isnan(mean_kept_in_batch(Z, Z, np.arange(30)))


def test_all_in_one_call(rng):
    Z, batch, cell_type = make_labelled(rng)
    after = Z + 0.3 * rng.normal(size=Z.shape)
    assert neighbourhood_scores(after, batch, cell_type, Z) == pytest.approx(
        {
            "lobo_f1": leave_one_batch_out_f1(after, cell_type, batch),
            "ilisi_30": ilisi(after, batch),
            "mixing_within_types": mixing_within_types(after, batch, cell_type),
            "over_correction": over_correction(after, batch, cell_type),
            "variance_kept": variance_kept(Z, after, batch, cell_type),
            "neighbours_kept_in_batch": neighbours_kept(Z, after, batch=batch).mean(),
        }
    )


def test_containers_and_the_origin_do_not_matter(rng):
    Z, batch, cell_type = make_labelled(rng)
    expected = neighbourhood_scores(Z, batch, cell_type, Z)
    other = pd.Categorical(batch, categories=list("qzyx"))
    types = pd.Series(cell_type, index=rng.permutation(200), dtype="category")
    assert neighbourhood_scores(pd.DataFrame(Z + 1e5), other, types, Z + 1e5) == pytest.approx(
        expected, abs=1e-6
    )


def test_bad_input(rng):
    Z, batch, cell_type = make_labelled(rng, 50)
    missing = cell_type.astype(object)
    missing[7] = None
    gap = Z.copy()
    gap[3, 1] = np.nan
    for score in (mixing_within_types, over_correction):
        with pytest.raises(BadValue, match=r"one batch label per cell \(50\), found 49"):
            score(Z, batch[1:], cell_type)
        with pytest.raises(BadValue, match="a cell type for every cell, found 1 missing of 50"):
            score(Z, batch, missing)
        with pytest.raises(BadValue, match="row 3, column 1"):
            score(gap, batch, cell_type)
        with pytest.raises(BadValue, match="k to be a finite number > 0, found 0"):
            score(Z, batch, cell_type, k=0)
        with pytest.raises(BadType, match="k to be a whole number, found 2.5"):
            score(Z, batch, cell_type, k=2.5)
    for call in (
        lambda: variance_kept(Z, Z[1:], batch, cell_type),
        lambda: neighbours_kept(Z, Z[1:], batch=batch),
    ):
        with pytest.raises(BadValue, match="of the same cells, found 50 and 49 cells"):
            call()
    with pytest.raises(BadValue, match="a cell type for every cell"):
        variance_kept(Z, Z, batch, missing)
    with pytest.raises(BadValue, match=r"one batch label per cell \(50\), found 49"):
        neighbours_kept(Z, Z, batch=batch[1:])
