"""The adapter with a row per population: every cell moves by a soft mixture of the maps of its batch."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import population_oracles as oracles
from data import make_cells
from scbatchprox import Adapter, BatchProx, set_num_threads

NAMES = np.array(["a", "b", "c"])


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


def make(rng, sizes=(7, 1, 20), d=5, offset=0.0, bandwidth=(1.0, 0.3, 2.5)):
    """An adapter with a different map for each population, relative to its position."""
    batch = np.repeat(np.arange(len(sizes)), sizes)
    center = offset + 3.0 * rng.normal(size=(len(batch), d))
    scale = rng.uniform(0.5, 1.5, center.shape)
    shift = center * (1.0 - scale) + rng.normal(size=center.shape)
    names, bandwidths = NAMES[: len(sizes)], np.array(bandwidth[: len(sizes)])
    return Adapter(names, batch, scale, shift, center, bandwidths)


def cells_for(rng, adapter, n=300):
    codes = rng.integers(0, adapter.batches.size, n)
    first = adapter.start[codes]
    Z = adapter.anchors[first] + 3.0 * rng.normal(size=(n, adapter.n_dims))
    return Z, codes


def expected(adapter, Z, codes):
    return oracles.mixture(
        Z, codes, adapter.batch, adapter.anchors, adapter.bandwidth, adapter.scale, adapter.shift
    )


class TestApply:
    @given(st.integers(0, 10_000), st.sampled_from([0.0, 30.0, -1e4]))
    def test_is_the_soft_mixture(self, seed, offset):
        rng = np.random.default_rng(seed)
        adapter = make(rng, offset=offset)
        Z, codes = cells_for(rng, adapter, 60)
        result = adapter.apply(Z, NAMES[codes])
        soft, bound = expected(adapter, Z, codes)
        error = np.abs(result - soft).max(1)
        assert (error <= bound + 1e-11 * (1 + abs(offset))).all()
        # The bound is far below the difference of the maps.
        assert np.median(bound) < 0.05 * np.abs(soft - Z).max()

    @given(st.integers(0, 10_000), st.sampled_from([1e-6, 1e-3, 0.1, 100.0, 1e6]))
    def test_any_bandwidth(self, seed, h):
        rng = np.random.default_rng(seed)
        adapter = make(rng, bandwidth=(h, h, h))
        Z, codes = cells_for(rng, adapter, 60)
        soft, bound = expected(adapter, Z, codes)
        error = np.abs(adapter.apply(Z, NAMES[codes]) - soft).max(1)
        # With a small bandwidth single precision decides between two near anchors; the bound is larger there.
        assert (error <= bound + 1e-10).all()
        if h < 0.1:
            assert np.median(error) < 1e-3 * np.abs(soft - Z).max()

    def test_without_bandwidth_a_cell_follows_the_nearest_population_only(self, rng):
        adapter = make(rng, bandwidth=(0.0, 0.0, 0.0))
        Z, codes = cells_for(rng, adapter)
        D = oracles.squared_distances(Z, adapter.anchors)
        D[codes[:, None] != adapter.batch] = np.inf
        k = D.argmin(1)
        np.testing.assert_allclose(
            adapter.apply(Z, NAMES[codes]), adapter.scale[k] * Z + adapter.shift[k], atol=1e-10
        )

    def test_a_distant_cell_follows_a_population(self, rng):
        adapter = make(rng)
        Z = np.full((3, 5), 1e5)
        result = adapter.apply(Z, NAMES[[0, 1, 2]])
        assert np.isfinite(result).all()
        for i in range(3):
            own = np.flatnonzero(adapter.batch == i)
            maps = adapter.scale[own] * Z[i] + adapter.shift[own]
            assert (maps.min(0) - 1e-6 <= result[i]).all()
            assert (result[i] <= maps.max(0) + 1e-6).all()

    def test_float32(self, rng):
        adapter = make(rng)
        Z, codes = cells_for(rng, adapter)
        Z = Z.astype(np.float32)
        result = adapter.apply(Z, NAMES[codes])
        assert result.dtype == np.float32
        wide = adapter.apply(Z.astype(float), NAMES[codes])
        size = np.abs(Z) + np.abs(wide - Z).max()
        assert (np.abs(result - wide) <= 4.0 * np.finfo(np.float32).eps * size).all()

    @pytest.mark.parametrize(
        "kind",
        [np.asfortranarray, sp.csr_matrix, sp.csc_array, lambda Z: np.repeat(Z, 2, 1)[:, ::2]],
    )
    def test_other_containers(self, rng, kind):
        adapter = make(rng)
        Z, codes = cells_for(rng, adapter)
        Z[rng.random(Z.shape) < 0.5] = 0.0
        np.testing.assert_array_equal(
            adapter.apply(kind(Z), NAMES[codes]), adapter.apply(Z, NAMES[codes])
        )

    def test_whole_numbers(self, rng):
        adapter = make(rng)
        Z, codes = cells_for(rng, adapter)
        Z = np.round(Z).astype(int)
        result = adapter.apply(Z, NAMES[codes])
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, adapter.apply(Z.astype(float), NAMES[codes]))

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_into_an_array_and_in_place(self, rng, dtype):
        adapter = make(rng)
        Z, codes = cells_for(rng, adapter, 5000)
        Z = Z.astype(dtype)
        result = adapter.apply(Z, NAMES[codes])
        out = np.empty_like(Z)
        assert adapter.apply(Z, NAMES[codes], out=out) is out
        np.testing.assert_array_equal(out, result)
        strided = np.empty((5000, 10), dtype)[:, ::2]
        adapter.apply(Z, NAMES[codes], out=strided)
        np.testing.assert_array_equal(strided, result)
        assert adapter.apply(Z, NAMES[codes], out=Z) is Z
        np.testing.assert_array_equal(Z, result)

    def test_does_not_depend_on_threads_nor_other_cells(self, rng, threads):
        adapter = make(rng)
        Z, codes = cells_for(rng, adapter, 5000)
        results = []
        for n in (1, 2, 3, 8):
            threads(n)
            results.append(adapter.apply(Z, NAMES[codes]))
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])
        for rows in (np.arange(5), rng.permutation(5000)[:777], [4321]):
            some = adapter.apply(Z[rows], NAMES[codes[rows]])
            np.testing.assert_array_equal(some, results[0][rows])

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("into", [False, True])
    def test_cells_that_are_not_finite(self, rng, bad, into):
        adapter = make(rng)
        Z, codes = cells_for(rng, adapter)
        Z[123, 4] = bad
        out = np.full_like(Z, 7.0) if into else None
        with pytest.raises(ValueError, match="Expected finite values.*row 123, column 4"):
            adapter.apply(Z, NAMES[codes], out=out)
        assert out is None or (out == 7.0).all()

    @pytest.mark.parametrize("size", [1e15, 1e20, 1e30, 1e200])
    def test_huge_cells_are_moved_or_rejected(self, rng, size):
        """They are finite, but their squares overflow in single, then in double precision."""
        adapter = make(rng)
        Z = np.r_[rng.normal(size=(4, 5)), np.full((1, 5), size)]
        try:
            result = adapter.apply(Z, ["a"] * 5)
        except ValueError as error:
            assert str(error).startswith("Expected")  # noqa: PT017 - both outcomes are correct
        else:
            assert np.isfinite(result).all()

    def test_bad_input(self, rng):
        adapter = make(rng)
        Z, codes = cells_for(rng, adapter)
        batch = NAMES[codes].astype(object)
        batch[7] = "z"
        for arguments, message in [
            ((Z, batch), "found unseen 'z'; available: 'a', 'b', 'c'"),
            ((Z[:, :4], NAMES[codes]), "Expected 5 coordinates per cell, found 4"),
            ((Z,), "the adapter knows 3 batches"),
            ((Z, NAMES[codes][:-1]), "one batch label per cell"),
        ]:
            with pytest.raises(ValueError, match=message):
                adapter.apply(*arguments)

    def test_one_batch_needs_no_labels(self, rng):
        adapter = make(rng, sizes=(6,))
        Z = rng.normal(size=(9, 5))
        np.testing.assert_array_equal(adapter.apply(Z), adapter.apply(Z, ["a"] * 9))


class TestOnePopulationPerBatch:
    @given(st.integers(0, 10_000), st.sampled_from([0.0, 300.0]))
    def test_is_the_adapter_of_the_paper(self, seed, offset):
        rng = np.random.default_rng(seed)
        one = make(rng, sizes=(1, 1, 1), offset=offset, bandwidth=(1.0, 0.0, 3.0))
        Z, codes = cells_for(rng, one, 50)
        plain = Adapter.per_batch(one.batches, one.scale, one.shift).apply(Z, NAMES[codes])
        np.testing.assert_allclose(
            one.apply(Z, NAMES[codes]), plain, rtol=1e-12, atol=1e-12 * max(1.0, abs(offset))
        )


class TestRows:
    def test_a_part_of_the_displacement(self, rng):
        adapter = make(rng)
        Z, codes = cells_for(rng, adapter)
        full = adapter.apply(Z, NAMES[codes])
        for strength in (0.25, 0.9):
            part = adapter.eased(strength).apply(Z, NAMES[codes])
            np.testing.assert_allclose(part - Z, strength * (full - Z), atol=1e-10)
        np.testing.assert_array_equal(adapter.eased(1.0).apply(Z, NAMES[codes]), full)
        for dtype in (np.float32, np.float64):
            same = (Z + 1e3).astype(dtype)
            np.testing.assert_array_equal(adapter.eased(0.0).apply(same, NAMES[codes]), same)

    def test_are_added_and_removed_without_changing_others(self, rng):
        whole = make(rng)
        Z, codes = cells_for(rng, whole)
        expected = whole.apply(Z, NAMES[codes])
        for batch in NAMES:
            rest = whole.without(batch)
            assert rest.batches.tolist() == [b for b in "abc" if b != batch]
            others = NAMES[codes] != batch
            np.testing.assert_array_equal(
                rest.apply(Z[others], NAMES[codes][others]), expected[others]
            )
            with pytest.raises(ValueError, match="found unseen"):
                rest.apply(Z, NAMES[codes])
            single = whole.without("a" if batch != "a" else "b")
            single = single.without("c" if batch != "c" else "b")
            for again in (rest.joined(single), single.joined(rest)):
                assert again.batches.tolist() == ["a", "b", "c"]
                np.testing.assert_array_equal(again.apply(Z, NAMES[codes]), expected)
                np.testing.assert_array_equal(again.bandwidth, whole.bandwidth)

    def test_saved_and_loaded_to_the_bit(self, rng, tmp_path):
        adapter = make(rng)
        adapter.save(tmp_path / "a.safetensors")
        back = Adapter.load(tmp_path / "a.safetensors")
        assert back.batches.tolist() == ["a", "b", "c"]
        for name in ("bandwidth", "scale", "shift"):
            np.testing.assert_array_equal(getattr(back, name), getattr(adapter, name))
        np.testing.assert_array_equal(back.anchors, adapter.anchors)
        np.testing.assert_array_equal(back.batch, adapter.batch)
        Z, codes = cells_for(rng, adapter)
        np.testing.assert_array_equal(back.apply(Z, NAMES[codes]), adapter.apply(Z, NAMES[codes]))

    def test_there_is_no_inverse(self, rng):
        with pytest.raises(ValueError, match="a row per population.*keep the unrefined embedding"):
            make(rng).inverse(np.zeros((2, 5)), ["a", "b"])

    @pytest.mark.parametrize("name", ["scale", "shift"])
    def test_invalid_rows(self, rng, name):
        adapter = make(rng)
        parts = {"scale": adapter.scale, "shift": adapter.shift}
        with pytest.raises(ValueError, match="Expected scale and shift of one shape"):
            replace(adapter, **(parts | {name: parts[name][1:]}))
        broken = parts[name].copy()
        broken[0, 0] = np.nan
        with pytest.raises(ValueError, match=f"Expected finite {name}"):
            replace(adapter, **(parts | {name: broken}))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"batch": [0, 1, 0, 1, 2]}, "Expected rows in the order of 3 batches"),
            ({"batch": [1, 1, 1, 1, 2]}, "Expected rows in the order of 3 batches"),
            ({"batch": [0, 0, 0, 2, 2]}, "Expected rows in the order of 3 batches"),
            ({"batches": np.array(["b", "a", "c"])}, "Expected distinct batches, sorted"),
            ({"bandwidth": np.array([1.0, -1.0, 1.0])}, "Expected a bandwidth >= 0"),
            ({"bandwidth": np.array([1.0, np.nan, 1.0])}, "Expected finite bandwidth"),
            ({"bandwidth": np.ones(2)}, "Expected anchors and bandwidth of shapes"),
            ({"anchors": None, "bandwidth": None}, "Expected one row per batch, or anchors"),
        ],
        ids=str,
    )
    def test_invalid_maps_and_anchors(self, change, message):
        rng = np.random.default_rng(0)
        center, scale, shift = rng.normal(size=(3, 5, 2))
        adapter = Adapter(np.array(list("abc")), [0, 0, 1, 1, 2], scale, shift, center, np.ones(3))
        with pytest.raises(ValueError, match=message):
            replace(adapter, **change)


class TestMovement:
    def test_is_that_of_cells_that_follow_their_own_population(self, rng):
        c = make_cells(rng, [300, 80, 200], 4)
        model = BatchProx(target="population").fit(c.Z, batch=c.codes)
        adapter = model.adapter_
        k = oracles.nearest_row(c.Z, c.codes, adapter)
        displacement = adapter.scale[k] * c.Z + adapter.shift[k] - c.Z
        table = model.movement()
        assert table.index.tolist() == [0, 1, 2]
        assert table["n_cells"].tolist() == [300, 80, 200]
        for b in range(3):
            own = c.codes == b
            rms = np.sqrt((displacement[own] ** 2).sum(1).mean())
            spread = np.sqrt(c.rows(b).var(0).sum())
            rows = adapter.batch == b
            assert table["moved"][b] == pytest.approx(rms, rel=1e-8)
            assert table["mean_moved"][b] == pytest.approx(
                np.linalg.norm(displacement[own].mean(0))
            )
            assert table["relative"][b] == pytest.approx(rms / spread, rel=1e-8)
            assert table["scale_min"][b] == adapter.scale[rows].min()
            assert table["scale_median"][b] == np.median(adapter.scale[rows])
            assert table["scale_max"][b] == adapter.scale[rows].max()
