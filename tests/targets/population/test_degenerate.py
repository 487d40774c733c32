"""Cells that leave a registration little to work with: few, equal, flat, or very large."""

import numpy as np
import pytest

import population_oracles as oracles
from scbatchprox import BatchProx, Decision, PopulationTarget


def check(Z, batch, **options):
    """A fit gives finite cells and numbers, and leaves to the bit what it decided to leave."""
    batch = np.asarray(batch)
    model = BatchProx(**options).fit(Z, batch=batch)
    result, found = model.transform(Z, batch=batch), model.evidence_
    assert np.isfinite(result).all()
    assert np.isfinite(found.removed).all()
    for b, decision in zip(found.batches.tolist(), found.decision.tolist(), strict=True):
        if decision in (Decision.NO_EFFECT, Decision.ALONE):
            np.testing.assert_array_equal(result[batch == b], Z[batch == b])
    return model, result


def typed(seed=0, d=6, size=3.0, n=60, sep=9.0):
    rng = np.random.default_rng(seed)
    types = [list(range(min(4, d)))] * 2
    return oracles.typed_cells(
        rng, types, [np.zeros(d), oracles.direction(rng, d, size)], n, d, sep
    )


@pytest.mark.parametrize("n", [1, 2, 3, 50])
@pytest.mark.parametrize("force", [False, True])
def test_one_batch(rng, n, force):
    Z = rng.normal(size=(n, 3))
    _, result = check(Z, ["a"] * n, target=PopulationTarget(force=force))
    np.testing.assert_array_equal(result, Z)


@pytest.mark.parametrize(
    "sizes", [(1, 1), (1, 2, 3), (2, 2), (3, 3, 3), (1, 300), (3, 200, 1)], ids=str
)
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.filterwarnings("ignore:Expected batches of cells")
def test_batches_of_few_cells(rng, sizes, force):
    batch = np.repeat(np.arange(len(sizes)), sizes)
    Z = rng.normal(size=(len(batch), 4)) + batch[:, None]
    check(Z, batch, target=PopulationTarget(force=force))


@pytest.mark.parametrize("sizes", [(1,), (2,), (3,)], ids=str)
def test_a_few_cells_that_are_added(sizes):
    Z, batch, _ = typed()
    model = BatchProx().fit(Z, batch=batch)
    for n in sizes:
        model.partial_fit(Z[:n] + 1.0, batch=[7] * n)
        assert np.isfinite(model.transform(Z[:n] + 1.0, batch=[7] * n)).all()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("value", [0.0, 7.25, 1e6])
def test_equal_cells(value, force):
    Z, batch = np.full((60, 3), value), np.repeat([0, 1, 2], 20)
    _, result = check(Z, batch, target=PopulationTarget(force=force))
    np.testing.assert_array_equal(result, Z)


@pytest.mark.parametrize("force", [False, True])
def test_equal_cells_at_another_place_in_each_batch(force):
    batch = np.repeat([0, 1, 2], 20)
    check(np.full((60, 3), 1.0) * batch[:, None], batch, target=PopulationTarget(force=force))


def test_duplicates():
    Z, batch, _ = typed()
    check(np.repeat(Z, 3, axis=0), np.repeat(batch, 3))
    few = Z[np.arange(len(Z)) % 4]  # four different cells
    check(few, batch)


@pytest.mark.parametrize("d", [1, 2])
def test_few_coordinates(rng, d):
    kind, batch = rng.integers(0, 3, 300), np.repeat([0, 1, 2], 100)
    Z = 8.0 * kind[:, None] + rng.normal(size=(300, d)) + 0.7 * batch[:, None]
    check(Z, batch)
    check(Z, batch, target=PopulationTarget(force=True))


def test_constant_coordinates_do_not_move():
    Z, batch, _ = typed()
    flat = np.c_[Z[:, :3], np.full(len(Z), 5.0), Z[:, 3:], np.zeros(len(Z))]
    model, result = check(flat, batch)
    np.testing.assert_allclose(result[:, [3, 7]], flat[:, [3, 7]], rtol=0, atol=1e-9)
    assert set(model.evidence_.decision) == {Decision.REMOVED}


@pytest.mark.parametrize("size", [1e150, 1e200, 1e300])
def test_cells_whose_squares_overflow_are_one_sentence(size):
    Z, batch, _ = typed()
    with pytest.raises(ValueError, match=r"^Expected [^.]*\.") as error:
        BatchProx().fit(size * Z, batch=batch)
    assert "large" in str(error.value) or "overflow" in str(error.value)


@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_few_rounds_remove_a_shift_too(rounds):
    Z, batch, kind = typed()
    _, result = check(Z, batch, rounds=rounds)
    gaps = [np.mean([oracles.gap(X, batch, kind, t, 0, 1) for t in range(4)]) for X in (Z, result)]
    assert gaps[1] < 0.5 * gaps[0]


def test_single_precision():
    Z, batch, _ = typed()
    small = Z.astype(np.float32)
    _, result = check(small, batch)
    assert result.dtype == np.float32
    _, expected = check(small.astype(float), batch)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-4)


def test_one_far_cell_does_not_break_the_others():
    Z, batch, _ = typed()
    Z[0] = 1e4
    check(Z, batch)
