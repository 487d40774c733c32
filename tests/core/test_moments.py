import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from data import cells, make_cells
from scbatchprox import Moments, get_num_threads, set_num_threads


def by_definition(Z, codes):
    groups = [np.asarray(Z, float)[codes == b] for b in range(codes.max() + 1)]
    mean = np.array([g.mean(0) for g in groups])
    return (
        np.array([len(g) for g in groups]),
        mean,
        np.array([((g - m) ** 2).sum(0) for g, m in zip(groups, mean, strict=True)]),
    )


def assert_moments(moments, n, mean, m2, rtol=1e-10):
    np.testing.assert_array_equal(moments.n, n)
    spread = np.sqrt(m2 / n[:, None]) + 1e-300
    np.testing.assert_allclose((moments.mean - mean) / (spread + abs(mean)), 0, atol=rtol)
    np.testing.assert_allclose(moments.m2, m2, rtol=rtol, atol=1e-12)


@given(cells(min_size=1))
def test_moments_are_those_of_the_definition(c):
    assert_moments(Moments.of(c.Z, c.codes), *by_definition(c.Z, c.codes))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "g", ">f4", "i1", "i4", "i8", "u2", "?"])
def test_every_numeric_type(rng, dtype):
    codes = rng.integers(0, 3, 500)
    Z = (rng.normal(3, 2, (500, 4)) > 2) if dtype == "?" else rng.normal(30, 9, (500, 4))
    Z = Z.astype(dtype)
    assert_moments(Moments.of(Z, codes), *by_definition(Z.astype(float), codes))


@pytest.mark.parametrize("layout", ["fortran", "strided", "reversed", "readonly", "frame", "list"])
def test_every_layout_gives_the_same_moments(rng, layout):
    Z = rng.normal(size=(400, 6))
    codes = rng.integers(0, 3, 400)
    wide = np.zeros((800, 12))
    wide[::2, ::2] = Z
    other = {
        "fortran": np.asfortranarray(Z),
        "strided": wide[::2, ::2],
        "reversed": Z[::-1].copy()[::-1],
        "readonly": Z.copy(),
        "frame": pd.DataFrame(Z),
        "list": Z.tolist(),
    }[layout]
    if layout == "readonly":
        other.flags.writeable = False
    a, b = Moments.of(Z, codes), Moments.of(other, codes)
    np.testing.assert_array_equal(a.mean, b.mean)
    np.testing.assert_array_equal(a.m2, b.m2)


@pytest.mark.parametrize("kind", ["csr_matrix", "csc_matrix", "coo_matrix", "csr_array"])
def test_sparse_is_dense(rng, kind):
    dense = rng.poisson(0.3, (700, 9)).astype(np.float32)
    codes = rng.integers(0, 4, 700)
    a, b = Moments.of(dense, codes), Moments.of(getattr(sp, kind)(dense), codes)
    np.testing.assert_allclose(a.mean, b.mean, rtol=1e-13)
    np.testing.assert_allclose(a.m2, b.m2, rtol=1e-12)


def test_no_cancellation_far_from_the_origin(rng):
    Z = 1e8 + rng.normal(size=(20_000, 2))
    codes = rng.integers(0, 3, 20_000)
    n, _, _ = by_definition(Z, codes)
    # Exact arithmetic on the stored values: the offset is subtracted before squaring.
    near = Moments.of(Z - 1e8, codes)
    far = Moments.of(Z, codes)
    np.testing.assert_allclose(far.m2, near.m2, rtol=1e-10)
    np.testing.assert_allclose(far.var, 1.0, rtol=0.1)
    assert far.n.tolist() == n.tolist()


def test_constant_coordinates_have_exactly_no_spread(rng):
    Z = np.full((1000, 3), 0.1)
    moments = Moments.of(Z, rng.integers(0, 5, 1000))
    assert (moments.m2 == 0).all()
    assert (moments.mean == 0.1).all()


@given(cells(min_size=1), st.integers(0, 2**32))
def test_chunked_is_whole(c, seed):
    whole = Moments.of(c.Z, c.codes)
    order = np.random.default_rng(seed).permutation(len(c.Z))
    parts = [
        Moments.of(c.Z[rows], c.codes[rows]) for rows in np.array_split(order, min(5, len(order)))
    ]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    assert merged.batches.tolist() == whole.batches.tolist()
    assert_moments(merged, whole.n, whole.mean, whole.m2, rtol=1e-9)


@given(cells(min_size=1))
def test_pooled_are_the_moments_of_all_cells(c):
    pooled = Moments.of(c.Z, c.codes).pooled()
    np.testing.assert_allclose(pooled.mean, c.Z.mean(0), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(pooled.std, c.Z.std(0), rtol=1e-9, atol=1e-12)
    assert (pooled.n_cells, pooled.n_batches) == (len(c.Z), c.B)


@given(cells(min_size=1))
def test_drop_equals_moments_of_the_other_cells(c):
    moments = Moments.of(c.Z, c.codes)
    if c.B == 1:
        return
    keep = c.codes != 0
    dropped, never = moments.drop(0), Moments.of(c.Z[keep], c.codes[keep])
    assert dropped.batches.tolist() == never.batches.tolist()
    assert_moments(dropped, never.n, never.mean, never.m2)


def test_merge_with_nothing_changes_no_bit(rng):
    c = make_cells(rng, [5, 9], 3)
    a = Moments.of(c.Z, np.where(c.codes == 0, "a", "b"))
    b = a.drop("a").merge(Moments.of(c.Z, ["c"] * 14))
    assert b.batches.tolist() == ["b", "c"]
    np.testing.assert_array_equal(b.mean[0], a.mean[1])
    np.testing.assert_array_equal(b.m2[0], a.m2[1])


@pytest.mark.parametrize("shuffled", [True, False])
def test_threads_change_no_bit(rng, shuffled):
    codes = rng.integers(0, 7, 100_003)
    codes = codes if shuffled else np.sort(codes)
    Z = rng.normal(size=(100_003, 5)).astype(np.float32)
    results = []
    try:
        for threads in (1, 2, 3, 8):
            set_num_threads(threads)
            assert get_num_threads() == threads
            results.append(Moments.of(Z, codes))
    finally:
        set_num_threads(None)
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].mean, other.mean)
        np.testing.assert_array_equal(results[0].m2, other.m2)


def test_merge_rejects_labels_of_another_type(rng):
    Z = rng.normal(size=(4, 3))
    with pytest.raises(TypeError, match="found int64 .9, 10. and float64 .0.5."):
        Moments.of(Z, [9, 10, 9, 10]).merge(Moments.of(Z, [0.5] * 4))


def test_very_many_batches(rng):
    """Memory must not grow with the square of the number of batches, as for barcodes as labels."""
    codes = rng.permutation(np.repeat(np.arange(5000), 2))
    Z = rng.normal(size=(10_000, 3))
    moments = Moments.of(Z, codes)
    assert_moments(moments, *by_definition(Z, codes))
    np.testing.assert_allclose(moments.pooled().std, Z.std(0))


def test_merge_rejects_another_number_of_coordinates(rng):
    with pytest.raises(ValueError, match="Expected moments of 3 coordinates, found 2"):
        Moments.of(rng.normal(size=(4, 3))).merge(Moments.of(rng.normal(size=(4, 2))))


def test_drop_lists_the_available_batches(rng):
    moments = Moments.of(rng.normal(size=(4, 3)), list("aabb"))
    with pytest.raises(KeyError, match="found 'c'; available: 'a', 'b'"):
        moments.drop("c")
