"""Highly variable genes of all sites: equal to those of all cells together, by definition and by scanpy."""

import hashlib
from functools import partial

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp

from counts_of_sites import BATCHES, GENES, counts, simulated, sites
from in_step import in_process
from scbatchprox.errors import BadValue
from scbatchprox.federated.counts import gene_hash, gene_list, genes
from scbatchprox.upstream.counts import Counts
from upstream_data import more_genes, most_variable, with_counts


@pytest.fixture(scope="module")
def cells():
    return simulated()


def chosen(parts, names=GENES, **options):
    """Return the choice of genes of each site."""
    options = {"n_hvgs": 25, **options}
    return in_process([partial(genes, counts(part), names, **options) for part in parts])


def with_few_counts(part):
    """Return the same cells, each with one count of one gene."""
    rows = np.arange(part.n_obs)
    X = sp.csr_matrix((np.ones(rows.size), (rows, rows % len(GENES))), part.shape)
    other = with_counts(part, X)
    other.obs["batch"] = "a"
    return other


@pytest.mark.parametrize("n_sites", [3, 10])
@pytest.mark.parametrize("min_cells", [1, 20, 60])
def test_any_split_gives_the_choice_on_all_cells(cells, n_sites, min_cells):
    found = chosen(sites(cells, n_sites), min_cells=min_cells)
    expected = most_variable(cells, 25, min_cells)
    assert 25 <= len(expected) < 30
    for one in found:
        assert set(one.chosen) == expected
        # in the order of the list
        assert list(one.chosen) == [name for name in GENES if name in expected]
    assert found[0].n_sites == n_sites
    assert found[0].sums.n_cells == cells.n_obs


@pytest.mark.bench
@pytest.mark.parametrize("n_sites", [3, 10])
def test_equals_scanpy(cells, n_sites):
    sc = pytest.importorskip("scanpy")
    oracle = cells.copy()
    oracle.X = oracle.X.astype(np.float64)
    sc.pp.normalize_total(oracle, target_sum=1e4)
    sc.pp.filter_genes(oracle, min_cells=20)
    assert 25 < oracle.n_vars < cells.n_vars  # the filter matters
    sc.pp.log1p(oracle)
    table = sc.pp.highly_variable_genes(oracle, n_top_genes=25, inplace=False)
    found = chosen(sites(cells, n_sites))[0].table
    assert found.index.tolist() == oracle.var_names.tolist()
    for name in ("means", "dispersions", "dispersions_norm"):
        np.testing.assert_allclose(found[name], table[name], rtol=1e-10, atol=1e-10)
    theirs = table["highly_variable"].to_numpy()
    last = table["dispersions_norm"][theirs].min()
    ties = np.abs(table["dispersions_norm"] - last).to_numpy() < 1e-9
    np.testing.assert_array_equal(found["highly_variable"], theirs | ties)


def test_genes_in_few_cells_are_left_out(cells):
    rare = np.asarray((cells.X > 0).sum(0)).ravel() < 20
    assert rare.any()
    found = chosen(sites(cells, 3), n_hvgs=len(GENES))[0]
    assert set(found.chosen) == set(GENES[~rare])
    assert not set(found.table.index) & set(GENES[rare])


def test_batches_are_added(cells):
    parts = sites(cells, 3)
    numbers = [part.obs["batch"].nunique() for part in parts]
    assert chosen(parts)[0].n_batches == sum(numbers)
    # Without labels: one each.
    unlabelled = [partial(genes, Counts.of(part), GENES, n_hvgs=25) for part in parts]
    assert in_process(unlabelled)[0].n_batches == 3


def test_a_site_with_one_batch(cells):
    parts = [cells[cells.obs["batch"] == name].copy() for name in BATCHES]
    found = chosen(parts)
    assert found[0].n_batches == len(BATCHES)
    assert set(found[1].chosen) == most_variable(cells, 25, 20)


def test_order_storage_and_other_genes_of_a_site_do_not_matter(cells):
    parts = sites(cells, 3)
    expected = chosen(parts)[0].table
    parts[0] = parts[0][:, ::-1].copy()
    parts[1].X = parts[1].X.toarray()
    parts[2] = ad.concat([more_genes(parts[2]), parts[2]], axis=1, merge="same")
    found = chosen(parts)[2].table
    np.testing.assert_array_equal(found["highly_variable"], expected["highly_variable"])
    np.testing.assert_allclose(found["dispersions"], expected["dispersions"], rtol=1e-12)


def test_missing_genes_are_an_error_with_their_number(cells):
    parts = sites(cells, 3)
    parts[1] = parts[1][:, 7:].copy()
    with pytest.raises(
        BadValue, match=r"all 90 genes of the list, found 83; 7 are missing: 'gene0'"
    ):
        chosen(parts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda part: part[:0].copy(), "Expected cells and genes"),
        (lambda part: with_counts(part, part.X * 0.5), "whole numbers from 0 on"),
        (lambda part: with_counts(part, part.X * 0), "Expected counts in every cell"),
    ],
)
def test_bad_counts_of_a_site(cells, change, message):
    parts = sites(cells, 3)
    parts[2] = change(parts[2])
    with pytest.raises(BadValue, match=message):
        chosen(parts)


def test_no_gene_in_enough_cells(cells):
    with pytest.raises(BadValue, match="in at least 50 cells, found none"):
        chosen([with_few_counts(part) for part in sites(cells, 3)], min_cells=50)


@pytest.mark.parametrize(
    ("options", "message"), [({"n_hvgs": 0}, "n_hvgs"), ({"min_cells": -1}, "min_cells")]
)
def test_bad_parameters(cells, options, message):
    with pytest.raises(BadValue, match=message):
        chosen(sites(cells, 3), **options)


def test_gene_lists():
    assert gene_list(["b", "a"]).tolist() == ["b", "a"]
    assert gene_hash(gene_list(["b", "a"])) == hashlib.sha256(b"b\na").hexdigest()
    for bad, message in (
        ([], "none"),
        (["a", ""], "empty"),
        (["a", "b", "a"], "'a' more than once"),
    ):
        with pytest.raises(BadValue, match=message):
            gene_list(bad)


def test_a_round_with_a_known_sum_reads_no_counts(cells, monkeypatch):
    parts, known = sites(cells, 3), []

    def watched(part):
        def kind(add_up):
            def remembered(addends):
                known.append(add_up(addends))
                return known[-1]

            return genes(counts(part), GENES, remembered, n_hvgs=25)

        return kind

    found = in_process([watched(part) for part in parts])
    monkeypatch.setattr(Counts, "blocks", None)
    again = genes(counts(parts[0]), GENES, lambda _: known[0], n_hvgs=25)
    assert list(again.chosen) == list(found[0].chosen)
