"""A PCA of all sites: equal to that of all cells together, and refused where its sums would reveal cells."""

from contextlib import ExitStack
from functools import partial
from itertools import count

import numpy as np
import pytest

from counts_of_sites import BATCHES, GENES, counts, simulated, sites
from in_step import in_process
from scbatchprox import Moments
from scbatchprox.errors import BadValue
from scbatchprox.federated import counts as module
from scbatchprox.federated.counts import check_published, pca, products_format
from scbatchprox.upstream import PCAUpstream, load
from scbatchprox.upstream.on_disk import open_counts
from upstream_data import K, dense, logged, store, with_counts


@pytest.fixture(scope="module")
def cells():
    return simulated()


def fitted(parts, names=GENES, **options):
    """Return the result of each site."""
    options = {"n_components": K, "n_hvgs": 40, **options}
    return in_process([partial(pca, counts(part), names, **options) for part in parts])


def changed(kind, after):
    """The same site; ``after(number)`` is called when it knows the sum of a round."""

    def watched(add_up):
        rounds = count()

        def then(addends):
            total = add_up(addends)
            after(next(rounds))
            return total

        return kind(then)

    return watched


def central(cells, used):
    """Return the PCA of all cells together, on the same genes."""
    cells = cells.copy()
    cells.var["highly_variable"] = np.isin(np.arange(cells.n_vars), used)
    return PCAUpstream.fit(cells, n_components=K, genes="flagged")


def often(parts, n):
    """Return the genes with counts in most cells."""
    detected = sum(np.asarray((part.X > 0).sum(0)).ravel() for part in parts)
    return GENES[np.argsort(-detected, kind="stable")[:n]]


def scores(cells, upstream):
    """Return the coordinates in double precision; those of embed are float32."""
    return (logged(dense(cells))[:, upstream.used] - upstream.mean) @ upstream.loadings


def assert_equal(found, expected, cells):
    np.testing.assert_array_equal(found.genes, expected.genes)
    np.testing.assert_array_equal(found.used, expected.used)
    np.testing.assert_allclose(found.share, expected.share, rtol=1e-12)
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-10)
    mine, theirs = scores(cells, found), scores(cells, expected)
    assert (np.abs(mine - theirs) / theirs.std(0)).max() < 1e-8  # the signs are the same too


class TestEquality:
    @pytest.mark.parametrize("n_sites", [3, 10])
    def test_any_split_gives_the_pca_of_all_cells(self, cells, n_sites):
        found = fitted(sites(cells, n_sites))
        assert found[0].upstream.n_genes == 40
        for one in found:
            assert one.upstream.fingerprint == found[0].upstream.fingerprint
        assert_equal(found[0].upstream, central(cells, found[0].upstream.used), cells)

    @pytest.mark.bench
    def test_equals_scanpys_pipeline(self, cells):
        sc = pytest.importorskip("scanpy")
        found = fitted(sites(cells, 3))[0].upstream
        oracle = cells.copy()
        oracle.X = oracle.X.astype(np.float64)
        sc.pp.normalize_total(oracle, target_sum=1e4)
        sc.pp.filter_genes(oracle, min_cells=20)
        sc.pp.log1p(oracle)
        sc.pp.highly_variable_genes(oracle, n_top_genes=40)
        flags = oracle.var["highly_variable"].to_numpy()
        assert found.genes[found.used].tolist() == oracle.var_names[flags].tolist()
        sc.pp.pca(oracle, n_comps=K, mask_var="highly_variable", dtype="float64")
        Z = oracle.obsm["X_pca"]
        gap = np.abs(np.abs(scores(cells, found)) - np.abs(Z)) / Z.std(0)
        assert gap.max() < 1e-8

    def test_a_site_with_one_batch(self, cells):
        parts = [cells[cells.obs["batch"] == name].copy() for name in BATCHES]
        found = fitted(parts)[0]
        assert found.pooled.n_batches == len(BATCHES)
        assert_equal(found.upstream, central(cells, found.upstream.used), cells)

    def test_moments_of_the_coordinates(self, cells):
        parts = sites(cells, 3)
        found = fitted(parts)[0]
        at = np.concatenate(
            [np.char.add(f"{i}/", part.obs["batch"].to_numpy(str)) for i, part in enumerate(parts)]
        )
        Z = np.concatenate([scores(part, found.upstream) for part in parts])
        pooled = Moments.of(Z, at).pooled()
        assert (found.pooled.n_cells, found.pooled.n_batches) == (pooled.n_cells, pooled.n_batches)
        np.testing.assert_allclose(found.pooled.m2, pooled.m2, rtol=1e-10)
        np.testing.assert_allclose(found.pooled.mean, pooled.mean, atol=1e-10)

    @pytest.mark.parametrize("kind", [".h5ad", ".zarr"])
    def test_files_are_read_in_blocks(self, cells, tmp_path, monkeypatch, kind):
        monkeypatch.setattr("scbatchprox.upstream.counts.BLOCK_BYTES", 8 * 90 * 50)
        parts, seen = sites(cells, 3), []
        expected = central(cells, fitted(parts)[0].upstream.used)
        paths = [store(part, tmp_path / f"{i}{kind}") for i, part in enumerate(parts)]
        with ExitStack() as stack:
            own = [stack.enter_context(open_counts(path, batch_key="batch")) for path in paths]
            kinds = [
                partial(
                    pca,
                    one,
                    GENES,
                    n_components=K,
                    n_hvgs=40,
                    progress=lambda *at: seen.append(at),
                )
                for one in own
            ]
            found = in_process(kinds)[0].upstream
        assert_equal(found, expected, cells)
        assert {stage for stage, _, _ in seen} == {"genes", "pca"}
        assert ("pca", 50, parts[2].n_obs) in seen  # in blocks

    def test_is_saved_and_applied_like_any_other(self, cells, tmp_path):
        parts = sites(cells, 3)
        found = fitted(parts)[0].upstream
        found.save(tmp_path / "pca.safetensors")
        again = load(tmp_path / "pca.safetensors")
        assert again.fingerprint == found.fingerprint
        Z = again.embed(parts[1]).Z
        np.testing.assert_allclose(Z, scores(parts[1], found), atol=1e-5)


class TestRefused:
    def test_fewer_cells_than_genes_before_any_products_are_sent(self, cells):
        parts = [part[:25].copy() for part in sites(cells, 3)]
        rounds = []

        def watched(part):
            def kind(add_up):
                def counted(addends):
                    rounds.append(len(addends.values))
                    return add_up(addends)

                return pca(counts(part), GENES, counted, n_components=K, n_hvgs=80, min_cells=1)

            return kind

        with pytest.raises(BadValue, match="found 75 cells of all sites and 80 genes.*fewer genes"):
            in_process([watched(part) for part in parts])
        assert rounds == [3 + 3 * len(GENES)] * 3  # the first sum only

    def test_fewer_cells_at_the_other_sites_than_genes(self, cells):
        parts = [part[:25].copy() for part in sites(cells, 3)]
        with pytest.raises(BadValue, match="found 50 cells of the other sites and 60 genes"):
            fitted(parts, often(parts, 60), n_hvgs=60)

    def test_as_many_cells_as_genes_is_enough(self, cells):
        parts = [part[:25].copy() for part in sites(cells, 3)]
        assert fitted(parts, often(parts, 50), n_hvgs=50)[0].upstream.n_genes == 50

    def test_a_gene_in_few_cells_of_the_other_sites(self, cells):
        """The site that has most of these cells could subtract its own."""
        parts, gene = sites(cells, 3), 30
        for part, kept in zip(parts, (0, 4, 60), strict=True):
            X = part.X.tolil()
            rows = np.flatnonzero(X[:, gene].toarray().ravel())
            X[rows[kept:], gene] = 0
            part.X = X.tocsr()
        assert (dense(parts[2])[:, gene] > 0).sum() > 20
        names = np.array([*often(parts, 12), GENES[gene]])
        with pytest.raises(
            BadValue, match="at least 5 cells of other sites.*found 1 with fewer: 'gene30'"
        ):
            fitted(parts, names)
        X = parts[1].X.tolil()
        X[:, gene] = 0  # then there is nothing to reveal
        parts[1].X = X.tocsr()
        assert fitted(parts, names)[0].upstream.n_genes == 13

    def test_missing_genes(self, cells):
        parts = sites(cells, 3)
        parts[0] = parts[0][:, :-2].copy()
        with pytest.raises(BadValue, match="2 are missing: 'gene88', 'gene89'"):
            fitted(parts)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"n_components": 40}, "n_components between 1 and 39"),
            ({"n_components": 0}, "n_components"),
        ],
    )
    def test_bad_parameters_before_the_first_sum(self, cells, options, message):
        options = {"n_components": K, "n_hvgs": 40, **options}
        with pytest.raises(BadValue, match=message):
            pca(counts(cells), GENES, None, **options)

    def test_too_many_genes_for_a_message(self, cells, monkeypatch):
        monkeypatch.setattr(module, "MOST_GENES", 39)
        with pytest.raises(BadValue, match="at most 39 genes for a PCA, found 40"):
            fitted(sites(cells, 3))

    def test_cells_that_change_between_the_sums(self, cells):
        parts = [counts(part) for part in sites(cells, 3)]
        kinds = [partial(pca, part, GENES, n_components=K, n_hvgs=40) for part in parts]

        def lose(number):
            if number == 0:
                object.__setattr__(parts[0], "rows", parts[0].rows[:-3])

        with pytest.raises(BadValue, match="same 630 cells in both sums, found 627"):
            in_process([changed(kinds[0], lose), *kinds[1:]])

    def test_another_choice_at_one_site(self, cells, monkeypatch):
        first, *others = (
            partial(pca, counts(part), GENES, n_components=K, n_hvgs=40) for part in sites(cells, 3)
        )
        real = module.positions

        def deviate(number):
            if number == 0:  # it is the last site: the others have made their choice
                monkeypatch.setattr(module, "positions", lambda *given: swapped(real(*given)))

        def swapped(used):
            """As many genes, of which one is another."""
            free = np.setdiff1d(np.arange(len(GENES)), used)
            return np.sort(np.r_[used[1:], free[0]])

        with pytest.raises(BadValue, match="same choice of genes at all sites"):
            in_process([*others, changed(first, deviate)])


class TestRange:
    @pytest.mark.parametrize("n_cells", [1, 90, 5000, 10**6, 10**9, 10**12])
    def test_the_largest_products_fit_and_are_fine(self, n_cells):
        fixed = products_format(n_cells)
        largest = np.log(10_001) ** 2 * n_cells
        assert largest < fixed.limit
        # Three sites whose sum is the largest possible.
        parts = [fixed.encoded(np.array([share * largest])) for share in (0.2, 0.3, 0.5)]
        total = fixed.floats(fixed.added(fixed.added(parts[0], parts[1]), parts[2]))[0]
        assert abs(total - largest) <= max(1e-12 * n_cells, 2 * 2.0**-fixed.fraction)

    def test_beyond_it_is_an_error(self):
        fixed = products_format(1000)
        with pytest.raises(BadValue, match="Expected numbers below"):
            fixed.encoded(np.array([fixed.limit]))

    def test_more_cells_than_the_first_sum_said(self, cells):
        """A site whose products may be beyond the range stops before it sends them."""
        parts = [counts(part) for part in sites(cells, 3)]
        kinds = [partial(pca, part, GENES, n_components=K, n_hvgs=40) for part in parts]

        def grow(number):
            if number == 0:
                object.__setattr__(parts[0], "rows", with_more(parts[0].rows))

        def with_more(rows):
            from scipy.sparse import vstack

            return vstack([rows] * 300, format="csr")

        with pytest.raises(BadValue, match="found 0 cells of the other sites"):
            in_process([changed(kinds[0], grow), *kinds[1:]])


class TestPublished:
    def test_the_same_pca_up_to_rounding(self, cells):
        found = fitted(sites(cells, 3))[0].upstream
        check_published(found, central(cells, found.used))

    @pytest.mark.parametrize("change", ["share", "mean", "loadings", "variance"])
    def test_another_one(self, cells, change):
        found = fitted(sites(cells, 3))[0].upstream
        arrays = {
            name: getattr(found, name).copy() for name in ("share", "mean", "loadings", "variance")
        }
        arrays[change] *= 1 + 1e-4
        other = PCAUpstream(found.genes, used=found.used, **arrays)
        with pytest.raises(BadValue, match="sums of this plan"):
            check_published(found, other)

    def test_of_other_genes(self, cells):
        found = fitted(sites(cells, 3))[0].upstream
        with pytest.raises(BadValue, match="sums of this plan"):
            check_published(found, central(with_counts(cells, cells.X), found.used + 1))
