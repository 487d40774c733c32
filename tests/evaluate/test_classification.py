"""Scores of classifiers, compared with their definitions."""

import os
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.model_selection import train_test_split

from labelled_cells import distances, f1_of, make_labelled
from scbatchprox.evaluate import (
    affected_f1,
    f1_given_batch,
    ilisi,
    leave_one_batch_out_f1,
    macro_f1,
    scib,
    silhouette,
    stability,
)

DATA = Path(os.environ.get("SCBATCHPROX_DATA", "/nowhere"))


class TestMacroF1:
    def predictions(self, Z, labels, seed):
        """Return predictions at the minimum of the class-balanced logistic loss, found by scipy."""
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
        monkeypatch.setattr("scbatchprox.evaluate.classification._NEWTON", newton)
        Z, labels, _ = make_labelled(rng, 300, apart=0.7)
        truth, predicted = self.predictions(Z, labels, seed=3)
        scores = [f1_of(truth, predicted, kind) for kind in "abc"]
        assert 0.4 < np.mean(scores) < 0.95
        assert macro_f1(Z, labels, seed=3) == pytest.approx(np.mean(scores))
        for kind, score in zip("abc", scores, strict=True):
            assert affected_f1(Z, labels, kind, seed=3) == pytest.approx(score)

    def test_given_the_batch_it_is_that_of_more_coordinates(self, rng):
        Z, labels, batch = make_labelled(rng, 300, apart=0.7)
        own = 3.0 * (np.asarray(batch)[:, None] == np.unique(batch))
        truth, predicted = self.predictions(np.column_stack([Z, own]), labels, seed=3)
        expected = np.mean([f1_of(truth, predicted, kind) for kind in "abc"])
        assert f1_given_batch(Z, labels, batch, seed=3) == pytest.approx(expected)

    def test_a_batch_effect_is_no_merit_once_the_batch_is_given(self, rng):
        """Each batch has mostly one of two similar types: the place tells the batch, not the type."""
        batch = np.repeat(["one", "two"], 600)
        cell_type = np.where(rng.random(1200) < np.where(batch == "one", 0.9, 0.1), "a", "b")
        together = rng.normal(size=(1200, 4)) + 0.5 * (cell_type == "a")[:, None]
        apart = together + 8.0 * (batch == "one")[:, None] * [1, 0, 0, 0]
        plain, given = (
            [np.mean([score(Z, seed) for seed in range(5)]) for Z in (together, apart)]
            for score in (
                lambda Z, seed: macro_f1(Z, cell_type, seed=seed),
                lambda Z, seed: f1_given_batch(Z, cell_type, batch, seed=seed),
            )
        )
        assert plain[1] > plain[0] + 0.05
        assert given[1] == pytest.approx(given[0], abs=0.01)

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
        """A shift of all cells changes nothing; coordinates in the thousands cause no warning or error."""
        Z, labels, _ = make_labelled(rng, 200)
        assert macro_f1(Z + 1e4, labels) == pytest.approx(macro_f1(Z, labels))
        assert macro_f1(1e5 * Z, labels) > 0.5

    def test_types_of_one_cell_are_left_out(self, rng):
        Z, labels, _ = make_labelled(rng, 100, apart=0.7)
        more = np.append(labels, ["single", "other"])
        assert macro_f1(np.vstack([Z, Z[:2]]), more) == macro_f1(Z, labels)
        assert np.isnan(affected_f1(np.vstack([Z, Z[:2]]), more, "single"))

    def test_one_type_has_no_score(self, rng):
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


def test_macro_f1_of_perfect_and_useless_embeddings(rng):
    labels = np.repeat(["a", "b", "c"], [200, 100, 20])
    onehot = (labels[:, None] == np.array(["a", "b", "c"])).astype(np.float32)
    assert macro_f1(onehot, labels) == 1.0
    assert macro_f1(rng.normal(size=(320, 5)), labels) < 0.5


def test_macro_f1_is_the_mean_over_types(rng):
    """Compared with the definition, on the predictions of a classifier fitted to high precision."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    labels = rng.choice(["a", "b", "c"], 400, p=[0.6, 0.3, 0.1])
    Z = rng.normal(size=(400, 4)) + (labels == "b")[:, None] + 2 * (labels == "c")[:, None]
    train, test = train_test_split(np.arange(400), test_size=0.2, stratify=labels, random_state=0)
    model = LogisticRegression(class_weight="balanced", tol=1e-10, max_iter=10_000)
    predicted = model.fit(Z[train], labels[train]).predict(Z[test])
    scores = []
    for kind in "abc":
        hit = ((predicted == kind) & (labels[test] == kind)).sum()
        scores.append(2 * hit / ((predicted == kind).sum() + (labels[test] == kind).sum()))
    assert macro_f1(Z, labels) == pytest.approx(np.mean(scores))


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
                predicted.append(max(votes, key=votes.get))  # in a tie, the first name wins
            truth, predicted = np.array(truth), np.array(predicted)
            if seen:
                scores.append(np.mean([f1_of(truth, predicted, t) for t in seen]))
        return np.mean(scores)

    def test_is_the_definition(self, rng):
        Z, labels, batch = make_labelled(rng, 150, apart=1.0)
        labels[(labels == "a") & (batch != "x")] = "b"  # only batch x has type a
        assert set(labels[batch == "x"]) == set("abc")
        score = leave_one_batch_out_f1(Z, labels, batch, k=5)
        assert 0.3 < score < 0.95
        assert score == pytest.approx(self.expected(Z, labels, batch, 5))

    def test_types_of_one_batch_are_not_counted(self):
        """Cells of a type that no other batch has are not counted."""
        Z = np.array([[0.0], [0.1], [9.0], [9.1], [0.2], [9.2], [50.0]])
        labels, batch = list("aabbabc"), list("xxxxyyy")
        assert leave_one_batch_out_f1(Z, labels, batch, k=1) == 1.0

    def test_a_wrong_type_of_another_batch_lowers_only_recall(self):
        """The mean is only over types that the batch has."""
        Z = np.array([[0.0], [0.1], [5.0], [0.05], [0.15], [5.1], [4.9]])
        # x has three cells of type a. The third is next to cells of type b, which x does not have.
        labels, batch = list("aaaaabb"), list("xxxyyyy")
        in_x = 2 * 2 / (2 + 3)
        in_y = 1.0
        assert leave_one_batch_out_f1(Z, labels, batch, k=1) == pytest.approx(np.mean([in_x, in_y]))

    def test_no_answer(self, rng):
        Z = rng.normal(size=(30, 2))
        assert np.isnan(leave_one_batch_out_f1(Z, ["a", "b"] * 15, ["x"] * 30))
        assert np.isnan(leave_one_batch_out_f1(Z, ["a", "b"] * 15, ["x", "y"] * 15))

    def test_all_cells_vote_if_there_are_fewer_than_k(self):
        """The other batch has four or two cells. In a tie the first name wins: a is predicted."""
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
    """The silhouette widths in the design are of 2,500 random cells."""
    if not (DATA / f"{name}.h5ad").exists():
        pytest.skip(f"no {name}.h5ad in SCBATCHPROX_DATA")
    adata = ad.read_h5ad(DATA / f"{name}.h5ad")
    Z, batch, cell_type = adata.obsm[rep], adata.obs["batch"], adata.obs["cell_type"]
    assert leave_one_batch_out_f1(Z, cell_type, batch) == pytest.approx(lobo, abs=6e-4)
    assert ilisi(Z, batch) == pytest.approx(mixing, abs=6e-4)
    assert silhouette(Z, cell_type, max_cells=2500) == pytest.approx(width, abs=6e-4)
