"""The scores behind scIB, compared with their definitions."""

import os
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import silhouette_samples, silhouette_score

from data import labels_of
from labelled_cells import distances, f1_of, make_labelled, nearest
from scbatchprox.errors import MissingExtra, NotFinite
from scbatchprox.evaluate import scib, scores, silhouette
from scbatchprox.evaluate.cells import ScoredCells, sample
from scbatchprox.evaluate.clusters import Silhouettes, isolated_f1, nmi_ari
from scbatchprox.evaluate.mixing import Neighbours, asw_batch, asw_batch_scib, batch_variance, kbet

DATA = Path(os.environ.get("SCBATCHPROX_DATA", "/nowhere"))


class TestSilhouettes:
    def widths(self, D, labels):
        """Return silhouette widths by the definition, cell by cell."""
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
        labels[:3], batch[:3] = "z", ["x", "y", "z"]  # one cell in each batch
        labels[3:8], batch[3:8] = "w", "x"  # in one batch only
        found = Silhouettes.of(Z, labels_of(labels), labels_of(batch))
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
        types = labels_of(labels)
        assert asw_batch_scib(found, types) == pytest.approx(np.mean(list(in_type.values())))


class TestConservation:
    def test_nmi_and_ari_are_the_formulas(self, rng):
        """Any k-means finds clusters that are far apart; types do not follow the clusters."""
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
        found = nmi_ari(Z, labels_of(types), seed=0)
        assert found == pytest.approx((2 * mutual / sum(entropy), ari))

    def test_clustering_does_not_depend_on_the_seed(self, rng):
        """With eight distant clusters, a single start often merges two of them."""
        types = np.repeat(np.arange(8), 50)
        Z = 20.0 * rng.normal(size=(8, 3))[types] + rng.normal(size=(400, 3))
        for seed in range(3):
            assert nmi_ari(Z, labels_of(types), seed) == pytest.approx((1.0, 1.0))

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
        cells = ScoredCells.of(Z, batch, labels)
        score = isolated_f1(Neighbours.of(Z, 89).indices, cells.cell_type, cells.batch)
        assert score == pytest.approx(self.isolated(Z, labels, batch))
        Z[:rare] = 100 + rng.normal(size=(rare, 4))
        Z[rare : rare + 30] = -100 + rng.normal(size=(30, 4))
        cells = ScoredCells.of(Z, batch, labels)
        assert isolated_f1(Neighbours.of(Z, 89).indices, cells.cell_type, cells.batch) == 1.0

    def test_all_types_are_isolated_if_none_is(self, rng):
        Z, labels, batch = make_labelled(rng, 150, apart=1.0)
        cells = ScoredCells.of(Z, batch, labels)
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
        score = kbet(ScoredCells.of(Z, batch, labels))
        assert 0.05 < score < 0.95
        assert score == pytest.approx(np.mean(list(accepted.values())))

    def test_kbet_of_mixed_and_separate_batches(self, rng):
        _, labels, batch = make_labelled(rng, 300)
        Z = rng.normal(size=(300, 3))
        assert kbet(ScoredCells.of(Z, batch, labels)) > 0.9
        apart = 50.0 * (batch[:, None] == np.array(list("xyz")))
        assert kbet(ScoredCells.of(Z + apart, batch, labels)) == 0.0

    def test_kbet_without_a_type_to_test(self, rng):
        assert np.isnan(
            kbet(ScoredCells.of(rng.normal(size=(30, 2)), ["x", "y"] * 15, ["a", "b"] * 15))
        )

    def test_variance_is_that_of_principal_components(self, rng):
        Z, _, batch = make_labelled(rng, 120)
        Z = np.column_stack(
            [Z, Z[:, 0] + Z[:, 1], np.full(120, 7.0)]
        )  # components without variance
        U, s, _ = np.linalg.svd(Z - Z.mean(0), full_matrices=False)
        onehot = (batch[:, None] == np.array(list("xyz"))).astype(float)
        r2 = []
        for pc in (U * s).T[:4]:
            left = pc - onehot @ np.linalg.lstsq(onehot, pc, rcond=None)[0]
            r2.append(1 - (left**2).sum() / (pc**2).sum())
        expected = np.average(r2, weights=s[:4] ** 2)
        assert 0.05 < expected < 0.95
        assert batch_variance(Z, labels_of(batch)) == pytest.approx(expected)
        assert batch_variance(np.ones((120, 2)), labels_of(batch)) == 0.0


class TestSample:
    def test_every_group_keeps_its_share(self, rng):
        sizes = [1000, 400, 90, 3, 1]
        cell_type = rng.permutation(np.repeat(np.arange(5), sizes))
        batch = rng.integers(0, 2, cell_type.size)
        labels = [labels_of(x) for x in (batch, cell_type)]
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
        labels = labels_of(["a", "b"] * 10)
        np.testing.assert_array_equal(sample(labels, labels, 20, seed=0), np.arange(20))


def test_a_missing_library_is_one_sentence(rng, monkeypatch):
    monkeypatch.setitem(sys.modules, "scib_metrics", None)
    Z, labels, batch = make_labelled(rng, 50)
    for score in (scib, scores):
        with pytest.raises(MissingExtra, match=r"Expected scib-metrics .* 'scbatchprox\[scib\]'"):
            score(Z, batch, labels)
    assert "macro_f1" in scores(Z, batch, labels, partial=True)


@pytest.mark.parametrize("size", [1e150, 1e200, 1e300, 1.7e308])
def test_values_whose_squares_overflow_are_refused(rng, size):
    Z = np.clip(rng.normal(size=(60, 3)), -1, 1) * size
    with pytest.raises(NotFinite, match="Expected values of moderate size"):
        scores(Z, np.tile(["a", "b"], 30), np.repeat(["T", "B"], 30))
