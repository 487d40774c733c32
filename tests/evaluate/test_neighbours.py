"""Neighbours and the table of displacements, compared with their definitions."""

import os
from pathlib import Path

import numpy as np
import pytest

from data import make_cells
from labelled_cells import make_labelled, nearest
from scbatchprox import BatchProx
from scbatchprox.evaluate import ilisi, neighbours_kept, stability
from scbatchprox.evaluate.mixing import Neighbours

DATA = Path(os.environ.get("SCBATCHPROX_DATA", "/nowhere"))


def test_ilisi_is_the_formula_cell_by_cell(rng):
    Z, batch = rng.normal(size=(60, 3)), rng.choice(["x", "y", "z"], 60)
    values = []
    for i in range(60):
        distance = np.linalg.norm(Z - Z[i], axis=1)
        near = np.argsort(distance)[1:11]
        share = [np.mean(batch[near] == b) for b in "xyz"]
        values.append(1 / np.sum(np.square(share)))
    assert ilisi(Z, batch, k=10) == pytest.approx((np.mean(values) - 1) / 2)
    apart = Z + 100 * (batch == "x")[:, None] + 200 * (batch == "y")[:, None]
    assert ilisi(apart, batch, k=5) == 0.0


class TestNeighbours:
    def test_are_exact_far_from_the_origin_too(self, rng):
        Z = rng.normal(size=(80, 20))
        for offset in (0.0, 1e6):
            np.testing.assert_array_equal(Neighbours.of(Z + offset, 7).indices, nearest(Z, 7))

    def test_a_cell_is_not_its_own_neighbour_among_equals(self):
        near = Neighbours.of(np.ones((20, 3)), 5).indices
        assert not (near == np.arange(20)[:, None]).any()

    def test_ilisi_of_one_batch_has_no_answer(self, rng):
        assert np.isnan(ilisi(rng.normal(size=(50, 2)), ["x"] * 50))

    def test_kept_is_the_overlap_of_sets(self, rng):
        before = rng.normal(size=(60, 3))
        after = before + 0.5 * rng.normal(size=(60, 3))
        expected = [
            len(set(a) & set(b)) / 8
            for a, b in zip(nearest(before, 8), nearest(after, 8), strict=True)
        ]
        assert 0.1 < np.mean(expected) < 0.9
        np.testing.assert_allclose(neighbours_kept(before, after, k=8), expected)

    def test_moving_all_cells_keeps_all_neighbours(self, rng):
        Z = rng.normal(size=(60, 3))
        turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        wider = np.column_stack([5.0 + 3.0 * Z @ turn, np.zeros(60)])
        assert (neighbours_kept(Z, wider) == 1.0).all()

    def test_different_numbers_of_cells_are_refused(self, rng):
        with pytest.raises(ValueError, match="of the same cells, found 20 and 30 cells"):
            neighbours_kept(rng.normal(size=(20, 3)), rng.normal(size=(30, 3)))


class TestStability:
    def test_agrees_with_the_movement_of_the_model(self, rng):
        c = make_cells(rng, [60, 40, 30], 4)
        model = BatchProx(target="moment")
        refined = model.fit_transform(c.Z, batch=c.codes)
        table = stability(c.Z, refined, c.codes).set_index("name")
        assert (table["kind"] == "batch").all()
        movement = model.movement()
        for ours, theirs in (("n", "n_cells"), ("moved", "moved"), ("relative", "relative")):
            np.testing.assert_allclose(table[ours], movement[theirs], rtol=1e-9)

    def test_each_group_from_its_cells(self, rng):
        Z, labels, batch = make_labelled(rng, 200)
        labels[:6] = "rare"
        after = Z + 0.3 * rng.normal(size=Z.shape)
        table = stability(Z, after, batch, labels, k=10)
        kept = neighbours_kept(Z, after, k=10)
        names = {("batch", b): batch == b for b in "xyz"}
        names |= {("cell type", t): labels == t for t in "abc"}
        names |= {("rare type", "rare"): labels == "rare"}
        for t in np.unique(labels):
            for b in "xyz":
                if ((labels == t) & (batch == b)).any():
                    names["population", f"{t} | {b}"] = (labels == t) & (batch == b)
        assert len(table) == len(names)
        for row in table.itertuples():
            cells = names[row.kind, row.name]
            moved = np.sqrt(
                np.mean([((a - z) ** 2).sum() for z, a in zip(Z[cells], after[cells], strict=True)])
            )
            assert row.n == cells.sum()
            assert row.moved == pytest.approx(moved)
            assert row.neighbours_kept == pytest.approx(kept[cells].mean())
            if row.n > 1:
                spread = np.sqrt(Z[cells].var(axis=0).sum())
                assert row.relative == pytest.approx(moved / spread)
            else:
                assert np.isnan(row.relative)

    def test_a_shift_of_one_batch_moves_it_by_the_shift(self, rng):
        Z, labels, batch = make_labelled(rng, 100)
        after = Z + 5.0 * (batch == "x")[:, None] * np.array([0.6, 0.8, 0.0, 0.0])
        table = stability(Z, after, batch, labels).set_index(["kind", "name"])
        assert table.loc[("batch", "x"), "moved"] == pytest.approx(5.0)
        assert table.loc[("batch", "y"), "moved"] == 0.0
        assert table.loc[("population", "c | x"), "moved"] == pytest.approx(5.0)

    def test_another_space_has_neighbours_but_no_distance(self, rng):
        Z, labels, batch = make_labelled(rng, 60)
        table = stability(Z, Z @ rng.normal(size=(4, 6)), batch, labels)
        assert table[["moved", "relative"]].isna().all(axis=None)
        assert table["neighbours_kept"].between(0.3, 1.0).all()
