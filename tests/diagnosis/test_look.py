"""The look that ``refine`` takes at a small sample: same and different compositions, whatever the effect."""

import re
import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from scbatchprox import MomentTarget, diagnose, refine
from scbatchprox.diagnosis.table import MAX_CELLS, MIN_PER_BATCH, sample_sizes

EVEN, SKEWED = (1, 1, 1, 1, 1), (20, 1, 1, 1, 1)
MOST = MAX_CELLS // MIN_PER_BATCH
TYPES = np.random.default_rng(1).normal(size=(5, 8)) * 8.0


def batches(*shares, n=400, seed=0, effect=1.0):
    rng = np.random.default_rng(seed)
    parts = [
        TYPES[rng.choice(5, n, p=np.array(share) / sum(share))]
        + rng.normal(size=(n, 8))
        + effect * rng.normal(size=8)
        for share in shares
    ]
    return np.concatenate(parts), np.repeat([f"b{i}" for i in range(len(shares))], n)


def warned(Z, batch):
    """The warning, or an empty text."""
    cells = ad.AnnData(obs=pd.DataFrame({"batch": batch}, map(str, range(len(batch)))))
    cells.obsm["X_pca"] = Z
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        refine(cells, "batch", target="moment")
    assert "diagnosis" not in cells.uns["X_pca_batchprox"]
    assert len(found) < 2
    return str(found[0].message) if found else ""


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("effect", [0.0, 1.0, 1.5])
class TestCompositions:
    def test_the_same(self, seed, effect):
        assert not warned(*batches(*[EVEN] * 4, seed=seed, effect=effect))
        # Few populations of a batch of 400 cells have no large type, and their shares are noisy.
        assert not warned(*batches(*[SKEWED] * 3, n=1000, seed=seed, effect=effect))

    def test_another(self, seed, effect):
        said = warned(*batches(EVEN, EVEN, EVEN, SKEWED, seed=seed, effect=effect))
        # The others differ from the rest too, since b3 is in it.
        assert re.match(r"Batches differ in composition \([^)]*b3\)", said)
        assert "try target='population'; diagnose=True" in said

    def test_no_common_type(self, seed, effect):
        said = warned(*batches((1, 1, 0, 0, 0), (0, 0, 1, 1, 1), seed=seed, effect=effect))
        assert said.startswith("Batches differ in composition (b0, b1)")


def test_agrees_with_the_diagnosis():
    for shares in ([EVEN] * 3, [EVEN, EVEN, SKEWED]):
        Z, batch = batches(*shares, n=1000)
        table = diagnose(Z, batch, target="moment")
        differing = table.index[table["composition"] > 0.3].tolist()
        assert all(name in warned(Z, batch) for name in differing)
        assert bool(warned(Z, batch)) == bool(differing)


def test_sparse_cells():
    Z, batch = batches(EVEN, EVEN, SKEWED)
    for cells in (Z, sp.csr_array(Z)):
        assert re.search(r"composition \(.*b2\)", warned(cells, batch))


class TestUnknown:
    def test_one_batch(self):
        Z, batch = batches(EVEN)
        assert not warned(Z, batch)

    def test_batches_that_are_too_small(self):
        assert not warned(*batches(EVEN, (1, 0, 0, 0, 0), (0, 1, 0, 0, 0), n=40))

    def test_a_small_batch_among_others(self):
        Z, batch = batches(EVEN, EVEN, SKEWED)
        keep = (batch != "b2") | (np.arange(len(Z)) % 60 == 0)
        assert not warned(Z[keep], batch[keep])

    @pytest.mark.parametrize("d", [1, 3])
    def test_identical_cells(self, d):
        assert not warned(np.ones((100, d)), np.repeat(["a", "b"], 50))


class TestSample:
    rule = MomentTarget()

    def sizes(self, n, diagnose=None):
        return sample_sizes(self.rule, diagnose, np.asarray(n))

    def test_is_small_for_any_number_of_cells(self):
        assert self.sizes([10**7] * 4).tolist() == [1000] * 4
        assert self.sizes([10**7] * 20).sum() <= MAX_CELLS
        assert self.sizes([30, 10**6] * 10).tolist() == [30, MIN_PER_BATCH] * 10
        assert self.sizes([10**7], diagnose=False) is None

    def test_has_the_largest_of_very_many_batches(self):
        n = np.random.default_rng(0).permutation(np.arange(30, 30 + 5 * MOST))
        most = self.sizes(n)
        assert (most > 0).sum() == MOST
        assert n[most > 0].min() > n[most == 0].max()

    def test_a_large_batch_that_differs_is_found(self):
        Z, batch = batches(*[EVEN] * 29, (1, 1, 0, 0, 0), n=310)
        Z = np.concatenate([Z, Z[batch == "b29"]])  # the largest batch, with every cell twice
        batch = np.concatenate([batch, ["b29"] * 310])
        assert "(b29)" in warned(Z, batch)
