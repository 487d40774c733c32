"""The quick look: same and different compositions, whatever the batch effect."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from scbatchprox import BatchProx, diagnose
from scbatchprox.cells.memory import MemoryCells
from scbatchprox.core.labels import Labels
from scbatchprox.core.moments import Moments
from scbatchprox.diagnosis.look import quick_warning
from scbatchprox.diagnosis.quick_look import (
    MAX_BATCHES,
    MAX_CELLS,
    quick_composition,
    quick_look,
    quick_sample_sizes,
)

EVEN = (1, 1, 1, 1, 1)
SKEWED = (20, 1, 1, 1, 1)


def batches(*shares, n=600, d=8, shift=1.0, scale=1.0, apart=8.0, seed=0):
    """Batches of five types in the given shares, each with its own shift and scales."""
    rng = np.random.default_rng(seed)
    types = np.random.default_rng(1).normal(size=(5, d)) * apart
    parts = []
    for share in shares:
        kind = rng.choice(5, n, p=np.array(share) / sum(share))
        stretch = scale ** rng.uniform(-1, 1, d)
        parts.append((types[kind] + rng.normal(size=(n, d))) * stretch + shift * rng.normal(size=d))
    names = [f"b{i}" for i in range(len(shares))]
    return np.concatenate(parts), np.repeat(names, n)


def look(Z, batch, seed=0):
    return quick_look(MemoryCells(Z, Labels.of(batch, Z.shape[0])), Moments.of(Z, batch), seed)


def warning(Z, batch, seed=0):
    return quick_warning(
        BatchProx(target="moment").fit(Z, batch=batch).fit_,
        look(Z, batch, seed),
        Labels.of(batch, len(Z)),
    )


class TestSameComposition:
    @pytest.mark.parametrize("shift", [0.0, 0.3, 1.0, 3.0, 10.0, 100.0])
    @pytest.mark.parametrize("scale", [1.0, 1.5])
    @pytest.mark.parametrize("n_batches", [2, 5])
    def test_shifts_and_scales_are_not_composition(self, shift, scale, n_batches):
        Z, batch = batches(*[EVEN] * n_batches, shift=shift, scale=scale)
        assert look(Z, batch).composition.max() < 0.2
        assert warning(Z, batch) is None

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("apart", [0.5, 2.0, 30.0])
    def test_types_that_overlap_or_are_points(self, seed, apart):
        Z, _ = batches(EVEN, SKEWED, seed=seed, apart=apart)
        half = np.random.default_rng(seed).integers(0, 2, len(Z))  # independent of the cells
        assert look(Z + 5.0 * half[:, None], half).composition.max() < 0.2

    @pytest.mark.parametrize("shift", [1.0, 10.0, 30.0])
    def test_a_hundred_batches(self, shift):
        Z, batch = batches(*[EVEN] * 100, n=200, shift=shift)
        assert warning(Z, batch) is None

    @pytest.mark.parametrize("n", [20, 25, 40])
    def test_small_batches_differ_by_chance(self, n):
        Z, batch = batches(*[EVEN] * 20, n=n)
        assert warning(Z, batch) is None

    def test_no_structure_at_all(self):
        rng = np.random.default_rng(0)
        Z, code = rng.normal(size=(4000, 30)), rng.integers(0, 10, 4000)
        Z += 3.0 * rng.normal(size=(10, 30))[code]
        assert look(Z, code).composition.max() < 0.2


class TestDifferentCompositions:
    @pytest.mark.parametrize("shift", [0.0, 0.5, 1.0])
    def test_warns_and_names_the_batch(self, shift):
        message = warning(*batches(EVEN, EVEN, EVEN, EVEN, SKEWED, shift=shift))
        assert message.startswith(
            "Batches differ in composition (b4): a target that moves whole batches"
        )
        assert "target='population'" in message

    def test_one_type_only(self):
        Z, batch = batches(EVEN, EVEN, EVEN, (1, 0, 0, 0, 0))
        found = look(Z, batch).composition
        assert found.argmax() == 3
        assert found[3] > 0.6

    def test_nothing_in_common(self):
        assert "b0, b1" in warning(*batches((1, 1, 0, 0, 0), (0, 0, 1, 1, 1)))

    def test_some_of_a_hundred(self):
        shares = [EVEN] * 95 + [(1, 0, 0, 0, 0)] * 5
        Z, batch = batches(*shares, n=200)
        found = look(Z, batch).composition
        names = Labels.of(batch, len(Z)).batches
        assert set(names[found > 0.3]) == {f"b{i}" for i in range(95, 100)}

    def test_overlapping_types_have_another_warning(self):
        Z, batch = batches(EVEN, EVEN, SKEWED, n=1000, shift=0.0)
        noise = 5.0 * np.random.default_rng(5).normal(size=(len(Z), Z.shape[1] + 16))
        noise[:, : Z.shape[1]] += Z
        assert "b2" in warning(noise, batch)
        assert "no target can match them" in warning(noise, batch)
        assert look(Z, batch).distinct > 0.9

    def test_grows_with_the_difference(self):
        mild = (3, 2, 1, 1, 1)
        found = [
            look(*batches(EVEN, EVEN, shares)).composition[2] for shares in (EVEN, mild, SKEWED)
        ]
        assert found == sorted(found)
        assert found[1] < 0.3
        assert found[2] == pytest.approx(20 / 24 - 0.2, abs=0.15)

    def test_agrees_with_the_diagnosis(self):
        for shares in ((EVEN, EVEN, EVEN), (EVEN, EVEN, EVEN, SKEWED)):
            Z, batch = batches(*shares)
            full = diagnose(Z, batch, target="moment")["composition"].to_numpy()
            np.testing.assert_allclose(look(Z, batch).composition, full, atol=0.15)


class TestInvariance:
    Z, batch = batches(EVEN, (3, 2, 1, 1, 1), SKEWED, EVEN, shift=2.0)

    def test_order_of_cells(self):
        order = np.random.default_rng(3).permutation(len(self.Z))
        here, there = look(self.Z, self.batch), look(self.Z[order], self.batch[order])
        np.testing.assert_array_equal(here.composition, there.composition)
        assert here.distinct == there.distinct

    def test_order_within_a_sample(self):
        code = np.unique(self.batch, return_inverse=True)[1]
        order = np.random.default_rng(3).permutation(len(code))
        moments = Moments.of(self.Z, code)
        here = quick_composition(self.Z, code, moments)
        there = quick_composition(self.Z[order], code[order], moments)
        np.testing.assert_allclose(here.composition, there.composition, atol=0.02)

    def test_names_of_batches(self):
        names = {"b0": 9, "b1": 3, "b2": 5, "b3": 1}
        there = look(self.Z, np.array([names[b] for b in self.batch])).composition
        here = look(self.Z, self.batch).composition
        np.testing.assert_allclose(here[[3, 1, 2, 0]], there, atol=0.02)

    @pytest.mark.parametrize(
        ("scale", "offset"), [(2.0**-40, 0.0), (1e6, 0.0), (1.0, 1e5), (1e-30, 0.0)]
    )
    def test_units_and_origin(self, scale, offset):
        here = look(self.Z, self.batch).composition
        there = look(scale * self.Z + offset, self.batch).composition
        # Cells are drawn by their values, so this sample has other cells.
        np.testing.assert_allclose(here, there, atol=0.1)
        code = np.unique(self.batch, return_inverse=True)[1]
        same = [
            quick_composition(Z, code, Moments.of(Z, code))
            for Z in (self.Z, scale * self.Z + offset)
        ]
        np.testing.assert_allclose(same[0].composition, same[1].composition, atol=0.02)

    def test_repeated_and_sparse_looks_are_equal(self):
        here = look(self.Z, self.batch)
        np.testing.assert_array_equal(here.composition, look(self.Z, self.batch).composition)
        code = np.unique(self.batch, return_inverse=True)[1]
        dense, sparse = (
            quick_composition(Z, code, Moments.of(self.Z, code))
            for Z in (self.Z, sp.csr_array(self.Z))
        )
        np.testing.assert_array_equal(dense.composition, sparse.composition)

    def test_the_seed_hardly_matters(self):
        found = [look(self.Z, self.batch, seed).composition for seed in range(6)]
        assert np.ptp(found, axis=0).max() < 0.15


class TestUnknown:
    def test_one_batch(self):
        Z, _ = batches(EVEN)
        assert np.isnan(look(Z, ["only"] * len(Z)).composition).all()
        assert warning(Z, ["only"] * len(Z)) is None

    def test_batches_that_are_too_small(self):
        Z, batch = batches(EVEN, (1, 0, 0, 0, 0), (0, 1, 0, 0, 0), n=15)
        assert warning(Z, batch) is None
        assert np.isnan(look(Z, batch).composition).all()

    def test_a_small_batch_among_others(self):
        Z, batch = batches(EVEN, EVEN, (1, 0, 0, 0, 0))
        keep = (batch != "b2") | (np.arange(len(Z)) % 60 == 0)
        found = look(Z[keep], batch[keep]).composition
        assert np.isnan(found).tolist() == [False, False, True]
        assert warning(Z[keep], batch[keep]) is None

    @pytest.mark.parametrize("d", [1, 3])
    def test_identical_cells(self, d):
        Z, batch = np.ones((100, d)), np.repeat(["a", "b"], 50)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.isnan(look(Z, batch).composition).all()

    @pytest.mark.parametrize("d", [1, 2])
    def test_few_coordinates_and_few_values(self, d):
        rng = np.random.default_rng(0)
        Z, batch = rng.integers(0, 3, (300, d)).astype(float), np.repeat(["a", "b", "c"], 100)
        Z[batch == "c", 0] = 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert np.isfinite(look(Z, batch).composition).all()


def test_the_sample_is_small_for_any_number_of_cells():
    assert quick_sample_sizes(np.array([10**7] * 4)).tolist() == [1000] * 4
    assert quick_sample_sizes(np.array([10**7] * 20)).sum() <= MAX_CELLS
    assert quick_sample_sizes(np.array([30, 10**6] * 50)).tolist() == [30, 60] * 50


class TestVeryManyBatches:
    def test_only_the_largest_are_sampled(self):
        n = np.random.default_rng(0).permutation(np.arange(30, 30 + 5 * MAX_BATCHES))
        most = quick_sample_sizes(n)
        assert (most > 0).sum() == MAX_BATCHES
        assert n[most > 0].min() > n[most == 0].max()

    def test_a_large_batch_that_differs_is_found(self):
        Z, batch = batches(*[EVEN] * 149, SKEWED, n=80)
        Z = np.concatenate([Z, Z[batch == "b149"]])  # the largest batch, with every cell twice
        batch = np.concatenate([batch, ["b149"] * 80])
        assert "(b149)" in warning(Z, batch)
        found = look(Z, batch).composition
        assert np.isnan(found).sum() == 150 - MAX_BATCHES
