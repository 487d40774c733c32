"""Sums over sites give the fit to the cells of all sites."""

from functools import partial

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data import labels_of, make_cells
from in_step import in_process
from scbatchprox import BatchProx, Moments
from scbatchprox.errors import BadValue
from scbatchprox.federated import WIDE, Addends, Totals
from scbatchprox.federated.fit import _of_site, pooled_moments, refine

pytestmark = pytest.mark.filterwarnings("ignore:Expected batches of cells")


@st.composite
def studies(draw):
    """Batches of unequal sizes, spread over 3 to 30 sites in any way; every site has one or more."""
    n_sites = draw(st.integers(3, 30))
    more = draw(st.lists(st.integers(0, n_sites - 1), max_size=15))
    site = np.sort(np.array([*range(n_sites), *more]))
    sizes = draw(st.lists(st.integers(2, 60), min_size=site.size, max_size=site.size))
    return site, sizes, draw(st.integers(1, 6)), draw(st.integers(0, 2**32 - 1))


def cells_of(study, offset):
    """Cells of a study; names of batches repeat at every site: a, b, ..."""
    site, sizes, d, seed = study
    c = make_cells(np.random.default_rng(seed), sizes, d, offset)
    names = np.array(
        [chr(97 + b - int(np.flatnonzero(site == at)[0])) for b, at in enumerate(site)]
    )
    return c, np.array([f"s{at:02}" for at in site]), names


def own_of(c, site_of_batch, names, site):
    """The moments of a site, from its own cells and its own names alone."""
    mine = site_of_batch[c.codes] == site
    labels = _of_site(labels_of(names[c.codes][mine]), site)
    return Moments.of(c.Z[mine], labels.batches[labels.codes])


@given(studies(), st.sampled_from([0.0, 300.0, 1e8, 1e12]), st.sampled_from([3, None]))
@settings(max_examples=25)
@example((np.arange(30), [2] * 30, 2, 1), 1e8, None)
@example((np.repeat(np.arange(3), 10), [2, 500] * 15, 3, 2), 1e8, 3)
@example((np.arange(3), [2, 1000, 5], 4, 3), 1e12, 3)
def test_any_split_over_sites_is_the_fit_to_all_cells(study, offset, rounds):
    c, site_of_batch, names = cells_of(study, offset)
    sites = np.unique(site_of_batch)
    owns = [own_of(c, site_of_batch, names, site) for site in sites.tolist()]
    fitted = in_process([
        partial(refine, own, BatchProx(rounds=rounds, target="moment")) for own in owns
    ])  # fmt: skip

    whole = np.char.add(np.char.add(site_of_batch, "/"), names)[c.codes]
    central = BatchProx(rounds=rounds, target="moment").fit(c.Z, batch=whole)
    expected = central.transform(c.Z, batch=whole)
    spread = c.Z.std(0)
    # Cells at 1e12 are themselves only known to 1e-4.
    tolerance = 1e-9 if offset < 1e9 else 4 * offset * 2.0**-52 / spread.min()
    seen = []
    for site, model in zip(sites, fitted, strict=True):
        mine = site_of_batch[c.codes] == site
        refined = model.transform(c.Z[mine], batch=whole[mine])
        assert (np.abs(refined - expected[mine]) / spread).max() < tolerance
        seen += model.batches_.tolist()
        assert model.fit_.pooled.n_cells == len(c.Z)
        assert model.fit_.pooled.n_batches == len(site_of_batch)
    assert sorted(seen) == central.batches_.tolist()


@given(studies(), st.sampled_from([0.0, 1e8]))
@settings(max_examples=20)
def test_all_sites_have_the_moments_of_all_cells(study, offset):
    c, site_of_batch, names = cells_of(study, offset)
    owns = [own_of(c, site_of_batch, names, site) for site in np.unique(site_of_batch).tolist()]
    pooled = in_process([partial(pooled_moments, own) for own in owns])
    exact = c.Z.astype(np.longdouble)
    for found in pooled:
        spread = c.Z.std(0)
        assert (np.abs(found.mean - exact.mean(0)) / spread).max() < 1e-9 + abs(offset) * 2.0**-51
        np.testing.assert_allclose(found.m2, ((exact - exact.mean(0)) ** 2).sum(0), rtol=3e-8)
        np.testing.assert_array_equal(found.mean, pooled[0].mean)
        np.testing.assert_array_equal(found.m2, pooled[0].m2)


def test_one_name_at_two_sites_is_two_batches(rng):
    labels = labels_of(np.array([10, 9, 9, 100]))
    north, south = _of_site(labels, "north"), _of_site(labels, "south")
    assert not set(north.batches.tolist()) & set(south.batches.tolist())
    # Numbers are not sorted as text is: every cell keeps its own name.
    assert north.batches[north.codes].tolist() == ["north/10", "north/9", "north/9", "north/100"]
    assert north.batches.tolist() == sorted(north.batches.tolist())


def test_names_cannot_be_made_to_agree():
    """No site's name has a slash, so the first slash ends it."""
    a = _of_site(labels_of(np.array(["b/c"])), "a")
    assert a.batches.tolist() == ["a/b/c"]
    assert a.batches[0].split("/", 1) == ["a", "b/c"]


@pytest.mark.parametrize(
    "values",
    [
        [0, 1, 0, 0],  # no cells
        [-5, 1, 0, 0],
        [10, 0, 0, 0],  # no batches
        [10, 11, 0, 0],  # more batches than cells
    ],
)
def test_sums_that_cannot_be(values):
    own = Moments.of(np.zeros((10, 1)), np.zeros(10))

    def add_up(addends):
        assert isinstance(addends, Addends)
        return Totals(WIDE, WIDE.encoded(values))

    with pytest.raises(BadValue, match="Expected whole numbers of cells and batches"):
        pooled_moments(own, add_up)


def test_false_sums_are_not_larger_than_own_ones(rng):
    own = Moments.of(rng.normal(size=(50, 2)), np.zeros(50))
    false = Totals(WIDE, WIDE.encoded([49, 1, 0, 0, 1, 1]))
    with pytest.raises(BadValue, match="Expected sums over all cells, including the 50"):
        refine(own, BatchProx(target="moment"), lambda _: false)
