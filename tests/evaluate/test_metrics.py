"""Scores against computations from their definitions, written out cell by cell."""

import os
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import silhouette_samples, silhouette_score
from sklearn.model_selection import train_test_split

from data import make_cells
from scbatchprox import BatchProx
from scbatchprox.core.labels import Labels
from scbatchprox.errors import MissingExtra
from scbatchprox.evaluate.metrics import (
    affected_f1,
    ilisi,
    leave_one_batch_out_f1,
    macro_f1,
    neighbours_kept,
    scib,
    silhouette,
    stability,
)
from scbatchprox.evaluate.metrics.cells import Cells, sample
from scbatchprox.evaluate.metrics.conservation import isolated_f1, nmi_ari
from scbatchprox.evaluate.metrics.mixing import asw_batch, asw_batch_scib, batch_variance, kbet
from scbatchprox.evaluate.metrics.neighbours import Neighbours
from scbatchprox.evaluate.metrics.silhouettes import Silhouettes

DATA = Path(os.environ.get("SCBATCHPROX_DATA", "/nowhere"))


def make_labelled(rng, n=200, types="abc", batches="xyz", apart=2.0, batch_effect=1.0):
    """Types and batches that shift cells; types are not equally frequent."""
    p = np.arange(1, len(types) + 1) / np.arange(1, len(types) + 1).sum()
    cell_type = rng.choice(list(types), n, p=p).astype("<U12")
    batch = rng.choice(list(batches), n)
    Z = rng.normal(size=(n, 4))
    for t in types:
        Z[cell_type == t] += apart * rng.normal(size=4)
    for b in batches:
        Z[batch == b] += batch_effect * rng.normal(size=4)
    return Z, cell_type, batch


def distances(Z):
    return np.sqrt(((Z[:, None, :] - Z[None, :, :]) ** 2).sum(-1))


def nearest(Z, k):
    D = distances(Z)
    np.fill_diagonal(D, np.inf)
    return np.argsort(D, axis=1, kind="stable")[:, :k]


def f1_of(truth, predicted, kind):
    hit = ((truth == kind) & (predicted == kind)).sum()
    return 2 * hit / ((truth == kind).sum() + (predicted == kind).sum())


class TestMacroF1:
    def predictions(self, Z, labels, seed):
        """Of the optimum of the class-balanced multinomial logistic loss, found by scipy."""
        from scipy.optimize import minimize
        from scipy.special import log_softmax

        train, test = train_test_split(
            np.arange(len(Z)), test_size=0.2, stratify=labels, random_state=seed
        )
        kinds, y = np.unique(labels, return_inverse=True)
        weight = len(train) / (len(kinds) * np.bincount(y[train]))[y[train]]
        X = np.column_stack([Z[train], np.ones(len(train))])

        def loss(flat):
            W = flat.reshape(X.shape[1], len(kinds))
            fit = log_softmax(X @ W, axis=1)[np.arange(len(train)), y[train]]
            return -(weight * fit).sum() + 0.5 * (W[:-1] ** 2).sum()

        W = minimize(loss, np.zeros(X.shape[1] * len(kinds)), method="BFGS").x
        W = W.reshape(X.shape[1], len(kinds))
        return labels[test], kinds[(np.column_stack([Z[test], np.ones(len(test))]) @ W).argmax(1)]

    @pytest.mark.parametrize("newton", [2000, 1])
    def test_is_that_of_the_optimum(self, rng, monkeypatch, newton):
        monkeypatch.setattr("scbatchprox.evaluate.metrics.classification._NEWTON", newton)
        Z, labels, _ = make_labelled(rng, 300, apart=0.7)
        truth, predicted = self.predictions(Z, labels, seed=3)
        scores = [f1_of(truth, predicted, kind) for kind in "abc"]
        assert 0.4 < np.mean(scores) < 0.95
        assert macro_f1(Z, labels, seed=3) == pytest.approx(np.mean(scores))
        for kind, score in zip("abc", scores, strict=True):
            assert affected_f1(Z, labels, kind, seed=3) == pytest.approx(score)

    def test_labels_come_in_any_container(self, rng):
        Z, labels, _ = make_labelled(rng, 100, apart=0.7)
        expected = macro_f1(Z, labels)
        unused = pd.Categorical(labels, categories=["nobody", "c", "b", "a"])
        index = pd.Index(rng.permutation(100))
        for other in (labels.tolist(), unused, pd.Series(unused, index=index), pd.Index(labels)):
            assert macro_f1(Z, other) == expected
        numbers = pd.Series(labels).map({"a": 1, "b": 2, "c": 3})
        assert macro_f1(Z, numbers) == expected
        assert macro_f1(sp.csr_matrix(Z), labels) == pytest.approx(expected)
        assert macro_f1(Z.astype(np.float32), labels) == pytest.approx(expected, abs=0.05)

    def test_origin_and_large_coordinates(self, rng):
        """The intercept is free, and coordinates in the thousands neither warn nor fail."""
        Z, labels, _ = make_labelled(rng, 200)
        assert macro_f1(Z + 1e4, labels) == pytest.approx(macro_f1(Z, labels))
        assert macro_f1(1e5 * Z, labels) > 0.5

    def test_types_of_one_cell_are_left_out(self, rng):
        Z, labels, _ = make_labelled(rng, 100, apart=0.7)
        more = np.append(labels, ["single", "other"])
        assert macro_f1(np.vstack([Z, Z[:2]]), more) == macro_f1(Z, labels)
        assert np.isnan(affected_f1(np.vstack([Z, Z[:2]]), more, "single"))

    def test_nothing_to_tell_apart(self, rng):
        assert np.isnan(macro_f1(rng.normal(size=(20, 2)), ["a"] * 20))
        assert np.isnan(macro_f1(rng.normal(size=(3, 2)), ["a", "a", "b"]))

    def test_constant_embedding(self, rng):
        labels = rng.choice(["a", "b"], 100)
        assert macro_f1(np.ones((100, 3)), labels) < 0.5

    def test_bad_input(self, rng):
        Z, labels, batch = make_labelled(rng, 50)
        labels = labels.astype(object)
        with pytest.raises(ValueError, match="Expected `affected` to be a cell type, found 'q'"):
            affected_f1(Z, labels, "q")
        with pytest.raises(ValueError, match=r"Expected one cell type per cell \(50\), found 49"):
            macro_f1(Z, labels[1:])
        with pytest.raises(ValueError, match="as many test and training cells as cell types"):
            macro_f1(Z[:12], list("aabbccddeeff"))
        labels[7] = None
        missing = "Expected a cell type for every cell, found 1 missing of 50, the first at row 7"
        for call in (
            lambda: macro_f1(Z, labels),
            lambda: leave_one_batch_out_f1(Z, labels, batch),
            lambda: scib(Z, batch, labels),
            lambda: stability(Z, Z, batch, labels),
        ):
            with pytest.raises(ValueError, match=missing):
                call()
        Z[3, 1] = np.nan
        with pytest.raises(ValueError, match="row 3, column 1"):
            macro_f1(Z, batch)


class TestLeaveOneBatchOut:
    def expected(self, Z, labels, batch, k):
        scores, D = [], distances(Z)
        for b in np.unique(batch):
            others = np.flatnonzero(batch != b)
            seen = [t for t in np.unique(labels[batch == b]) if t in labels[others]]
            truth, predicted = [], []
            for i in np.flatnonzero((batch == b) & np.isin(labels, seen)):
                near = others[np.argsort(D[i, others])[:k]]
                votes = {t: (labels[near] == t).sum() for t in np.unique(labels)}
                truth.append(labels[i])
                predicted.append(max(votes, key=votes.get))  # a tie: the first name
            truth, predicted = np.array(truth), np.array(predicted)
            if seen:
                scores.append(np.mean([f1_of(truth, predicted, t) for t in seen]))
        return np.mean(scores)

    def test_is_the_definition(self, rng):
        Z, labels, batch = make_labelled(rng, 150, apart=1.0)
        labels[(labels == "a") & (batch != "x")] = "b"  # one batch alone has a
        assert set(labels[batch == "x"]) == set("abc")
        score = leave_one_batch_out_f1(Z, labels, batch, k=5)
        assert 0.3 < score < 0.95
        assert score == pytest.approx(self.expected(Z, labels, batch, 5))

    def test_types_of_the_batch_alone_do_not_count(self):
        """Cells that nobody else could name are neither right nor wrong."""
        Z = np.array([[0.0], [0.1], [9.0], [9.1], [0.2], [9.2], [50.0]])
        labels, batch = list("aabbabc"), list("xxxxyyy")
        assert leave_one_batch_out_f1(Z, labels, batch, k=1) == 1.0

    def test_a_false_name_from_elsewhere_costs_recall_alone(self):
        """Types that the batch does not hold are no classes of its mean."""
        Z = np.array([[0.0], [0.1], [5.0], [0.05], [0.15], [5.1], [4.9]])
        # x: a, a, a, of which the third lies among b, a type that x does not have.
        labels, batch = list("aaaaabb"), list("xxxyyyy")
        in_x = 2 * 2 / (2 + 3)
        in_y = 1.0
        assert leave_one_batch_out_f1(Z, labels, batch, k=1) == pytest.approx(np.mean([in_x, in_y]))

    def test_no_answer(self, rng):
        Z = rng.normal(size=(30, 2))
        assert np.isnan(leave_one_batch_out_f1(Z, ["a", "b"] * 15, ["x"] * 30))
        assert np.isnan(leave_one_batch_out_f1(Z, ["a", "b"] * 15, ["x", "y"] * 15))

    def test_all_vote_where_there_are_fewer_than_k(self):
        """Four cells elsewhere, or two: a tie goes to the first name, so a is found and b is not."""
        Z, labels = np.repeat([[0.0], [9.0]], 3, axis=0), list("aaabbb")
        assert leave_one_batch_out_f1(Z, labels, list("xyyxyy")) == pytest.approx(2 / 3 / 2)


@pytest.mark.skipif(not DATA.is_dir(), reason="set SCBATCHPROX_DATA to the folder of real data")
@pytest.mark.parametrize(
    ("name", "rep", "lobo", "mixing", "width"),
    [
        ("cell_lines", "X_pca", 0.999, 0.103, 0.482),
        ("pancreas_scvi", "X_scvi", 0.881, 0.067, 0.255),
        ("hematopoiesis_scvi", "X_scvi", 0.207, 0.001, 0.171),
        ("synovium", "X_pca", 0.996, 0.157, 0.452),
    ],
)
def test_numbers_of_the_design_are_met(name, rep, lobo, mixing, width):
    """Its silhouette widths are of 2,500 random cells."""
    if not (DATA / f"{name}.h5ad").exists():
        pytest.skip(f"no {name}.h5ad in SCBATCHPROX_DATA")
    adata = ad.read_h5ad(DATA / f"{name}.h5ad")
    Z, batch, cell_type = adata.obsm[rep], adata.obs["batch"], adata.obs["cell_type"]
    assert leave_one_batch_out_f1(Z, cell_type, batch) == pytest.approx(lobo, abs=6e-4)
    assert ilisi(Z, batch) == pytest.approx(mixing, abs=6e-4)
    assert silhouette(Z, cell_type, max_cells=2500) == pytest.approx(width, abs=6e-4)


class TestSilhouettes:
    def widths(self, D, labels):
        """From the definition, cell by cell."""
        found = []
        for i in range(len(D)):
            own = (labels == labels[i]) & (np.arange(len(D)) != i)
            if not own.any():
                found.append(0.0)
                continue
            a = D[i, own].mean()
            b = min(D[i, labels == other].mean() for other in set(labels) - {labels[i]})
            found.append((b - a) / max(a, b))
        return np.array(found)

    @given(st.integers(0, 2**32), st.integers(2, 5), st.sampled_from([0.0, 1e4]))
    def test_is_the_definition(self, seed, n_groups, offset):
        rng = np.random.default_rng(seed)
        labels = np.append(np.arange(n_groups), rng.integers(0, n_groups, 25))
        Z = rng.normal(size=(len(labels), 3)) + labels[:, None]
        assert silhouette(Z + offset, labels) == pytest.approx(
            self.widths(distances(Z), labels).mean(), abs=1e-7
        )

    def test_sample_is_that_of_scikit_learn(self, rng):
        Z, labels, _ = make_labelled(rng, 300)
        expected = silhouette_score(Z, labels, sample_size=80, random_state=5)
        assert silhouette(Z, labels, max_cells=80, seed=5) == pytest.approx(expected)
        assert silhouette(Z, labels, max_cells=10**6) == pytest.approx(silhouette(Z, labels))

    def test_no_answer(self, rng):
        assert np.isnan(silhouette(rng.normal(size=(10, 2)), ["a"] * 10))
        assert silhouette(np.ones((10, 2)), ["a", "b"] * 5) == 0.0

    def test_three_groupings_in_one_pass(self, rng):
        Z, labels, batch = make_labelled(rng, 120)
        labels[:3], batch[:3] = "z", ["x", "y", "z"]  # one cell per batch: no groups within it
        labels[3:8], batch[3:8] = "w", "x"  # one batch
        found = Silhouettes.of(Z, Labels.of(labels, 120), Labels.of(batch, 120))
        np.testing.assert_allclose(found.types, silhouette_samples(Z, labels), atol=1e-12)
        np.testing.assert_allclose(found.batches, silhouette_samples(Z, batch), atol=1e-12)
        in_type = {}
        for t in "abc":
            at = labels == t
            expected = silhouette_samples(Z[at], batch[at])
            np.testing.assert_allclose(found.batches_within_types[at], expected, atol=1e-12)
            in_type[t] = 1 - np.abs(expected).mean()
        assert np.isnan(found.batches_within_types[:8]).all()
        assert asw_batch(found) == pytest.approx(1 - np.abs(silhouette_samples(Z, batch)).mean())
        types = Labels.of(labels, 120)
        assert asw_batch_scib(found, types) == pytest.approx(np.mean(list(in_type.values())))


class TestNeighbours:
    def test_are_exact_far_from_the_origin_too(self, rng):
        Z = rng.normal(size=(80, 20))
        for offset in (0.0, 1e6):
            np.testing.assert_array_equal(Neighbours.of(Z + offset, 7).indices, nearest(Z, 7))

    def test_a_cell_is_not_its_own_neighbour_among_equals(self):
        near = Neighbours.of(np.ones((20, 3)), 5).indices
        assert not (near == np.arange(20)[:, None]).any()

    def test_ilisi_of_one_batch_has_no_answer(self, rng):
        assert np.isnan(ilisi(rng.normal(size=(50, 2)), ["x"] * 50))

    def test_kept_is_the_overlap_of_sets(self, rng):
        before = rng.normal(size=(60, 3))
        after = before + 0.5 * rng.normal(size=(60, 3))
        expected = [
            len(set(a) & set(b)) / 8
            for a, b in zip(nearest(before, 8), nearest(after, 8), strict=True)
        ]
        assert 0.1 < np.mean(expected) < 0.9
        np.testing.assert_allclose(neighbours_kept(before, after, k=8), expected)

    def test_all_are_kept_by_motions_of_the_whole(self, rng):
        Z = rng.normal(size=(60, 3))
        turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
        wider = np.column_stack([5.0 + 3.0 * Z @ turn, np.zeros(60)])
        assert (neighbours_kept(Z, wider) == 1.0).all()

    def test_other_cells_are_refused(self, rng):
        with pytest.raises(ValueError, match="of the same cells, found 20 and 30 cells"):
            neighbours_kept(rng.normal(size=(20, 3)), rng.normal(size=(30, 3)))


class TestStability:
    def test_agrees_with_what_the_model_says_it_did(self, rng):
        c = make_cells(rng, [60, 40, 30], 4)
        model = BatchProx()
        refined = model.fit_transform(c.Z, batch=c.codes)
        table = stability(c.Z, refined, c.codes).set_index("name")
        assert (table["kind"] == "batch").all()
        movement = model.movement()
        for ours, theirs in (("n", "n_cells"), ("moved", "moved"), ("relative", "relative")):
            np.testing.assert_allclose(table[ours], movement[theirs], rtol=1e-9)

    def test_each_group_from_its_cells(self, rng):
        Z, labels, batch = make_labelled(rng, 200)
        labels[:6] = "rare"
        after = Z + 0.3 * rng.normal(size=Z.shape)
        table = stability(Z, after, batch, labels, k=10)
        kept = neighbours_kept(Z, after, k=10)
        names = {("batch", b): batch == b for b in "xyz"}
        names |= {("cell type", t): labels == t for t in "abc"}
        names |= {("rare type", "rare"): labels == "rare"}
        for t in np.unique(labels):
            for b in "xyz":
                if ((labels == t) & (batch == b)).any():
                    names["population", f"{t} | {b}"] = (labels == t) & (batch == b)
        assert len(table) == len(names)
        for row in table.itertuples():
            cells = names[row.kind, row.name]
            moved = np.sqrt(
                np.mean([((a - z) ** 2).sum() for z, a in zip(Z[cells], after[cells], strict=True)])
            )
            assert row.n == cells.sum()
            assert row.moved == pytest.approx(moved)
            assert row.neighbours_kept == pytest.approx(kept[cells].mean())
            if row.n > 1:
                spread = np.sqrt(Z[cells].var(axis=0).sum())
                assert row.relative == pytest.approx(moved / spread)
            else:
                assert np.isnan(row.relative)

    def test_a_shift_of_one_batch_moves_it_by_the_shift(self, rng):
        Z, labels, batch = make_labelled(rng, 100)
        after = Z + 5.0 * (batch == "x")[:, None] * np.array([0.6, 0.8, 0.0, 0.0])
        table = stability(Z, after, batch, labels).set_index(["kind", "name"])
        assert table.loc[("batch", "x"), "moved"] == pytest.approx(5.0)
        assert table.loc[("batch", "y"), "moved"] == 0.0
        assert table.loc[("population", "c | x"), "moved"] == pytest.approx(5.0)

    def test_another_space_has_neighbours_but_no_distance(self, rng):
        Z, labels, batch = make_labelled(rng, 60)
        table = stability(Z, Z @ rng.normal(size=(4, 6)), batch, labels)
        assert table[["moved", "relative"]].isna().all(axis=None)
        assert table["neighbours_kept"].between(0.3, 1.0).all()


class TestConservation:
    def test_nmi_and_ari_are_the_formulas(self, rng):
        """Clusters far apart are found by any k-means; types cut across them."""
        cluster = np.repeat([0, 1, 2], [50, 30, 20])
        Z = 100.0 * np.eye(3)[cluster] + rng.normal(size=(100, 3))
        types = np.where(rng.random(100) < 0.3, rng.integers(0, 3, 100), cluster)
        joint = pd.crosstab(types, cluster).to_numpy() / 100
        entropy = [scipy.stats.entropy(joint.sum(axis)) for axis in (0, 1)]
        mutual = sum(entropy) - scipy.stats.entropy(joint.ravel())
        pairs = [(i, j) for i in range(100) for j in range(i)]
        same = np.array([(types[i] == types[j], cluster[i] == cluster[j]) for i, j in pairs])
        both, one, other = same.all(1).sum(), same[:, 0].sum(), same[:, 1].sum()
        chance = one * other / len(pairs)
        ari = (both - chance) / ((one + other) / 2 - chance)
        found = nmi_ari(Z, Labels.of(types, 100), seed=0)
        assert found == pytest.approx((2 * mutual / sum(entropy), ari))

    def test_clustering_does_not_depend_on_luck(self, rng):
        """Eight far clusters: a single start often ends with two of them in one."""
        types = np.repeat(np.arange(8), 50)
        Z = 20.0 * rng.normal(size=(8, 3))[types] + rng.normal(size=(400, 3))
        for seed in range(3):
            assert nmi_ari(Z, Labels.of(types, 400), seed) == pytest.approx((1.0, 1.0))

    def isolated(self, Z, labels, batch):
        present = {t: len(set(batch[labels == t])) for t in set(labels)}
        fewest = [t for t in present if present[t] == min(present.values())]
        scores = []
        for t in fewest:
            n = (labels == t).sum()
            if n > 1:
                k = min(15, n - 1)
                votes = np.array([(labels[near] == t).sum() for near in nearest(Z, k)])
                scores.append(f1_of(labels == t, votes > k / 2, True))
        return np.mean(scores)

    @pytest.mark.parametrize("rare", [2, 3, 6, 40])
    def test_isolated_types_are_found_by_their_neighbours(self, rng, rare):
        Z, labels, batch = make_labelled(rng, 200, apart=1.5)
        labels[:rare], batch[:rare] = "only in x", "x"
        labels[rare : rare + 30], batch[rare : rare + 30] = "only in y", "y"
        Z[:rare] += 1.2
        cells = Cells.of(Z, batch, labels)
        score = isolated_f1(Neighbours.of(Z, 89).indices, cells.cell_type, cells.batch)
        assert score == pytest.approx(self.isolated(Z, labels, batch))
        Z[:rare] = 100 + rng.normal(size=(rare, 4))
        Z[rare : rare + 30] = -100 + rng.normal(size=(30, 4))
        cells = Cells.of(Z, batch, labels)
        assert isolated_f1(Neighbours.of(Z, 89).indices, cells.cell_type, cells.batch) == 1.0

    def test_all_types_are_isolated_if_none_is(self, rng):
        Z, labels, batch = make_labelled(rng, 150, apart=1.0)
        cells = Cells.of(Z, batch, labels)
        score = isolated_f1(Neighbours.of(Z, 20).indices, cells.cell_type, cells.batch)
        assert score == pytest.approx(self.isolated(Z, labels, batch))


class TestMixing:
    def test_kbet_is_a_chi_squared_test_of_each_neighbourhood(self, rng):
        Z, labels, batch = make_labelled(rng, 250, batch_effect=0.5)
        labels[:8] = "tiny"
        labels[8:28], batch[8:28] = "one batch", "y"
        accepted = {}
        for t in "abc":
            at = np.flatnonzero(labels == t)
            names, n = np.unique(batch[at], return_counts=True)
            k = min(70, max(10, int(n.mean() // 4)))
            around = np.column_stack([np.arange(at.size), nearest(Z[at], k)])
            p = [
                scipy.stats.chisquare(
                    [(batch[at][cell] == b).sum() for b in names], (k + 1) * n / at.size
                ).pvalue
                for cell in around
            ]
            accepted[t] = np.mean(np.array(p) >= 0.05)
        score = kbet(Cells.of(Z, batch, labels))
        assert 0.05 < score < 0.95
        assert score == pytest.approx(np.mean(list(accepted.values())))

    def test_kbet_knows_mixed_and_apart(self, rng):
        _, labels, batch = make_labelled(rng, 300)
        Z = rng.normal(size=(300, 3))
        assert kbet(Cells.of(Z, batch, labels)) > 0.9
        apart = 50.0 * (batch[:, None] == np.array(list("xyz")))
        assert kbet(Cells.of(Z + apart, batch, labels)) == 0.0

    def test_kbet_without_a_type_to_test(self, rng):
        assert np.isnan(kbet(Cells.of(rng.normal(size=(30, 2)), ["x", "y"] * 15, ["a", "b"] * 15)))

    def test_variance_is_that_of_principal_components(self, rng):
        Z, _, batch = make_labelled(rng, 120)
        Z = np.column_stack([Z, Z[:, 0] + Z[:, 1], np.full(120, 7.0)])  # components of no variance
        U, s, _ = np.linalg.svd(Z - Z.mean(0), full_matrices=False)
        onehot = (batch[:, None] == np.array(list("xyz"))).astype(float)
        r2 = []
        for pc in (U * s).T[:4]:
            left = pc - onehot @ np.linalg.lstsq(onehot, pc, rcond=None)[0]
            r2.append(1 - (left**2).sum() / (pc**2).sum())
        expected = np.average(r2, weights=s[:4] ** 2)
        assert 0.05 < expected < 0.95
        assert batch_variance(Z, Labels.of(batch, 120)) == pytest.approx(expected)
        assert batch_variance(np.ones((120, 2)), Labels.of(batch, 120)) == 0.0


class TestSample:
    def test_every_group_keeps_its_share(self, rng):
        sizes = [1000, 400, 90, 3, 1]
        cell_type = rng.permutation(np.repeat(np.arange(5), sizes))
        batch = rng.integers(0, 2, cell_type.size)
        labels = [Labels.of(x, cell_type.size) for x in (batch, cell_type)]
        rows = sample(*labels, 150, seed=1)
        assert (np.diff(rows) > 0).all()
        for t in range(5):
            for b in range(2):
                n = ((cell_type == t) & (batch == b)).sum()
                kept = ((cell_type[rows] == t) & (batch[rows] == b)).sum()
                assert kept == np.ceil(n * 150 / cell_type.size)
        np.testing.assert_array_equal(rows, sample(*labels, 150, seed=1))
        assert not np.array_equal(rows, sample(*labels, 150, seed=2))

    def test_few_cells_are_all_taken(self):
        labels = Labels.of(["a", "b"] * 10, 20)
        np.testing.assert_array_equal(sample(labels, labels, 20, seed=0), np.arange(20))


def test_a_missing_library_is_one_sentence(rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "scib_metrics", None)
    Z, labels, batch = make_labelled(rng, 50)
    with pytest.raises(MissingExtra, match=r"Expected scib-metrics .* 'scbatchprox\[bench\]'"):
        scib(Z, batch, labels)
