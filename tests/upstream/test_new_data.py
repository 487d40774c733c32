"""New data for a PCA: missing genes are filled and reported, bad counts are refused."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scbatchprox.upstream import PCAUpstream
from upstream_data import (
    K,
    dense,
    logged,
    more_genes,
    renamed,
    with_counts,
    with_value,
    without_counts,
)


class TestMissingGenes:
    def test_numbers_by_hand(self, first, new, pca):
        here = np.ones(80, bool)
        here[[3, 10, 11, 40, 79]] = False
        found = pca.embed(new[:, here])
        X, reference = dense(new), dense(first)
        share = (reference / reference.sum(1, keepdims=True)).mean(0)
        totals = X[:, here].sum(1) / share[here].sum()
        filled = np.where(here, logged(X, totals), logged(reference).mean(0))
        expected = (filled - pca.mean) @ pca.loadings
        np.testing.assert_allclose(found.Z, expected, atol=2e-5)

        assert found.report.missing == ("gene3", "gene10", "gene11", "gene40", "gene79")
        assert found.report.n_genes == 80
        # The variance of the genes in the space of the components, by its definition.
        within = np.diag(pca.loadings @ np.diag(pca.variance) @ pca.loadings.T)
        np.testing.assert_allclose(found.report.weight_lost, within[~here].sum() / within.sum())
        np.testing.assert_allclose(found.report.counts_lost, share[~here].sum(), rtol=1e-12)
        words = str(found.report)
        assert "75 of the reference's 80 genes were found; the other 5" in words
        assert "filled with their means in the reference: 'gene3', 'gene10'" in words

    def test_report_if_nothing_is_missing(self, new, pca):
        report = pca.embed(new).report
        assert str(report) == "80 of the reference's 80 genes were found."
        assert (report.weight_lost, report.counts_lost) == (0.0, 0.0)

    def test_totals_are_corrected(self, first, new):
        """The data lacks the genes with most counts; the PCA uses none of them."""
        adata, later = first.copy(), new.copy()
        frequent = np.argsort(-dense(adata).sum(0))[:15]
        adata.var["highly_variable"] = ~np.isin(np.arange(80), frequent)
        pca = PCAUpstream.fit(adata, n_components=K, genes="flagged")
        expected = pca.embed(later).Z
        found = pca.embed(later[:, adata.var["highly_variable"]])
        assert found.report.missing == ()
        assert found.report.counts_lost > 0.3
        assert "totals of cells were corrected for" in str(found.report)
        X = dense(later)[:, pca.used]
        plain = (logged(X) - pca.mean) @ pca.loadings  # totals over the genes of the PCA only
        spread = expected.std(0).mean()
        error = np.abs(found.Z - expected).mean() / spread
        assert error < 0.5 * np.abs(plain - expected).mean() / spread
        assert error < 0.2

    @pytest.mark.parametrize(
        ("genes", "sentence"),
        [
            (slice(0, 30), r"at least 50% of the 80 genes .* found 30 \(38%\) with \d+% of their weight"),
            (slice(0, 0), "found 0 .* among 1 genes .such as 'ENSG0'."),
        ],
    )  # fmt: skip
    def test_too_few_shared(self, new, pca, genes, sentence):
        few = new[:, genes].copy()
        if few.n_vars == 0:
            few = ad.AnnData(np.ones((3, 1)), var=pd.DataFrame(index=["ENSG0"]))
        with pytest.raises(ValueError, match=sentence):
            pca.embed(few)

    def test_threshold_is_for_weight_too(self, new, pca):
        """Half of the genes, those with the lowest weights."""
        light = np.argsort(pca.weight)[:45]
        with pytest.raises(ValueError, match=r"found 45 \(56%\) with [1-4]?\d% of their weight"):
            pca.embed(new[:, light])
        assert pca.embed(new[:, light], min_shared=0.05).report.weight_lost > 0.5
        for wrong in (0, 1.5, -1, np.nan):
            with pytest.raises(ValueError, match="Expected min_shared"):
                pca.embed(new, min_shared=wrong)


class TestBadInput:
    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (lambda a: with_value(a, -1), "found -1 in row 2, gene 'gene5'"),
            (lambda a: with_value(a, np.nan), "found nan in row 2, gene 'gene5'"),
            (lambda a: with_value(a, np.inf), "found inf in row 2"),
            (lambda a: with_value(a, 0.5), r"found 0.5 in row 2, gene 'gene5'; .*fractional=True"),
            (lambda a: with_counts(a, logged(dense(a))), "Expected counts .whole numbers from 0 on."),
            (lambda a: without_counts(a, [4, 9]), "found none .* in 2 cells, the first in row 4; filter"),
            (lambda a: renamed(a, {"gene7": "gene6"}), "unique gene names, found 'gene6' more than once"),
            (lambda a: a[:0], "Expected cells and genes, found counts of shape"),
            (lambda a: ad.AnnData(obs=a.obs, var=a.var), "Expected counts in X, found none"),
        ],
    )  # fmt: skip
    def test_embed_and_fit_raise_the_same_error(self, new, pca, change, sentence):
        adata = change(new.copy())
        with pytest.raises(ValueError, match=sentence):
            pca.embed(adata)
        with pytest.raises(ValueError, match=sentence):
            PCAUpstream.fit(adata, n_components=2, genes="all")

    def test_rows_are_counted_over_blocks(self, new, pca, rows_at_a_time):
        rows_at_a_time(2)
        with pytest.raises(ValueError, match="in row 2, gene 'gene5'"):
            pca.embed(with_value(new.copy(), -3))
        with pytest.raises(ValueError, match="in 1 cells, the first in row 9"):
            pca.embed(without_counts(new.copy(), [9]))

    def test_fractional(self, new, pca):
        adata = with_counts(new, new.X * 0.25)
        # A cell's depth does not matter, so a quarter of all counts is the same cell.
        found = pca.embed(adata, fractional=True).Z
        np.testing.assert_allclose(found, pca.embed(new).Z, atol=1e-5)
        with pytest.raises(ValueError, match=r"Expected counts \(numbers from 0 on\), found -"):
            pca.embed(with_counts(new, -adata.X), fractional=True)

    def test_counts_on_other_genes_only_are_refused(self, new, pca):
        extra = ad.concat([without_counts(new, [0]), more_genes(new)], axis=1, merge="same")
        with pytest.raises(ValueError, match="none on the genes of the reference in 1 cells"):
            pca.embed(extra)

    def test_duplicates_among_ignored_genes_do_not_matter(self, new, pca):
        extra = ad.concat([new, more_genes(new)], axis=1, merge="same")
        extra.var_names = [*extra.var_names[:-3], "x", "x", "y"]
        np.testing.assert_array_equal(pca.embed(extra).Z, pca.embed(new).Z)

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"n_components": 0}, "n_components between 1 and 79"),
            ({"n_components": 80}, "n_components between 1 and 79"),
            ({"genes": "some"}, "genes to be one of 'scanpy', 'flagged', 'all', found 'some'"),
            ({"genes": "flagged"}, "column 'highly_variable' in var .* found none"),
            ({"n_hvgs": 0}, "n_hvgs to be a whole number"),
            ({"n_hvgs": 2.5}, "n_hvgs to be a whole number"),
            ({"layer": "counts"}, "found no 'counts'; available: none"),
        ],
    )
    def test_fit_options(self, first, options, sentence):
        with pytest.raises((ValueError, KeyError), match=sentence):
            PCAUpstream.fit(first, **{"n_components": 5} | options)

    def test_types(self, pca):
        with pytest.raises(TypeError, match="Expected an AnnData with counts, found ndarray"):
            pca.embed(np.ones((3, 3)))
