import numpy as np
import pytest
import scipy.sparse as sp

from scbatchprox.core.labels import Labels
from scbatchprox.core.sampling import thin_sample


def cells(n=5000, batches=3, seed=0):
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(n, 6)).astype(np.float32)
    return Z, rng.integers(0, batches, n)


def rows_of(sample):
    """The cells of each batch, as a sorted table."""
    Z = np.asarray(sample.cells.toarray() if sp.issparse(sample.cells) else sample.cells)
    table = np.column_stack([sample.labels.codes, Z])
    return table[np.lexsort(table.T[::-1])]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_draws_as_many_as_wanted_of_each_batch(dtype):
    Z, code = cells()
    sample = thin_sample(Z.astype(dtype), Labels.of(code, len(Z)), np.array([100, 7, 5000]))
    assert sample.n.tolist() == [100, 7, (code == 2).sum()]
    assert len(np.unique(sample.rows)) == sample.rows.size
    assert (code[sample.rows] == sample.labels.codes).all()


def test_does_not_depend_on_the_order_of_cells():
    Z, code = cells()
    most = np.array([100, 100, 100])
    order = np.random.default_rng(1).permutation(len(Z))
    here = thin_sample(Z, Labels.of(code, len(Z)), most)
    there = thin_sample(Z[order], Labels.of(code[order], len(Z)), most)
    np.testing.assert_array_equal(rows_of(here), rows_of(there))
    other = thin_sample(Z, Labels.of(code, len(Z)), most, seed=1)
    assert not np.array_equal(rows_of(here), rows_of(other))


def test_is_unbiased():
    """The sample has the mean of all cells, also in the hashed coordinates."""
    Z, code = cells(200_000)
    sample = thin_sample(Z, Labels.of(code, len(Z)), np.full(3, 4000))
    assert np.abs(sample.cells.mean(0)).max() < 4 / np.sqrt(12_000)


@pytest.mark.parametrize("first", [0.0, "copies", "whole"])
def test_cells_that_share_their_first_coordinates_are_drawn_like_others(first):
    Z, code = cells()
    if first == "copies":
        Z[:, :2] = np.repeat(Z[:50, :2], 100, axis=0)
    else:
        Z[:, :2] = 0.0 if first == 0.0 else Z[:, :2].round()
    sample = thin_sample(Z, Labels.of(code, len(Z)), np.full(3, 200))
    assert sample.n.tolist() == [200] * 3
    assert np.abs(sample.cells[:, 2:].mean(0)).max() < 5 / np.sqrt(600)
    kept = np.isin(Z[:, 0], sample.cells[:, 0]).mean()
    assert kept > 0.9  # almost every value is drawn


def test_sparse_cells_and_small_batches():
    Z, code = cells(90)
    labels = Labels.of(code, 90)
    assert thin_sample(Z, labels, np.full(3, 1000)).rows.size == 90
    assert thin_sample(sp.csr_array(Z), labels, np.full(3, 10)).n.tolist() == [10] * 3
