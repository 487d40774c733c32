"""What refined cells must not depend on."""

import numpy as np
import pytest
import scipy.sparse as sp

import population_oracles as oracles
from population_models import BOTH, refined
from scbatchprox import PopulationTarget


class TestSymmetries:
    @pytest.fixture
    def data(self):
        rng = np.random.default_rng(5)
        shifts = [oracles.direction(rng, 8, 3.0) for _ in range(3)]
        return oracles.typed_cells(rng, [[0, 1, 2], [1, 2, 3], [0, 2, 3]], shifts, n=70, d=8)[:2]

    @BOTH
    @pytest.mark.parametrize("offset", [10.0, 1e3, -1e5])
    def test_where_the_origin_is(self, data, target, offset):
        """Without the identity term, which depends on the origin if there is one row per batch."""
        Z, batch = data
        plain = refined(Z, batch, target=target, lambda_id=0)
        far = refined(Z + offset, batch, target=target, lambda_id=0)
        np.testing.assert_allclose(far - offset, plain, rtol=0, atol=1e-6 * max(10.0, abs(offset)))

    @pytest.mark.parametrize("offset", [10.0, 1e3])
    def test_with_the_identity_term_too(self, data, offset):
        Z, batch = data
        np.testing.assert_allclose(
            refined(Z + offset, batch) - offset, refined(Z, batch), rtol=0, atol=1e-6 * offset
        )

    @BOTH
    def test_names_in_the_same_order(self, data, target):
        Z, batch = data
        names = np.array(["a", "longer", "z"])[batch]
        np.testing.assert_array_equal(
            refined(Z, names, target=target), refined(Z, batch, target=target)
        )

    @BOTH
    def test_names_in_another_order(self, data, target):
        """Equal up to rounding errors that grow along the rounds."""
        Z, batch = data
        plain = refined(Z, batch, target=target)
        for names in (["c", "a", "b"], ["b", "c", "a"]):
            other = refined(Z, np.array(names)[batch], target=target)
            assert np.sqrt(((other - plain) ** 2).mean() / ((plain - Z) ** 2).mean()) < 0.02

    @BOTH
    def test_order_of_cells(self, data, rng, target):
        Z, batch = data
        plain = refined(Z, batch, target=target)
        order = rng.permutation(len(Z))
        other = np.empty_like(Z)
        other[order] = refined(Z[order], batch[order], target=target)
        np.testing.assert_allclose(other, plain, rtol=0, atol=1e-6)

    @BOTH
    def test_threads_and_repetition(self, data, target, threads):
        Z, batch = data
        results = []
        for n in (1, 2, 3, 3):
            threads(n)
            results.append(refined(Z, batch, target=target))
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])

    def test_seeds_differ_and_agree(self, data):
        Z, batch = data
        one, two = (refined(Z, batch, target=PopulationTarget(seed=s)) for s in (0, 1))
        assert (one != two).any()
        # Populations have few cells, so the remaining distance between batches depends on the seed.
        assert np.sqrt(((one - two) ** 2).mean() / ((one - Z) ** 2).mean()) < 0.45

    @pytest.mark.parametrize("dtype", [np.float32, np.int64])
    def test_dtypes(self, data, dtype):
        Z, batch = data
        Z = np.round(100 * Z)
        expected = refined(Z, batch)
        result = refined(Z.astype(dtype), batch)
        assert result.dtype == (np.float32 if dtype is np.float32 else np.float64)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-2)

    def test_sparse(self, data):
        Z, batch = data
        Z = np.where(np.abs(Z) > 1, Z, 0.0)
        np.testing.assert_allclose(
            refined(sp.csr_matrix(Z), batch), refined(Z, batch), rtol=1e-10, atol=1e-10
        )
