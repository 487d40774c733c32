"""A fixed PCA of counts: it equals scikit-learn's, and storage and order of the data do not matter."""

import anndata as ad
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import PCA

from scbatchprox.upstream import PCAUpstream
from upstream_data import K, dense, logged, more_genes, most_variable, with_counts


def by_sklearn(first):
    return PCA(K, svd_solver="full").fit(logged(dense(first)))


def unsorted(X):
    """Return the same matrix with the entries of each row reversed, and one entry split in two."""
    X = sp.coo_matrix(X)
    row, col, data = X.row[::-1], X.col[::-1], X.data[::-1].copy()
    big = int(data.argmax())
    data[big] -= 1
    row, col, data = np.r_[row, row[big]], np.r_[col, col[big]], np.r_[data, 1]
    order = np.argsort(row, kind="stable")
    indptr = np.r_[0, np.cumsum(np.bincount(row, minlength=X.shape[0]))]
    return sp.csr_matrix((data[order], col[order], indptr), X.shape)


class TestProjection:
    def test_is_sklearns_pca(self, first, pca):
        oracle = by_sklearn(first)
        np.testing.assert_allclose(pca.mean, oracle.mean_, rtol=1e-12)
        np.testing.assert_allclose(pca.variance, oracle.explained_variance_, rtol=1e-9)
        for k in range(K):
            mine, theirs = pca.loadings[:, k], oracle.components_[k]
            np.testing.assert_allclose(mine, np.sign(mine @ theirs) * theirs, atol=1e-8)
            assert mine[np.abs(mine).argmax()] > 0  # the sign is fixed

    def test_projects_as_sklearn_does(self, first, new, pca):
        oracle = by_sklearn(first)
        signs = np.sign((pca.loadings.T * oracle.components_).sum(1))
        for adata in (first, new):
            found = pca.embed(adata).Z
            assert found.dtype == np.float32
            np.testing.assert_allclose(
                found, oracle.transform(logged(dense(adata))) * signs, atol=2e-5
            )

    def test_the_reference_gets_the_same_coordinates_again(self, first, pca):
        whole = pca.embed(first).Z
        scores = by_sklearn(first).fit_transform(logged(dense(first)))
        np.testing.assert_allclose(np.abs(whole), np.abs(scores), atol=2e-5)
        # A subset of cells gets exactly the same coordinates.
        some = np.array([5, 3, 200, 77])
        np.testing.assert_array_equal(pca.embed(first[some]).Z, whole[some])

    def test_fit_is_deterministic(self, first, pca):
        assert PCAUpstream.fit(first, n_components=K, genes="all").fingerprint == pca.fingerprint

    def test_share_by_hand(self, first, pca):
        X = dense(first)
        np.testing.assert_allclose(pca.share, (X / X.sum(1, keepdims=True)).mean(0), rtol=1e-12)

    @pytest.mark.parametrize(
        "change",
        [
            lambda a: a[:, np.random.default_rng(0).permutation(a.n_vars)].copy(),
            lambda a: ad.concat([a, more_genes(a)], axis=1, merge="same"),
            lambda a: ad.concat([more_genes(a), a], axis=1, merge="same"),
            lambda a: with_counts(a, a.X.tocsc()),
            lambda a: with_counts(a, a.X.toarray()),
            lambda a: with_counts(a, a.X.toarray().astype(np.int64)),
            lambda a: with_counts(a, a.X.toarray().astype(np.uint16)),
            lambda a: with_counts(a, sp.coo_array(a.X).tocsr()),
            lambda a: with_counts(a, unsorted(a.X)),
            lambda a: a[:, ::-1],  # a view
        ],
    )
    def test_order_extra_genes_and_storage_do_not_matter(self, new, pca, change):
        found = pca.embed(change(new))
        np.testing.assert_array_equal(found.Z, pca.embed(new).Z)
        assert found.report.missing == ()

    def test_blocks_do_not_matter(self, new, pca, rows_at_a_time):
        expected = pca.embed(new).Z
        rows_at_a_time(7)
        np.testing.assert_array_equal(pca.embed(new).Z, expected)
        np.testing.assert_array_equal(pca.embed(with_counts(new, new.X.toarray())).Z, expected)

    def test_layer(self, new, pca):
        expected = pca.embed(new).Z
        adata = new.copy()
        adata.layers["counts"] = adata.X.copy()
        adata.X = adata.X * 0.5
        np.testing.assert_array_equal(pca.embed(adata, layer="counts").Z, expected)

    @pytest.mark.parametrize("kind", ["csr", "csc", "dense"])
    def test_backed_and_lazy(self, new, pca, tmp_path, rows_at_a_time, kind):
        rows_at_a_time(50)
        X = {"csr": new.X, "csc": new.X.tocsc(), "dense": new.X.toarray()}[kind]
        with_counts(new, X).write_h5ad(tmp_path / "new.h5ad")
        backed = ad.read_h5ad(tmp_path / "new.h5ad", backed="r")
        np.testing.assert_array_equal(pca.embed(backed).Z, pca.embed(new).Z)
        backed.file.close()
        if kind == "csc":
            return  # cannot be read by rows
        pytest.importorskip("xarray")
        lazy = ad.experimental.read_lazy(tmp_path / "new.h5ad")
        np.testing.assert_array_equal(pca.embed(lazy).Z, pca.embed(new).Z)


class TestChoice:
    def test_flagged_genes(self, first, new):
        adata = first.copy()
        flags = np.arange(80) % 3 == 0
        adata.var["highly_variable"] = flags
        found = PCAUpstream.fit(adata, n_components=K, genes="flagged")
        assert found.genes[found.used].tolist() == adata.var_names[flags].tolist()
        # Totals are over all genes, not over the chosen ones.
        X = dense(adata)
        oracle = PCA(K, svd_solver="full").fit(logged(X)[:, flags])
        expected = oracle.transform(logged(dense(new))[:, flags])
        np.testing.assert_allclose(np.abs(found.embed(new).Z), np.abs(expected), atol=2e-5)

    def test_all_genes_if_there_are_few(self, first, pca):
        assert PCAUpstream.fit(first, n_components=K).fingerprint == pca.fingerprint

    def test_most_variable_genes(self, first):
        found = PCAUpstream.fit(first, n_components=K, n_hvgs=25)
        assert set(found.genes[found.used]) == most_variable(first, 25)

    @pytest.mark.bench
    def test_equals_scanpys_pipeline(self, first, new):
        sc = pytest.importorskip("scanpy")
        found = PCAUpstream.fit(first, n_components=K, n_hvgs=25)
        oracle = first.copy()
        sc.pp.normalize_total(oracle, target_sum=1e4)
        sc.pp.log1p(oracle)
        sc.pp.highly_variable_genes(oracle, n_top_genes=25)
        assert oracle.var["highly_variable"].sum() == 25
        flags = oracle.var["highly_variable"].to_numpy()
        assert found.genes[found.used].tolist() == oracle.var_names[flags].tolist()
        sc.pp.pca(oracle, n_comps=K, mask_var="highly_variable")
        mine = found.embed(first).Z
        np.testing.assert_allclose(np.abs(mine), np.abs(oracle.obsm["X_pca"]), atol=1e-3)
