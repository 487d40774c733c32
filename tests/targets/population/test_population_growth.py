"""Batches that are added, refitted, forgotten and saved, with the population target."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import population_oracles as oracles
from population_models import BOTH, assert_bits, assert_same, grown, parts, rows_of, some_of
from scbatchprox import Adapter, BatchProx, Moments, PopulationSettings, PopulationTarget


@BOTH
class TestRefit:
    @pytest.mark.parametrize("options", [{}, {"rounds": 3}, {"mu": 0}, {"strength": 0.5}], ids=str)
    def test_equals_a_fit_on_all_cells(self, grow, target, options):
        whole = BatchProx(target=target, **options).fit(grow[0], batch=grow[1])
        for arrivals in ([[2], [4, 3]], [[3, 2, 4]], [[4], [2], [3]]):
            model = grown(grow, target, [0, 1], *arrivals, policy="refit", **options)
            assert_same(model, whole)

    def test_after_a_frozen_arrival(self, grow, target):
        model = grown(grow, target, [0, 1], [2])
        model.partial_fit(*some_of(grow, 3)[:1], batch=some_of(grow, 3)[1], policy="refit")
        assert_same(model, grown(grow, target, [0, 1, 2, 3]))

    def test_more_cells_of_a_known_batch_join_its_populations(self, grow, target):
        """Equal to a fit to the populations of the first cells, with the moments of all cells."""
        Z, codes = grow
        first = np.arange(len(Z)) % 3 > 0
        model = BatchProx(target=target).fit(Z[first], batch=codes[first])
        before = model.fit_.moments
        model.partial_fit(Z[~first], batch=codes[~first], policy="refit")
        np.testing.assert_array_equal(model.fit_.moments.anchors, before.anchors)
        assert model.moments_.n.tolist() == np.bincount(codes).tolist()
        counted = Moments.of(Z, oracles.nearest_row(Z, codes, before))
        np.testing.assert_array_equal(model.fit_.moments.n, counted.n)
        again = BatchProx(target=target).fit_moments(
            replace(before, n=counted.n, mean=counted.mean, m2=counted.m2)
        )
        np.testing.assert_allclose(model.scale_, again.scale_, atol=1e-10)
        np.testing.assert_allclose(model.shift_, again.shift_, atol=1e-10)


@BOTH
class TestFrozen:
    def test_does_not_change_existing_rows(self, grow, target):
        before = grown(grow, target, [0, 3])
        after = grown(grow, target, [0, 3], [1, 2], [4])
        assert after.batches_.tolist() == [0, 1, 2, 3, 4]
        for batch in (0, 3):
            for one, two in zip(rows_of(before, batch), rows_of(after, batch), strict=True):
                np.testing.assert_array_equal(one, two)
        Z, codes = some_of(grow, 0, 3)
        np.testing.assert_array_equal(
            before.transform(Z, batch=codes), after.transform(Z, batch=codes)
        )

    @pytest.mark.parametrize("order", list(itertools.permutations([2, 3, 4])))
    def test_the_order_of_arrival_does_not_matter(self, grow, target, order):
        together = grown(grow, target, [0, 1], [2, 3, 4])
        assert_bits(grown(grow, target, [0, 1], *[[b] for b in order]), together)
        assert_bits(grown(grow, target, [0, 1], [order[0]], list(order[1:])), together)

    def test_nor_do_other_batches_that_arrive_with_larger_ones(self, target):
        """More rows than a loop takes at a time, and several hundred populations."""
        rng = np.random.default_rng(0)
        codes = rng.permutation(np.repeat(np.arange(11), 400))
        Z = rng.normal(size=(len(codes), 40)) + rng.normal(size=(11, 40))[codes]
        together = grown((Z, codes), target, [0], list(range(1, 11)))
        one_by_one = grown((Z, codes), target, [0], *[[b] for b in range(1, 11)])
        assert_bits(one_by_one, together)

    def test_a_new_batch_moves(self, grow, target):
        model = grown(grow, replace(target, force=True), [0, 1], [3])
        Z, codes = some_of(grow, 3)
        assert np.abs(model.transform(Z, batch=codes) - Z).max() > 0.5

    def test_more_cells_of_a_known_batch_count_and_move_nothing(self, grow, target):
        model = grown(grow, target, [0, 1], [2])
        before = parts(model)
        for batches in ([0], [2], [0, 1, 2]):
            Z, codes = some_of(grow, *batches)
            model.partial_fit(Z[::2], batch=codes[::2])
        after = parts(model)
        for name in before:
            if not name.startswith("moments."):
                np.testing.assert_array_equal(before[name], after[name], err_msg=name)
        expected = {b: (grow[1] == b).sum() for b in (0, 1, 2)}
        for batches in ([0], [2], [0, 1, 2]):
            codes = some_of(grow, *batches)[1][::2]
            for b in batches:
                expected[b] += (codes == b).sum()
        assert model.moments_.n.tolist() == list(expected.values())

    def test_old_and_new_batches_at_once(self, grow, target):
        """More cells of batch 0 do not change the rows of a new batch that arrives with them."""
        model = grown(grow, target, [0, 1])
        Z, codes = some_of(grow, 0, 2)
        model.partial_fit(Z, batch=codes)
        expected = grown(grow, target, [0, 1], [2])
        np.testing.assert_array_equal(model.scale_, expected.scale_)
        np.testing.assert_array_equal(model.shift_, expected.shift_)
        assert model.moments_.n[0] == 2 * expected.moments_.n[0]


@BOTH
class TestForget:
    @pytest.mark.parametrize("batch", [0, 2, 4])
    def test_of_a_fit_equals_never_having_seen(self, grow, target, batch):
        rest = [b for b in range(5) if b != batch]
        model = BatchProx(target=target).fit(grow[0], batch=grow[1]).forget(batch)
        assert_same(model, grown(grow, target, rest))

    @pytest.mark.parametrize("batch", [2, 3])
    def test_of_an_added_batch_takes_only_its_rows(self, grow, target, batch):
        model = grown(grow, target, [0, 1], [2, 3]).forget(batch)
        assert_bits(model, grown(grow, target, [0, 1], [5 - batch]))

    def test_of_a_reference_batch_changes_the_reference(self, grow, target):
        model = grown(grow, target, [0, 1, 4], [2, 3]).forget(4)
        assert_same(model, grown(grow, target, [0, 1], [2, 3]))

    def test_after_a_refit(self, grow, target):
        model = grown(grow, target, [0, 1], [2, 3], policy="refit").forget(1)
        assert_same(model, grown(grow, target, [0, 2, 3]))

    def test_after_more_cells_of_it(self, grow, target):
        model = grown(grow, target, [0, 1], [2], [2])
        assert_bits(model.forget(2), grown(grow, target, [0, 1]))

    def test_unknown_and_last(self, grow, target):
        model = grown(grow, target, [0, 1])
        with pytest.raises(KeyError, match="found 7; available: 0, 1"):
            model.forget(7)
        model.forget(0)
        with pytest.raises(ValueError, match="found that 1 is its last"):
            model.forget(1)
        assert model.batches_.tolist() == [1]


@BOTH
class TestSaved:
    def test_to_the_bit(self, grow, target, tmp_path):
        names = np.array(["a", "b b", "c", "dd", "e"])
        data = grow[0], names[grow[1]]
        model = grown(data, target, ["a", "b b"], ["dd"], ["a"])
        model.save(tmp_path / "m.safetensors")
        back = BatchProx.load(tmp_path / "m.safetensors")
        assert back.get_params() == model.get_params()
        assert_bits(model, back)
        Z, batch = some_of(data, "a", "dd")
        np.testing.assert_array_equal(
            back.transform(Z, batch=batch), model.transform(Z, batch=batch)
        )
        # Further changes have the same effect on both.
        Z, batch = some_of(data, "c", "e")
        for other in (model, back):
            other.partial_fit(Z, batch=batch)
        assert_bits(model, back)
        assert_bits(model.forget("b b"), back.forget("b b"))
        Z, batch = some_of(data, "b b")
        for other in (model, back):
            other.partial_fit(Z, batch=batch, policy="refit")
        assert_bits(model, back)

    def test_the_adapter_alone(self, grow, target, tmp_path):
        model = grown(grow, target, [0, 1])
        model.save(tmp_path / "m.safetensors")
        model.adapter_.save(tmp_path / "a.safetensors")
        Z, codes = some_of(grow, 0, 1)
        for name in ("m", "a"):
            adapter = Adapter.load(tmp_path / f"{name}.safetensors")
            np.testing.assert_array_equal(adapter.apply(Z, codes), model.transform(Z, batch=codes))

    def test_options_of_the_target(self, grow, target, tmp_path):
        settings = PopulationSettings(cells=25, hot=1.5, copies=8)
        mine = PopulationTarget(conditioned=target.conditioned, seed=3, settings=settings)
        model = grown(grow, mine, [0, 1])
        model.save(tmp_path / "m.safetensors")
        assert BatchProx.load(tmp_path / "m.safetensors").target == mine
