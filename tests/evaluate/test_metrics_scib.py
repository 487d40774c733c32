"""The scores of scIB, compared with the library if it has the same definition, and with their formulas."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

from scbatchprox.errors import MissingExtra
from scbatchprox.evaluate import (
    compare,
    ilisi,
    leave_one_batch_out_f1,
    macro_f1,
    mixing_within_types,
    over_correction,
    scib,
    scores,
    silhouette,
)
from scbatchprox.evaluate import scib_scores as module
from scbatchprox.evaluate.cells import ScoredCells, sample
from scbatchprox.evaluate.mixing import kbet

pytestmark = pytest.mark.bench
try:
    library = module.scib_library()
except MissingExtra as error:
    pytest.skip(str(error), allow_module_level=True)

#: One size for most tests: the library compiles for each.
N = 150
BIO = ["nmi", "ari", "asw_cell", "isolated_f1", "clisi"]
BATCH = ["asw_batch", "ilisi", "kbet", "graph_connectivity", "pcr"]


@pytest.fixture
def cells(rng):
    """Return three types in three batches, one type in only two of them; types and batches shift cells."""
    cell_type, batch = rng.choice(list("abc"), N, p=[0.5, 0.3, 0.2]), rng.choice(list("xyz"), N)
    cell_type[(cell_type == "c") & (batch == "z")] = "a"
    Z = rng.normal(size=(N, 4))
    for labels, width in ((cell_type, 1.5), (batch, 0.7)):
        for label in np.unique(labels):
            Z[labels == label] += width * rng.normal(size=4)
    return Z, batch, cell_type


def around(Z, k):
    """Return the nearest cells, the cell itself first, from all distances."""
    D = np.linalg.norm(Z[:, None] - Z[None], axis=2)
    np.fill_diagonal(D, -1.0)
    near = np.argsort(D, axis=1)[:, :k]
    return near, np.take_along_axis(np.maximum(D, 0.0), near, axis=1)


class TestFormulas:
    """Independent of the library."""

    def test_means_are_the_papers(self, cells):
        found = scib(*cells)
        assert list(found) == [*BIO, *BATCH, "bio", "batch", "overall", "asw_batch_scib"]
        assert all(0.0 < value < 1.0 for value in found.values())
        assert found["bio"] == pytest.approx(np.mean([found[name] for name in BIO]))
        assert found["batch"] == pytest.approx(np.mean([found[name] for name in BATCH]))
        assert found["overall"] == pytest.approx(0.6 * found["bio"] + 0.4 * found["batch"])

    @pytest.mark.parametrize("which", ["ilisi", "clisi"])
    def test_lisi(self, cells, which):
        """Gaussian weights whose entropy is log(30), found by a root finder."""
        Z, batch, cell_type = cells
        labels = batch if which == "ilisi" else cell_type
        near, distance = around(Z, 90)
        values = []
        for others, d in zip(near[:, 1:], distance[:, 1:], strict=True):

            def entropy(log_beta, d=d):
                p = np.exp(-(d - d.min()) * np.exp(log_beta))
                p /= p.sum()
                return -(p * np.log(np.maximum(p, 1e-300))).sum() - np.log(30)

            p = np.exp(-(d - d.min()) * np.exp(brentq(entropy, -10, 10)))
            p /= p.sum()
            values.append(1 / sum(p[labels[others] == kind].sum() ** 2 for kind in set(labels)))
        lisi, n = np.median(values), len(set(labels))
        expected = (lisi - 1) / (n - 1) if which == "ilisi" else (n - lisi) / (n - 1)
        assert scib(*cells)[which] == pytest.approx(expected, abs=1e-4)

    def test_graph_connectivity(self, cells):
        """The largest connected set of cells of a type, along edges to nearest neighbours."""
        Z, _, cell_type = cells
        near, _ = around(Z, 15)
        shares = []
        for kind in "abc":
            members = set(np.flatnonzero(cell_type == kind))
            edges = {i: members & set(near[i]) for i in members}
            reached = {i: self.reach(i, edges) for i in members}
            largest = max(
                sum(j in reached[i] and i in reached[j] for j in members) for i in members
            )
            shares.append(largest / len(members))
        assert min(shares) < 1.0
        assert scib(*cells)["graph_connectivity"] == pytest.approx(np.mean(shares))

    def reach(self, start, edges):
        seen, pending = {start}, [start]
        while pending:
            new = edges[pending.pop()] - seen
            seen |= new
            pending += new
        return seen

    def test_asw(self, cells):
        Z, _, cell_type = cells
        assert scib(*cells)["asw_cell"] == pytest.approx((silhouette(Z, cell_type) + 1) / 2)


class TestAgainstTheLibrary:
    def test_silhouettes(self, cells):
        Z, batch, cell_type = cells
        found = scib(*cells)
        assert found["asw_cell"] == pytest.approx(
            float(library.silhouette_label(Z, cell_type)), abs=1e-5
        )
        assert found["asw_batch_scib"] == pytest.approx(
            float(library.silhouette_batch(Z, cell_type, batch)), abs=1e-5
        )

    def test_pcr(self, cells, rng):
        Z, batch, cell_type = cells
        explained = library.utils.principal_component_regression(Z, batch, categorical=True)
        before = Z + 2.0 * (batch == "x")[:, None]
        found = scib(Z, batch, cell_type, before=before)
        assert found["pcr"] == pytest.approx(1 - explained, abs=1e-5)
        compared = library.pcr_comparison(before, Z, batch, categorical=True)
        assert 0.1 < compared < 0.9
        assert found["pcr_comparison"] == pytest.approx(compared, abs=1e-5)
        assert scib(before, batch, cell_type, before=Z)["pcr_comparison"] == 0.0

    def test_kbet_tests_as_the_library_does(self, cells):
        Z, batch, cell_type = cells
        accepted = []
        for kind in "abc":
            at = cell_type == kind
            k = max(10, int(at.sum() / len(set(batch[at])) / 4))
            indices, lengths = around(Z[at], k + 1)
            near = library.nearest_neighbors.NeighborsResults(indices=indices, distances=lengths)
            accepted.append(library.kbet(near, batch[at])[0])
        assert 0.0 < np.mean(accepted) < 1.0
        assert kbet(ScoredCells.of(*cells)) == pytest.approx(np.mean(accepted))

    def test_lisi_and_graph_equal_the_librarys(self, cells):
        """The library searches neighbours itself, approximately."""
        Z, batch, cell_type = cells
        near = library.nearest_neighbors.jax_approx_min_k(Z, 90)
        found = scib(*cells)
        assert found["ilisi"] == pytest.approx(float(library.ilisi_knn(near, batch)), abs=1e-3)
        assert found["clisi"] == pytest.approx(float(library.clisi_knn(near, cell_type)), abs=1e-3)


class TestWhatIsNotDefined:
    def test_one_batch(self, cells):
        Z, _, cell_type = cells
        found = scib(Z, ["x"] * N, cell_type, before=Z)
        nan = {name for name, value in found.items() if np.isnan(value)}
        assert nan == {*BATCH, "batch", "overall", "asw_batch_scib", "pcr_comparison"}
        assert found["bio"] == pytest.approx(np.mean([found[name] for name in BIO]))

    def test_one_type(self, cells):
        Z, batch, _ = cells
        found = scib(Z, batch, ["a"] * N)
        nan = {name for name, value in found.items() if np.isnan(value)}
        assert nan == {*BIO, "bio", "overall"}
        assert found["batch"] == pytest.approx(np.mean([found[name] for name in BATCH]))

    def test_no_type_that_can_be_tested(self, cells):
        """KBET is NaN if each type is in one batch; Batch is the mean of the other scores."""
        Z, _, cell_type = cells
        found = scib(Z, cell_type, cell_type)
        assert np.isnan(found["kbet"])
        others = [found[name] for name in BATCH if name != "kbet"]
        assert found["batch"] == pytest.approx(np.mean(others))

    def test_constant_embedding(self, cells):
        _, batch, cell_type = cells
        found = scib(np.ones((N, 3)), batch, cell_type, before=np.ones((N, 3)))
        assert found["nmi"] == found["ari"] == 0.0
        assert found["asw_cell"] == 0.5
        assert found["asw_batch"] == found["pcr"] == 1.0
        assert np.isnan(found["pcr_comparison"])
        assert np.isfinite(found["overall"])

    def test_few_cells(self, rng):
        Z, batch, cell_type = rng.normal(size=(12, 2)), ["x", "y"] * 6, ["a", "b", "b"] * 4
        found = scib(Z, batch, cell_type)
        assert all(-0.5 <= value <= 1.0 for name, value in found.items() if name != "kbet")
        with pytest.raises(ValueError, match="at least 10 cells to score, found 9"):
            scib(Z[:9], batch[:9], cell_type[:9])

    def test_bad_input(self, cells):
        with pytest.raises(ValueError, match="profile to be one of 'full', 'fast', found 'slow'"):
            scib(*cells, profile="slow")
        with pytest.raises(ValueError, match=rf"same cells as Z \({N}\), found {N - 1}"):
            scib(*cells, before=cells[0][1:])
        with pytest.raises(ValueError, match="at least one run, found 0"):
            scores(*cells, runs=0)


def test_containers_and_precision_do_not_matter(cells):
    Z, batch, cell_type = cells
    expected = scib(*cells, seed=1)
    found = scib(
        pd.DataFrame(np.asfortranarray(Z)),
        pd.Categorical(batch, categories=list("qzyx")),
        pd.Series(cell_type, index=np.arange(N)[::-1], dtype="category"),
        seed=1,
    )
    assert found == expected
    single = scib(Z.astype(np.float32), batch, cell_type, seed=1)
    assert single == pytest.approx(expected, abs=1e-4)
    assert scib(Z + 1e5, batch, cell_type, seed=1) == pytest.approx(expected, abs=1e-4)


def test_fast_is_full_on_a_sample(cells, rng, monkeypatch):
    monkeypatch.setattr(module, "FAST_CELLS", 100)
    Z, batch, cell_type = cells
    whole = ScoredCells.of(*cells)
    rows = sample(whole.batch, whole.cell_type, 100, seed=3)
    assert 100 <= rows.size < 110
    before = Z + rng.normal(size=Z.shape)
    fast = scib(*cells, before=before, profile="fast", seed=3)
    of_sample = scib(Z[rows], batch[rows], cell_type[rows], before=before[rows], seed=3)
    assert fast == of_sample
    assert fast != scib(*cells, before=before, seed=3)


def test_scores_are_those_of_the_single_functions(cells):
    Z, batch, cell_type = cells
    found = scores(*cells, before=Z, runs=3, seed=5)
    f1 = [macro_f1(Z, cell_type, seed=seed) for seed in (5, 6, 7)]
    assert found["macro_f1"] == pytest.approx(np.mean(f1))
    assert found["macro_f1_sd"] == pytest.approx(np.std(f1))
    assert found["lobo_f1"] == leave_one_batch_out_f1(Z, cell_type, batch)
    assert found["silhouette"] == pytest.approx(silhouette(Z, cell_type))
    assert found["ilisi_30"] == pytest.approx(ilisi(Z, batch))
    assert found["mixing_within_types"] == pytest.approx(mixing_within_types(Z, batch, cell_type))
    assert found["over_correction"] == pytest.approx(over_correction(Z, batch, cell_type))
    assert found["variance_kept"] == found["neighbours_kept_in_batch"] == 1.0
    rest = scib(*cells, before=Z, seed=5)
    assert {name: found[name] for name in rest} == rest
    alone = scores(*cells)
    assert not {"macro_f1_sd", "variance_kept", "neighbours_kept_in_batch"} & set(alone)


class TestCompare:
    def test_numbers_and_changes(self, cells, rng):
        Z, batch, cell_type = cells
        after = Z - Z[batch == "x"].mean(0) * (batch == "x")[:, None]
        seen = []
        found = compare(
            {"before": Z, "after": after},
            batch,
            cell_type,
            runs=2,
            progress=lambda *x: seen.append(x),
        )
        for name, embedding in (("before", Z), ("after", after)):
            expected = scores(embedding, batch, cell_type, before=Z, runs=2)
            assert found.scores[name].to_dict() == expected
        assert list(found.change) == ["after"]
        assert "macro_f1_sd" not in found.change.index
        assert found.change.loc["pcr", "after"] == pytest.approx(
            found.scores.loc["pcr", "after"] - found.scores.loc["pcr", "before"]
        )
        assert set(found.stability["rep"]) == {"after"}
        assert seen == [("score", N, 2 * N), ("score", 2 * N, 2 * N)]

    def test_long_form_holds_every_number_once(self, cells):
        Z, batch, cell_type = cells
        found = compare({"a": Z, "b": 2 * Z, "c": 3 * Z}, batch, cell_type, runs=1)
        table = found.long()
        assert not table.duplicated(["rep", "kind", "name", "score"]).any()
        of_all = table[table["kind"] == "all cells"]
        assert len(of_all) == found.scores.size
        assert len(table) - len(of_all) == 4 * len(found.stability)
        row = of_all.query("rep == 'b' and score == 'pcr'").iloc[0]
        assert row["value"] == pytest.approx(found.scores.loc["pcr", "b"])
        assert row["change"] == pytest.approx(0.0, abs=1e-9)
        moved = table.query("rep == 'c' and kind == 'batch' and name == 'x' and score == 'moved'")
        expected = np.sqrt((4 * Z[batch == "x"] ** 2).sum(1).mean())
        assert moved["value"].item() == pytest.approx(expected)

    def test_one_embedding_alone(self, cells):
        Z, batch, cell_type = cells
        found = compare({"only": Z}, batch, cell_type, runs=1)
        assert found.stability.empty
        assert found.change.empty
        assert set(found.long()["rep"]) == {"only"}
        with pytest.raises(ValueError, match="at least one embedding"):
            compare({}, batch, cell_type)
