"""Samples of cells by content, from memory, Dask arrays and files, in any order of cells."""

import itertools
import struct
from fractions import Fraction

import anndata as ad
import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from data import in_memory
from scbatchprox import PopulationTarget, set_num_threads
from scbatchprox.cells import file as stream
from scbatchprox.cells.reading import LocalCells
from scbatchprox.core.labels import Labels
from scbatchprox.core.sampling import (
    CROWDED,
    Draw,
    Hasher,
    Sample,
    _shell_size,
    drawn_rows,
    hashes_of,
    keys_of,
    thin_sample,
)
from scbatchprox.progress import silent
from scbatchprox.targets.population.find import looked_at

RULE = PopulationTarget()
MASK = 2**64 - 1


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


def splitmix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def hash_of(row, seed):
    """The hash of one row with Python integers."""
    row = [0.0 if x == 0 else x for x in row.tolist()]
    if len(row) % 2:
        row = [*row, 0.0]
    low = np.array(row, np.float32).view(np.uint32).tolist()
    words = [a + (b << 32) for a, b in zip(low[::2], low[1::2], strict=True)]
    words = [(w * 0xBF58476D1CE4E5B9) & MASK for w in words]
    words = [w ^ (w >> 32) for w in words]
    first = splitmix(seed)
    factors = [
        splitmix((first + 0x9E3779B97F4A7C15 * (j + 1)) & MASK) | 1 for j in range(len(words))
    ]
    return splitmix((first + sum(w * f for w, f in zip(words, factors, strict=True))) & MASK)


class TestHashes:
    @pytest.mark.parametrize("d", [1, 2, 7, 40])
    @pytest.mark.parametrize("seed", [0, 5])
    def test_equal_those_of_python_integers(self, rng, d, seed):
        Z = rng.normal(size=(50, d)).astype(np.float32)
        Z[rng.random(Z.shape) < 0.3] = -0.0
        assert hashes_of(Z, seed).tolist() == [hash_of(row, seed) for row in Z]

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_depend_on_content_only(self, rng, dtype, threads):
        Z = rng.normal(size=(70_000, 3)).astype(dtype)
        Z[5], Z[69_999] = [0.0, 1.0, -0.0], [-0.0, 1.0, 0.0]
        threads(1)
        plain = hashes_of(Z)
        threads(3)
        order = rng.permutation(len(Z))
        np.testing.assert_array_equal(hashes_of(Z[order]), plain[order])
        np.testing.assert_array_equal(hashes_of(np.asfortranarray(Z)), plain)
        np.testing.assert_array_equal(hashes_of(sp.csr_matrix(Z)), plain)
        assert plain[5] == plain[-1]
        assert len(np.unique(plain)) == len(np.unique(Z + dtype(0), axis=0))
        assert not np.isin(hashes_of(Z, 1), plain).any()

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_of_small_whole_numbers_differ(self, dtype):
        """The low bits of these numbers are all zero."""
        Z = np.stack(np.meshgrid(*[np.arange(8)] * 5), -1).reshape(-1, 5).astype(dtype)
        found = Hasher(5, np.dtype(dtype), len(Z))(Z)
        assert len(np.unique(found)) == len(Z)
        # Every bit is 1 in half of the hashes.
        bits = (found[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
        assert np.abs(bits.mean(0) - 0.5).max() < 0.02


def key_of(row, seed):
    """The key of one row with Python integers: 24 bits of its norm, 40 of its content."""
    square = float(sum(Fraction(x) ** 2 for x in row.tolist()))
    (bits,) = struct.unpack("<Q", struct.pack("<d", square))
    dropped = 52 - {4: 20, 8: 32}[row.itemsize]
    digits = (bits + (1 << (dropped - 1))) >> dropped
    upper = splitmix((splitmix(seed) + 0x9E3779B97F4A7C15 * digits) & MASK) >> 40
    return (upper << 40) + (int(hashes_of(row[None], seed)[0]) >> 24)


def turn(rng, d):
    return np.linalg.qr(rng.normal(size=(d, d)))[0]


class TestKeys:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize(("d", "seed"), [(1, 0), (2, 5), (7, 0), (40, 5)])
    def test_equal_those_of_python_integers(self, rng, d, seed, dtype):
        Z = rng.normal(size=(50, d)).astype(dtype)
        Z[rng.random(Z.shape) < 0.3] = -0.0
        Z[0], Z[1, 0] = 0.0, 3e7
        assert keys_of(Z, seed).tolist() == [key_of(row, seed) for row in Z]

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_do_not_depend_on_where_a_row_is(self, rng, dtype, threads):
        Z = rng.normal(size=(70_000, 7)).astype(dtype)
        threads(1)
        plain = keys_of(Z)
        threads(3)
        order = rng.permutation(len(Z))
        np.testing.assert_array_equal(keys_of(Z[order]), plain[order])
        np.testing.assert_array_equal(keys_of(np.asfortranarray(Z)), plain)
        np.testing.assert_array_equal(keys_of(sp.csr_matrix(Z)), plain)
        np.testing.assert_array_equal(
            np.concatenate([keys_of(Z[i : i + 1]) for i in range(99)]), plain[:99]
        )
        assert len(np.unique(plain)) == len(Z)

    @pytest.mark.parametrize(("dtype", "changed"), [(np.float32, 0.08), (np.float64, 0.0)])
    @pytest.mark.parametrize("d", [3, 50])
    def test_upper_bits_do_not_turn(self, rng, d, dtype, changed):
        Z = (rng.normal(size=(20_000, d)) * np.geomspace(20, 1, d)).astype(dtype)
        plain = keys_of(Z) >> 40
        turned = (Z.astype(float) @ turn(rng, d)).astype(dtype)
        assert (keys_of(turned) >> 40 != plain).mean() <= changed
        np.testing.assert_array_equal(keys_of(Z[:, rng.permutation(d)]) >> 40, plain)
        assert (keys_of(Z, 1) >> 40 != plain).mean() > 0.999

    @pytest.mark.parametrize("size", [1e-300, 1e-40, 1e30, 1e300])
    def test_of_squares_out_of_range(self, rng, size):
        """Squares are zero or infinite: rows are told apart by content, without a warning."""
        Z = size * rng.normal(size=(5000, 3))
        assert len(np.unique(keys_of(Z))) == 5000
        rows = drawn_rows(keys_of(Z), Labels.of(None, 5000), np.array([1000]))
        assert abs((Z[rows, 0] > 0).mean() - (Z[:, 0] > 0).mean()) < 0.08

    @pytest.mark.parametrize("cells", [1, 3, 40, 1000])
    def test_sizes_of_shells_are_estimated(self, rng, cells):
        upper = rng.integers(0, 1 << 24, 60_000 // cells, dtype=np.uint64).repeat(cells)
        keys = (upper << np.uint64(40)) + rng.integers(0, 1 << 40, upper.size, dtype=np.uint64)
        assert _shell_size(keys) == pytest.approx(cells, rel=0.5)
        assert (_shell_size(keys) > CROWDED) == (cells > 2)


def positions(name, rng, n=12_000):
    """Cells of six types, and the type of each."""
    code = rng.choice(6, n, p=[0.4, 0.2, 0.2, 0.1, 0.06, 0.04])
    Z = 4.0 * rng.normal(size=(6, 5))[code] + rng.normal(size=(n, 5))
    some = rng.random(n) < 0.2
    unit = Z / np.linalg.norm(Z, axis=1, keepdims=True)
    made = {
        "plain": Z,
        "float32": Z.astype(np.float32),
        "far": Z + 1e3,
        "far, float32": (Z + 1e3).astype(np.float32),
        "very far": Z + 1e9,
        "unit vectors": unit,
        "unit vectors, float32": unit.astype(np.float32),
        "some unit vectors": np.where(some[:, None], unit, Z),
        "whole numbers": Z.round(),
        "integers": Z.round().astype(np.int64),
        "on a line": Z * [1, 0, 0, 0, 0],
        "copies": np.where(some[:, None], Z[:1], Z),
        "each twice": np.where(np.arange(n)[:, None] < n // 2, Z, np.roll(Z, n // 2, axis=0)),
    }
    return made[name], code


def misfit(groups, rows):
    """How far counts of groups in a sample are from those of a random sample: 1 on average."""
    total = np.bincount(groups)
    share = rows.size / groups.size
    expected = share * total[total > 0]
    found = np.bincount(groups[rows], minlength=total.size)[total > 0]
    return ((found - expected) ** 2 / expected).sum() / (1 - share) / (expected.size - 1)


class TestFairness:
    @pytest.mark.parametrize("name", [
        "plain", "float32", "far", "far, float32", "very far", "unit vectors", "unit vectors, float32",
        "some unit vectors", "whole numbers", "integers", "on a line", "copies", "each twice",
    ])  # fmt: skip
    def test_of_types_positions_and_norms(self, rng, name):
        Z, code = positions(name, rng)
        about = Z - Z.mean(0)
        norm = np.linalg.norm(Z.astype(float), axis=1)
        groups = [
            code,
            *(pd.qcut(x, 12, labels=False, duplicates="drop") for x in (about[:, 0], norm)),
        ]
        labels, most = Labels.of(None, len(Z)), np.array([3000])
        draws = [drawn_rows(keys_of(Z, seed), labels, most) for seed in range(30)]
        assert all(np.unique(rows).size == 3000 for rows in draws)
        for group in groups:
            if np.unique(group).size > 1:
                degrees = 30 * (np.unique(group).size - 1)
                # Shells of two cells are allowed.
                limit = CROWDED if group is groups[2] else 1.0
                mean = np.mean([misfit(group, rows) for rows in draws])
                assert mean < limit * (1.0 + 5.0 * np.sqrt(2.0 / degrees))

    def test_every_cell_is_drawn_as_often(self, rng):
        Z, _ = positions("float32", rng, 4000)
        labels, seeds = Labels.of(None, 4000), 400
        often = np.zeros(4000)
        for seed in range(seeds):
            often[drawn_rows(keys_of(Z, seed), labels, np.array([1000]))] += 1
        assert often.var() == pytest.approx(seeds * 0.25 * 0.75, rel=0.15)


class TestDrawnRows:
    @pytest.mark.parametrize("name", ["plain", "far", "copies", "each twice"])
    def test_do_not_turn(self, rng, name):
        """With copies, as many of each are drawn: which of them does not matter."""
        Z, _ = positions(name, rng)
        labels, most = Labels.of(None, len(Z)), np.array([3000])
        number = np.unique(Z, axis=0, return_inverse=True)[1].ravel()
        found = drawn_rows(keys_of(Z), labels, most)
        # Copies stay equal: a product of matrices may round equal rows differently.
        turned = (np.unique(Z, axis=0) @ turn(rng, 5))[number]
        other = drawn_rows(keys_of(turned), labels, most)
        assert np.sort(number[found]).tolist() == np.sort(number[other]).tolist()
        shuffled = drawn_rows(keys_of(Z[:, rng.permutation(5)]), labels, most)
        assert np.sort(number[found]).tolist() == np.sort(number[shuffled]).tolist()

    def test_are_the_smallest_of_each_batch(self, rng):
        Z, codes = rng.normal(size=(900, 2)), rng.integers(0, 3, 900)
        labels, most = Labels.of(codes, 900), np.array([10, 1000, 0])
        keys = keys_of(Z)
        rows = drawn_rows(keys, labels, most)
        expected = []
        for b, m in enumerate(most):
            own = np.flatnonzero(codes == b)
            expected += own[np.argsort(keys[own])[:m]].tolist()
        assert rows.tolist() == sorted(expected)

    @given(st.integers(0, 10_000), st.sampled_from([0.1, 0.5, 0.95]))
    def test_copies_are_drawn_like_other_cells(self, seed, part):
        """In proportion, up to chance. With equal keys all or none would be drawn."""
        rng = np.random.default_rng(seed)
        Z = rng.normal(size=(4000, 3))
        Z[rng.random(4000) < part] = rng.normal(size=3)
        copies = (Z[:, None] == Z[None, [np.argmax(pd.DataFrame(Z).duplicated(keep=False))]]).all(2)
        share = copies.mean()
        rows = drawn_rows(keys_of(Z), Labels.of(None, 4000), np.array([800]))
        assert len(set(rows.tolist())) == 800
        assert abs(copies[rows].mean() - share) < 5 * np.sqrt(share * (1 - share) / 800)

    def test_are_in_the_order_of_content(self, rng):
        Z, codes = rng.normal(size=(9000, 3)), rng.integers(0, 2, 9000)
        Z[rng.random(9000) < 0.2] = 1.0
        labels, order = Labels.of(codes, 9000), rng.permutation(9000)
        most = np.array([2000, 5000])
        one = Sample.drawn(Z, labels, most)
        two = Sample.drawn(Z[order], labels.at(order), most)
        np.testing.assert_array_equal(one.cells, two.cells)
        np.testing.assert_array_equal(one.labels.codes, two.labels.codes)
        assert one.n.tolist() == np.minimum(labels.n, most).tolist()


class TestDraws:
    @given(
        st.integers(0, 10_000), st.sampled_from([0.0, 0.3, 1.0]), st.integers(1, 6), st.booleans()
    )
    def test_of_parts_are_those_of_the_whole(self, seed, copies, parts, far):
        rng = np.random.default_rng(seed)
        Z, codes = rng.normal(size=(300, 2)), rng.integers(0, 3, 300).astype(np.int32)
        Z[rng.random(300) < copies] = [1.0, 2.0]
        if far:  # all norms are equal after rounding
            Z += 1e12
        labels, most = Labels.of(codes, 300), np.array([20, 300, 0])
        cuts = np.sort(rng.integers(0, 300, parts - 1)).tolist()
        edges = [0, *cuts, 300]
        draws = [
            Draw.of(Z[lo:hi], codes[lo:hi], most) for lo, hi in itertools.pairwise(edges) if hi > lo
        ]
        while len(draws) > 1:  # joined in a random order
            at = int(rng.integers(0, len(draws) - 1))
            draws[at : at + 2] = [Draw.joined(draws[at : at + 2], most)]
        taken = []
        result = draws[0].sample(labels, most, lambda rows: taken.append(rows) or Z[rows])
        expected = Sample.drawn(Z, labels, most)
        np.testing.assert_array_equal(result.cells, expected.cells)
        np.testing.assert_array_equal(result.labels.codes, expected.labels.codes)
        assert copies or far or not taken  # then one pass is enough
        assert draws[0].keys.nbytes == 8 * 300
        assert draws[0].rows.size <= 20 + (codes == 1).sum()


def same(a, b):
    """Equal up to rounding: the nearest population is found in single precision."""
    np.testing.assert_array_equal(a.anchors, b.anchors)
    np.testing.assert_array_equal(a.n, b.n)
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(a.m2, b.m2, rtol=1e-9, atol=1e-8)


class TestOrderOfRows:
    """Populations do not depend on the order of the cells of a batch; one batch here is sampled."""

    @pytest.fixture(params=["plain", "copies", "whole numbers"])
    def data(self, request, rng):
        codes = np.repeat([0, 1, 2], [4500, 400, 30])
        Z = 3.0 * rng.normal(size=(9, 5))[rng.integers(0, 9, codes.size)] + rng.normal(
            size=(codes.size, 5)
        )
        if request.param == "copies":
            Z[rng.random(codes.size) < 0.4] = 0.5
        if request.param == "whole numbers":
            Z = np.round(np.abs(Z))
        order = rng.permutation(codes.size)
        return Z, codes, order

    def described(self, Z, codes):
        return RULE.describe(in_memory(Z, codes))

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_in_memory(self, data, dtype):
        Z, codes, order = data
        Z = Z.astype(dtype)
        plain = self.described(Z, codes)
        same(self.described(Z[order], codes[order]), plain)
        same(self.described(sp.csr_matrix(Z[order]), codes[order]), plain)

    @pytest.mark.parametrize("chunk", [5000, 700])
    def test_in_a_dask_array(self, data, chunk):
        Z, codes, order = data
        lazy = da.from_array(Z[order], chunks=(chunk, 5))
        with dask.config.set(scheduler="synchronous"):
            same(self.described(lazy, codes[order]), self.described(Z, codes))

    @pytest.mark.parametrize("chunk", [1 << 25, 30_000])
    def test_in_a_file(self, data, tmp_path, monkeypatch, chunk):
        monkeypatch.setattr(stream, "CHUNK_BYTES", chunk)
        Z, codes, order = data
        obs = pd.DataFrame({"batch": pd.Categorical(codes[order].astype(str))})
        obs.index = obs.index.astype(str)
        adata = ad.AnnData(obs=obs, obsm={"X_pca": Z[order]})
        adata.write_h5ad(tmp_path / "cells.h5ad")
        with stream.open_job(tmp_path / "cells.h5ad", "batch", "X_pca", None, None, None) as job:
            found = RULE.describe(LocalCells(job, silent))
        same(found, self.described(Z, codes))

    def test_refined_cells_follow(self, data):
        from scbatchprox import BatchProx

        Z, codes, order = data
        plain = BatchProx(target="population").fit_transform(Z, batch=codes)
        other = BatchProx(target="population").fit_transform(Z[order], batch=codes[order])
        np.testing.assert_allclose(other, plain[order], rtol=0, atol=1e-5)

    def test_another_seed_draws_others(self, data):
        Z, codes, _ = data
        cells = in_memory(Z, codes)
        most = looked_at(cells.labels.n)
        assert most.tolist() == [3000, 400, 30]
        one, again, two = (cells.sample(most, seed).of_batch(0) for seed in (0, 0, 1))
        np.testing.assert_array_equal(one, again)
        assert (one != two).any()


class TestPasses:
    """A file is read once for a sample, and not again if the sample was drawn in an earlier pass."""

    def read(self, job, monkeypatch):
        passes = []
        chunks = LocalCells.chunks

        def counted(self):
            passes.append(1)
            return chunks(self)

        monkeypatch.setattr(LocalCells, "chunks", counted)
        return passes

    def test_are_few(self, rng, tmp_path, monkeypatch):
        Z = rng.normal(size=(5000, 4)).astype(np.float32)
        obs = pd.DataFrame({"batch": pd.Categorical(["a", "b"] * 2500)})
        obs.index = obs.index.astype(str)
        ad.AnnData(obs=obs, obsm={"X_pca": Z}).write_h5ad(tmp_path / "c.h5ad")
        with stream.open_job(tmp_path / "c.h5ad", "batch", "X_pca", None, None, None) as job:
            passes = self.read(job, monkeypatch)
            most = np.array([100, 2500])
            here = LocalCells(job, silent, most)
            one = here.sample(most)
            assert len(passes) == 1
            assert here.sample(most) is one
            here.moments()
            assert len(passes) == 2
            watching = LocalCells(job, silent, most)
            watching.moments()
            np.testing.assert_array_equal(watching.sample(most).cells, one.cells)
            assert len(passes) == 3
            expected = Sample.drawn(Z, job.labels, most)
            np.testing.assert_array_equal(one.cells, expected.cells)

    def test_cells_that_are_not_finite(self, rng, tmp_path):
        Z = rng.normal(size=(500, 4))
        Z[333, 2] = np.nan
        obs = pd.DataFrame({"batch": pd.Categorical(["a", "b"] * 250)})
        obs.index = obs.index.astype(str)
        ad.AnnData(obs=obs, obsm={"X_pca": Z}).write_h5ad(tmp_path / "c.h5ad")
        with (
            stream.open_job(tmp_path / "c.h5ad", "batch", "X_pca", None, None, None) as job,
            pytest.raises(ValueError, match="row 333, column 2"),
        ):
            LocalCells(job, silent).sample(np.array([3, 3]))


def some_cells(n=5000, batches=3, seed=0):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, 6)).astype(np.float32)
    return Z, rng.integers(0, batches, n)


def rows_of(sample):
    """The cells of each batch, as a sorted table."""
    Z = np.asarray(sample.cells.toarray() if sp.issparse(sample.cells) else sample.cells)
    table = np.column_stack([sample.labels.codes, Z])
    return table[np.lexsort(table.T[::-1])]


class TestThinSamples:
    """They look at the first coordinates only, where that is enough."""

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_draws_as_many_as_wanted_of_each_batch(self, dtype):
        Z, code = some_cells()
        sample = thin_sample(Z.astype(dtype), Labels.of(code, len(Z)), np.array([100, 7, 5000]))
        assert sample.n.tolist() == [100, 7, (code == 2).sum()]
        assert len(np.unique(sample.rows)) == sample.rows.size
        assert (code[sample.rows] == sample.labels.codes).all()

    def test_does_not_depend_on_the_order_of_cells(self):
        Z, code = some_cells()
        most = np.array([100, 100, 100])
        order = np.random.default_rng(1).permutation(len(Z))
        here = thin_sample(Z, Labels.of(code, len(Z)), most)
        there = thin_sample(Z[order], Labels.of(code[order], len(Z)), most)
        np.testing.assert_array_equal(rows_of(here), rows_of(there))
        other = thin_sample(Z, Labels.of(code, len(Z)), most, seed=1)
        assert not np.array_equal(rows_of(here), rows_of(other))

    def test_is_unbiased(self):
        """The sample has the mean of all cells, also in the hashed coordinates."""
        Z, code = some_cells(200_000)
        sample = thin_sample(Z, Labels.of(code, len(Z)), np.full(3, 4000))
        assert np.abs(sample.cells.mean(0)).max() < 4 / np.sqrt(12_000)

    @pytest.mark.parametrize("first", [0.0, "copies", "whole"])
    def test_cells_that_share_their_first_coordinates_are_drawn_like_others(self, first):
        Z, code = some_cells()
        if first == "copies":
            Z[:, :2] = np.repeat(Z[:50, :2], 100, axis=0)
        else:
            Z[:, :2] = 0.0 if first == 0.0 else Z[:, :2].round()
        sample = thin_sample(Z, Labels.of(code, len(Z)), np.full(3, 200))
        assert sample.n.tolist() == [200] * 3
        assert np.abs(sample.cells[:, 2:].mean(0)).max() < 5 / np.sqrt(600)
        kept = np.isin(Z[:, 0], sample.cells[:, 0]).mean()
        assert kept > 0.9  # almost every value is drawn

    def test_sparse_cells_and_small_batches(self):
        Z, code = some_cells(90)
        labels = Labels.of(code, 90)
        assert thin_sample(Z, labels, np.full(3, 1000)).rows.size == 90
        assert thin_sample(sp.csr_array(Z), labels, np.full(3, 10)).n.tolist() == [10] * 3
