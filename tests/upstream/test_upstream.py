"""A frozen PCA of counts: what it is, what becomes of cells that lack genes, and what atlases know of it."""

import builtins
import json
import os
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from safetensors import safe_open
from sklearn.decomposition import PCA

from scbatchprox import Atlas, BatchProx
from scbatchprox.bench.compositions import Composition
from scbatchprox.bench.simulate import simulate
from scbatchprox.errors import InputError, MissingExtra
from scbatchprox.upstream import PCAUpstream, load
from scbatchprox.upstream.on_disk import embed_file, read_counts

K = 6
TABLE = Composition("t", ("a", "b", "c"), ("T", "B", "NK"), np.full((3, 3), 40))


@pytest.fixture(scope="module")
def cells():
    """Three batches of 120 cells with 80 genes; the last gene stands out, as a spike-in does."""
    cells = simulate(TABLE, n_genes=80, n_components=3, seed=4)
    cells.obs["batch"] = cells.obs["batch"].astype(str)
    return cells


@pytest.fixture(scope="module")
def first(cells):
    return cells[cells.obs["batch"] != "c"].copy()


@pytest.fixture(scope="module")
def new(cells):
    return cells[cells.obs["batch"] == "c"].copy()


@pytest.fixture(scope="module")
def pca(first):
    return PCAUpstream.fit(first, n_components=K, genes="all")


def dense(adata):
    return np.asarray(adata.X.toarray(), np.float64)


def logged(X, totals=None):
    """The paper's preprocessing, from its definition."""
    totals = X.sum(1) if totals is None else totals
    return np.log(1 + 10_000 * X / totals[:, None])


def by_sklearn(first):
    return PCA(K, svd_solver="full").fit(logged(dense(first)))


class TestProjection:
    def test_is_sklearns_pca(self, first, pca):
        oracle = by_sklearn(first)
        np.testing.assert_allclose(pca.mean, oracle.mean_, rtol=1e-12)
        np.testing.assert_allclose(pca.variance, oracle.explained_variance_, rtol=1e-9)
        for k in range(K):
            mine, theirs = pca.loadings[:, k], oracle.components_[k]
            np.testing.assert_allclose(mine, np.sign(mine @ theirs) * theirs, atol=1e-8)
            assert mine[np.abs(mine).argmax()] > 0  # the sign is no accident

    def test_projects_as_sklearn_does(self, first, new, pca):
        oracle = by_sklearn(first)
        signs = np.sign((pca.loadings.T * oracle.components_).sum(1))
        for adata in (first, new):
            found = pca.embed(adata).Z
            assert found.dtype == np.float32
            np.testing.assert_allclose(
                found, oracle.transform(logged(dense(adata))) * signs, atol=2e-5
            )

    def test_the_reference_gets_its_own_coordinates_back(self, first, pca):
        whole = pca.embed(first).Z
        scores = by_sklearn(first).fit_transform(logged(dense(first)))
        np.testing.assert_allclose(np.abs(whole), np.abs(scores), atol=2e-5)
        # Whichever of its cells come, alone or together, to the bit.
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

    def test_blocks_do_not_matter(self, new, pca, monkeypatch):
        expected = pca.embed(new).Z
        monkeypatch.setattr("scbatchprox.upstream.counts.BLOCK_BYTES", 8 * 80 * 7)
        np.testing.assert_array_equal(pca.embed(new).Z, expected)
        np.testing.assert_array_equal(pca.embed(with_counts(new, new.X.toarray())).Z, expected)

    def test_layer(self, new, pca):
        expected = pca.embed(new).Z
        adata = new.copy()
        adata.layers["counts"] = adata.X.copy()
        adata.X = adata.X * 0.5
        np.testing.assert_array_equal(pca.embed(adata, layer="counts").Z, expected)

    @pytest.mark.parametrize("kind", ["csr", "csc", "dense"])
    def test_backed_and_lazy(self, new, pca, tmp_path, monkeypatch, kind):
        monkeypatch.setattr("scbatchprox.upstream.counts.BLOCK_BYTES", 8 * 80 * 50)
        X = {"csr": new.X, "csc": new.X.tocsc(), "dense": new.X.toarray()}[kind]
        with_counts(new, X).write_h5ad(tmp_path / "new.h5ad")
        backed = ad.read_h5ad(tmp_path / "new.h5ad", backed="r")
        np.testing.assert_array_equal(pca.embed(backed).Z, pca.embed(new).Z)
        backed.file.close()
        if kind == "csc":
            return  # not by rows, whatever reads it
        pytest.importorskip("xarray")
        lazy = ad.experimental.read_lazy(tmp_path / "new.h5ad")
        np.testing.assert_array_equal(pca.embed(lazy).Z, pca.embed(new).Z)


def with_counts(adata, X):
    return ad.AnnData(X, obs=adata.obs, var=pd.DataFrame(index=adata.var_names))


def more_genes(adata):
    X = sp.csr_matrix(np.random.default_rng(1).poisson(50, (adata.n_obs, 3)).astype(np.float32))
    return ad.AnnData(X, obs=adata.obs, var=pd.DataFrame(index=["ERCC-1", "ERCC-2", "new"]))


def unsorted(X):
    """The same matrix with the entries of each row in reverse, and one of them in two parts."""
    X = sp.coo_matrix(X)
    row, col, data = X.row[::-1], X.col[::-1], X.data[::-1].copy()
    big = int(data.argmax())
    data[big] -= 1
    row, col, data = np.r_[row, row[big]], np.r_[col, col[big]], np.r_[data, 1]
    order = np.argsort(row, kind="stable")
    indptr = np.r_[0, np.cumsum(np.bincount(row, minlength=X.shape[0]))]
    return sp.csr_matrix((data[order], col[order], indptr), X.shape)


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
        # The variance of the genes in the space of the components, from its definition.
        within = np.diag(pca.loadings @ np.diag(pca.variance) @ pca.loadings.T)
        np.testing.assert_allclose(found.report.weight_lost, within[~here].sum() / within.sum())
        np.testing.assert_allclose(found.report.counts_lost, share[~here].sum(), rtol=1e-12)
        words = str(found.report)
        assert "75 of the reference's 80 genes were found; the other 5" in words
        assert "filled with their means in the reference: 'gene3', 'gene10'" in words

    def test_nothing_missing_says_nothing(self, new, pca):
        report = pca.embed(new).report
        assert str(report) == "80 of the reference's 80 genes were found."
        assert (report.weight_lost, report.counts_lost) == (0.0, 0.0)

    def test_totals_are_made_up(self, first, new):
        """Data without the genes that take most of the counts, none of which the PCA is made of."""
        adata, later = first.copy(), new.copy()
        loud = np.argsort(-dense(adata).sum(0))[:15]
        adata.var["highly_variable"] = ~np.isin(np.arange(80), loud)
        pca = PCAUpstream.fit(adata, n_components=K, genes="flagged")
        expected = pca.embed(later).Z
        found = pca.embed(later[:, adata.var["highly_variable"]])
        assert found.report.missing == ()
        assert found.report.counts_lost > 0.3
        assert "totals of cells were made up for" in str(found.report)
        X = dense(later)[:, pca.used]
        plain = (logged(X) - pca.mean) @ pca.loadings  # as if its own genes were all there is
        spread = expected.std(0).mean()
        made_up = np.abs(found.Z - expected).mean() / spread
        assert made_up < 0.5 * np.abs(plain - expected).mean() / spread
        assert made_up < 0.2

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
        """Half of the genes, but those that tell least."""
        quiet = np.argsort(pca.weight)[:45]
        with pytest.raises(ValueError, match=r"found 45 \(56%\) with [1-4]?\d% of their weight"):
            pca.embed(new[:, quiet])
        assert pca.embed(new[:, quiet], min_shared=0.05).report.weight_lost > 0.5
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
            (lambda a: renamed(a, {"gene7": "gene6"}), "of its own for every gene, found 'gene6' more than"),
            (lambda a: a[:0], "Expected cells and genes, found counts of shape"),
            (lambda a: ad.AnnData(obs=a.obs, var=a.var), "Expected counts in X, found none"),
        ],
    )  # fmt: skip
    def test_both_verbs_say_it(self, new, pca, change, sentence):
        adata = change(new.copy())
        with pytest.raises(ValueError, match=sentence):
            pca.embed(adata)
        with pytest.raises(ValueError, match=sentence):
            PCAUpstream.fit(adata, n_components=2, genes="all")

    def test_rows_are_counted_over_blocks(self, new, pca, monkeypatch):
        monkeypatch.setattr("scbatchprox.upstream.counts.BLOCK_BYTES", 8 * 80 * 2)
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

    def test_empty_by_the_reference_is_empty(self, new, pca):
        extra = ad.concat([without_counts(new, [0]), more_genes(new)], axis=1, merge="same")
        with pytest.raises(ValueError, match="none on the genes of the reference in 1 cells"):
            pca.embed(extra)

    def test_doubles_among_ignored_genes_do_not_matter(self, new, pca):
        extra = ad.concat([new, more_genes(new)], axis=1, merge="same")
        extra.var_names = [*extra.var_names[:-3], "x", "x", "y"]
        np.testing.assert_array_equal(pca.embed(extra).Z, pca.embed(new).Z)

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"n_components": 0}, "n_components between 1 and 79"),
            ({"n_components": 80}, "n_components between 1 and 79"),
            ({"genes": "some"}, "genes to be one of 'scanpy', 'flagged', 'all', found 'some'"),
            ({"genes": "flagged"}, "'highly_variable' in var .* found no such column"),
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


def with_value(adata, value):
    X = adata.X.toarray()
    X[2, 5] = value
    return with_counts(adata, sp.csr_matrix(X))


def without_counts(adata, rows):
    X = adata.X.toarray()
    X[rows] = 0
    return with_counts(adata, sp.csr_matrix(X))


def renamed(adata, names):
    other = adata.copy()
    other.var_names = adata.var_names.map(lambda name: names.get(name, name))
    return other


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

    def test_all_if_there_are_no_more(self, first, pca):
        assert PCAUpstream.fit(first, n_components=K).fingerprint == pca.fingerprint

    def test_scanpy_is_asked_for(self, first, monkeypatch):
        real = builtins.__import__

        def without(name, *args, **kwargs):
            if name == "scanpy":
                raise ImportError(name)
            return real(name, *args, **kwargs)

        monkeypatch.setattr(builtins, "__import__", without)
        with pytest.raises(MissingExtra, match=r"genes='all'.*scbatchprox\[bench\]"):
            PCAUpstream.fit(first, n_components=5, n_hvgs=20)

    @pytest.mark.bench
    def test_scanpys_pipeline(self, first, new):
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


class TestFile:
    def test_is_the_same_after_loading(self, pca, new, tmp_path):
        pca.save(tmp_path / "u.safetensors")
        for found in (
            PCAUpstream.load(tmp_path / "u.safetensors"),
            load(tmp_path / "u.safetensors"),
        ):
            assert isinstance(found, PCAUpstream)
            assert found.fingerprint == pca.fingerprint
            np.testing.assert_array_equal(found.embed(new).Z, pca.embed(new).Z)

    def test_can_be_read_without_this_package(self, pca, new, tmp_path):
        pca.save(tmp_path / "u.safetensors")
        with safe_open(tmp_path / "u.safetensors", framework="np") as file:
            at = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = file.metadata()
            params = json.loads(header["params"])
        assert (header["kind"], params["method"]) == ("upstream", "pca")
        X = dense(new[:, params["genes"]])
        Z = (logged(X)[:, at["used"]] - at["mean"]) @ at["loadings"]
        np.testing.assert_allclose(Z, pca.embed(new).Z, atol=2e-5)

    @pytest.mark.parametrize("name", ["genes", "share", "used", "mean", "loadings", "variance"])
    def test_fingerprint_sees_everything(self, pca, name):
        fields = {field: getattr(pca, field).copy() for field in vars(pca)}
        if name == "genes":
            fields[name][0] = "other"
        elif name == "used":
            fields[name] = fields[name][::-1].copy()
        else:
            fields[name].flat[1] = np.nextafter(fields[name].flat[1], 9)
        assert PCAUpstream(**fields).fingerprint != pca.fingerprint

    def test_others_are_refused(self, pca, tmp_path, rng):
        BatchProx().fit(rng.normal(size=(20, 3))).save(tmp_path / "model.safetensors")
        with pytest.raises(ValueError, match="Expected a saved upstream, found a saved 'model'"):
            load(tmp_path / "model.safetensors")
        with pytest.raises(FileNotFoundError, match="Expected a saved upstream, found no file"):
            load(tmp_path / "none.safetensors")
        pca.save(tmp_path / "u.safetensors")
        raw = (tmp_path / "u.safetensors").read_bytes()
        (tmp_path / "half.safetensors").write_bytes(raw[: len(raw) // 2])
        with pytest.raises(ValueError, match="damaged or of another kind"):
            load(tmp_path / "half.safetensors")
        newer = raw.replace(b'\\"method\\": \\"pca\\"', b'\\"method\\": \\"ica\\"')
        assert newer != raw
        (tmp_path / "newer.safetensors").write_bytes(newer)
        with pytest.raises(ValueError, match="one of the methods 'pca', 'scvi', found 'ica'"):
            load(tmp_path / "newer.safetensors")
        with pytest.raises(ValueError, match="Expected a saved PCA, found .* another method"):
            PCAUpstream.load(tmp_path / "newer.safetensors")


def store(adata, path):
    adata.write_zarr(path) if path.suffix == ".zarr" else adata.write_h5ad(path)
    return path


def restore(path):
    return ad.read_zarr(path) if path.suffix == ".zarr" else ad.read_h5ad(path)


@pytest.fixture(params=[".h5ad", ".zarr"])
def suffix(request):
    return request.param


class TestOnDisk:
    @pytest.mark.parametrize("kind", ["csr", "csc", "dense"])
    def test_file_is_embedded_in_parts(self, new, pca, tmp_path, suffix, kind, monkeypatch):
        monkeypatch.setattr("scbatchprox.upstream.counts.BLOCK_BYTES", 8 * 80 * 7)
        X = {"csr": new.X, "csc": new.X.tocsc(), "dense": new.X.toarray()}[kind]
        adata = with_counts(new[:, 4:], X[:, 4:])
        path = store(adata, tmp_path / f"new{suffix}")
        steps = []
        report = embed_file(path, pca, progress=lambda *step: steps.append(step))
        found = restore(path)
        expected = pca.embed(new[:, 4:])
        np.testing.assert_array_equal(found.obsm["X_pca"], expected.Z)
        assert steps[-1] == ("embed", 120, 120)
        assert len(steps) > (10 if kind != "dense" or suffix == ".h5ad" else 0)
        assert report == expected.report
        record = found.uns["X_pca"]
        assert record["upstream"] == pca.fingerprint
        assert record["genes"]["missing"].tolist() == ["gene0", "gene1", "gene2", "gene3"]
        assert found.obs["batch"].tolist() == new.obs["batch"].tolist()

    def test_copy_layer_and_name(self, new, pca, tmp_path, suffix):
        adata = new.copy()
        adata.layers["raw"] = adata.X
        adata.X = sp.csr_matrix(adata.X) * 0.5
        path = store(adata, tmp_path / f"new{suffix}")
        out = tmp_path / f"out{suffix}"
        embed_file(path, pca, layer="raw", key_added="X_lung", out=out)
        np.testing.assert_array_equal(restore(out).obsm["X_lung"], pca.embed(new).Z)
        assert restore(out).uns["X_lung"]["genes"]["missing"].tolist() == []
        assert "X_lung" not in restore(path).obsm

    def test_others_embeddings_are_not_replaced(self, new, pca, first, tmp_path, suffix):
        adata = new.copy()
        theirs = adata.obsm["X_pca"].copy()
        path = store(adata, tmp_path / f"new{suffix}")
        with pytest.raises(ValueError, match="a free name .* found 'X_pca' from elsewhere in obsm"):
            embed_file(path, pca)
        np.testing.assert_array_equal(restore(path).obsm["X_pca"], theirs)
        embed_file(path, pca, key_added="X_mine")
        other = PCAUpstream.fit(first, n_components=4, genes="all")
        embed_file(path, other, key_added="X_mine")  # one of our own is
        assert restore(path).obsm["X_mine"].shape == (120, 4)
        np.testing.assert_array_equal(restore(path).obsm["X_pca"], theirs)

    def test_bad_counts_leave_the_file_as_it_was(self, new, pca, tmp_path, monkeypatch):
        monkeypatch.setattr("scbatchprox.upstream.counts.BLOCK_BYTES", 8 * 80 * 7)
        path = store(without_counts(new, [100]), tmp_path / "new.h5ad")
        before = path.read_bytes()
        with pytest.raises(ValueError, match="the first in row 100"):
            embed_file(path, pca)
        assert path.read_bytes() == before
        assert sorted(os.listdir(tmp_path)) == ["new.h5ad"]

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"layer": "no"}, "a layer of new.h5ad, found no 'no'; available: none"),
            ({"key_added": "a/b"}, "Expected a plain name for the embedding, found 'a/b'"),
            ({"out": "out.zarr"}, "the same kind as the input .\\.h5ad., found 'out.zarr'"),
            ({"out": "no/out.h5ad"}, "Expected a folder outside of the input"),
            ({"min_shared": 2}, "Expected min_shared"),
        ],
    )
    def test_wrong_use(self, new, pca, tmp_path, monkeypatch, options, sentence):
        monkeypatch.chdir(tmp_path)
        path = store(with_counts(new, new.X), Path("new.h5ad"))
        before = path.read_bytes()
        with pytest.raises(InputError, match=sentence):
            embed_file(path, pca, **options)
        assert path.read_bytes() == before

    def test_kinds_without_counts(self, pca, tmp_path):
        (tmp_path / "x.csv").write_text("a,b\n1,2\n")
        with pytest.raises(ValueError, match="an .h5ad or .zarr file with counts, found 'x.csv'"):
            embed_file(tmp_path / "x.csv", pca)
        ad.AnnData(obs=pd.DataFrame(index=["a"])).write_h5ad(tmp_path / "no.h5ad")
        with pytest.raises(ValueError, match="Expected counts in X of no.h5ad, found none"):
            embed_file(tmp_path / "no.h5ad", pca)

    def test_several_files_are_one_reference(self, cells, first, tmp_path, suffix):
        parts = [cells[cells.obs["batch"] == name].copy() for name in "ab"]
        parts = parts[0][:, 5:].copy(), parts[1][:, :70].copy()
        paths = [store(part, tmp_path / f"{i}{suffix}") for i, part in enumerate(parts)]
        found = read_counts(paths, batch_key="batch")
        assert found.var_names.tolist() == [f"gene{g}" for g in range(5, 70)]
        assert found.obs["batch"].tolist() == ["a"] * 120 + ["b"] * 120
        one = PCAUpstream.fit(found, n_components=K, genes="all")
        rows = np.argsort(first.obs["batch"], kind="stable")
        other = PCAUpstream.fit(first[rows, 5:70], n_components=K, genes="all")
        assert one.fingerprint == other.fingerprint

    def test_files_that_share_nothing(self, new, tmp_path):
        a = store(new.copy(), tmp_path / "a.h5ad")
        b = store(renamed(new, {g: f"ENS{g}" for g in new.var_names}), tmp_path / "b.h5ad")
        with pytest.raises(ValueError, match="genes that all 2 files have, found none"):
            read_counts([a, b])
        c = store(renamed(new, {"gene1": "gene0"}), tmp_path / "c.h5ad")
        with pytest.raises(ValueError, match="found 'gene0' more than once in c.h5ad"):
            read_counts([a, c])
        with pytest.raises(ValueError, match="at least one file"):
            read_counts([])


@pytest.fixture(scope="module", params=[".h5ad", ".zarr"])
def files(request, cells, pca, tmp_path_factory):
    """Each batch embedded by the PCA, and the last also by another one."""
    other = PCAUpstream.fit(cells, n_components=K, genes="all")
    folder, suffix = tmp_path_factory.mktemp("files"), request.param
    for name in "abc":
        adata = cells[cells.obs["batch"] == name].copy()
        del adata.obsm["X_pca"]
        pca.embed(adata).write(adata)
        other.embed(adata).write(adata, "X_other")
        adata.obsm["X_plain"] = adata.obsm["X_pca"]
        store(adata, folder / f"{name}{suffix}")
    return {name: folder / f"{name}{suffix}" for name in "abc"}


class TestAtlas:
    @pytest.mark.parametrize("how", ["object", "file", "fingerprint", "nothing", "text"])
    def test_another_upstream_is_refused(self, files, pca, tmp_path, how):
        pca.save(tmp_path / "u.safetensors")
        said = {"object": pca, "file": tmp_path / "u.safetensors", "fingerprint": pca.fingerprint,
                "nothing": None, "text": "PCA of May"}[how]  # fmt: skip
        atlas = Atlas.create(tmp_path / "lung", upstream=said)
        assert atlas.upstream == {"nothing": None, "text": said}.get(how, pca.fingerprint)
        atlas.add_file(files["a"], "batch")
        assert atlas.entries()[-1]["source"]["upstream"] == pca.fingerprint
        before = (tmp_path / "lung" / "atlas.json").read_bytes()
        with pytest.raises(
            ValueError, match=f"upstream of the atlas, '{pca.fingerprint}', found 'pca:"
        ):
            atlas.add_file(files["b"], "batch", use_rep="X_other")
        assert (tmp_path / "lung" / "atlas.json").read_bytes() == before
        atlas.add_file(files["b"], "batch")
        atlas.add_file(files["c"], "batch", use_rep="X_plain")  # says nothing, is asked nothing
        assert "upstream" not in atlas.entries()[-1]["source"]
        assert atlas.model.batches_.tolist() == ["a", "b", "c"]

    def test_first_arrival_is_checked_too(self, files, pca, tmp_path):
        atlas = Atlas.create(tmp_path / "lung", upstream=pca)
        with pytest.raises(ValueError, match="Expected the upstream of the atlas"):
            atlas.add_file(files["a"], "batch", use_rep="X_other")
        with pytest.raises(ValueError, match="Expected the upstream of the atlas"):
            atlas.add_file(files["a"], "batch", upstream="PCA of May")
        atlas.add_file(files["a"], "batch", upstream=pca)

    def test_what_was_forgotten_binds_nobody(self, files, tmp_path):
        atlas = Atlas.create(tmp_path / "lung")
        atlas.add_file(files["a"], "batch")
        atlas.forget("a")
        atlas.add_file(files["b"], "batch", use_rep="X_other")
        with pytest.raises(ValueError, match="Expected the upstream of the atlas"):
            atlas.add_file(files["c"], "batch")
        atlas.rollback(2)
        with pytest.raises(ValueError, match="Expected the upstream of the atlas"):
            atlas.add_file(files["c"], "batch", use_rep="X_other")
        atlas.add_file(files["c"], "batch")

    def test_a_reference_is_the_same_wherever_it_is_kept(self, files, pca, tmp_path):
        pca.save(tmp_path / "u.safetensors")
        atlas = Atlas.create(tmp_path / "lung", upstream=tmp_path / "u.safetensors")
        pca.save(tmp_path / "copy.safetensors")
        atlas.add_file(files["a"], "batch", upstream=tmp_path / "copy.safetensors")
        assert atlas.version == 2


@pytest.mark.skipif(
    not (Path(os.environ.get("SCBATCHPROX_DATA", "/nowhere")) / "sc_mixology.h5ad").exists(),
    reason="needs sc_mixology.h5ad in the folder that SCBATCHPROX_DATA names",
)
def test_five_arrivals_of_real_counts(tmp_path):
    """Cell lines whose names are certain, by four protocols: projected cells lie with their own line."""
    from sklearn.neighbors import KNeighborsClassifier

    cells = ad.read_h5ad(Path(os.environ["SCBATCHPROX_DATA"]) / "sc_mixology.h5ad")
    batch, line = cells.obs["batch"].astype(str), cells.obs["cell_type"].astype(str)
    first = (batch == "sc_10x").to_numpy()
    pca = PCAUpstream.fit(cells[first])
    atlas = Atlas.create(tmp_path / "atlas", upstream=pca)
    near = KNeighborsClassifier(15).fit(pca.embed(cells[first]).Z, line[first])
    atlas.add(pca.embed(cells[first]).Z, batch[first])
    known = line.isin(line[first]).to_numpy()
    for name in sorted(set(batch[~first])):
        arriving = (batch == name).to_numpy()
        found = pca.embed(cells[arriving])
        assert found.report.missing == ()
        assert (
            atlas.add(found.Z, batch[arriving], upstream=pca).judgement["level"].item() == "close"
        )
        both = known[arriving]
        assert (near.predict(found.Z[both]) == line[arriving & known]).mean() > 0.95
