"""Objects print what a person would ask of them."""

from dataclasses import is_dataclass

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import scbatchprox.atlas
import scbatchprox.evaluate
import scbatchprox.upstream
from data import labels_of
from scbatchprox import (
    Adam,
    Atlas,
    BatchProx,
    Exact,
    Method,
    Moments,
    MomentTarget,
    PopulationTarget,
    Problem,
    Weights,
    diagnose,
    refine_file,
)
from scbatchprox.core.shown import Changed, PrintsFacts
from scbatchprox.evaluate import Comparison
from scbatchprox.evaluate.comparison import Scored
from scbatchprox.upstream import PCAUpstream


@pytest.fixture
def cells(rng):
    Z = rng.normal(size=(600, 5)) + 8.0 * rng.integers(0, 3, size=(600, 1))
    return Z, np.repeat(["a", "b", "c"], 200)


class TestModel:
    def test_an_unfitted_one_is_its_parameters(self):
        assert repr(BatchProx(rounds=3)) == "BatchProx(rounds=3)"

    def test_a_fitted_one(self, cells):
        Z, batch = cells
        model = BatchProx().fit(Z, batch=batch)
        said = repr(model)
        for fact in ("600, 5 coordinates", "3 (a, b, c)", "PopulationTarget(), 10 rounds"):
            assert fact in said
        assert f"{model.movement()['relative'].max():.2f} of the spread" in said
        assert "not examined" in said
        table = diagnose(Z, batch, model=model)
        assert model.diagnosis_ is table
        levels = model.diagnosis_["verdict"].str.split(":").str[0].value_counts()
        assert f"verdicts: {levels.iloc[0]} {levels.index[0]}" in repr(model)

    def test_of_which_some_batches_were_examined(self, cells):
        Z, batch = cells
        model = BatchProx(target="moment").fit(Z, batch=batch)
        diagnose(Z[batch != "c"], batch[batch != "c"], model=model)
        assert ", 1 not examined" in repr(model)

    def test_a_published_one(self, cells):
        Z, batch = cells
        model = BatchProx().fit(Z, batch=batch).published()
        assert "600 cells in 3 batches that are not in this model" in repr(model)
        assert "600 cells in 3 batches elsewhere" in repr(model.fit_)
        model.partial_fit(Z[:200], batch=["new"] * 200)
        for fact in ("cells: 200, ", "1 (new)", "600 cells in 3 batches"):
            assert fact in repr(model)

    def test_in_a_notebook(self, cells):
        Z, _ = cells
        batch = np.repeat(["<b>", "b", "c"], 200)
        page = BatchProx(target="moment").fit(Z, batch=batch)._repr_mimebundle_()["text/html"]
        assert "3 (&lt;b&gt;, b, c)" in page
        assert "(<b>" not in page
        assert "MomentTarget(), 3 rounds" in page

    def test_a_file_was_examined(self, cells, tmp_path):
        Z, batch = cells
        obs = pd.DataFrame({"batch": batch}, index=np.arange(600).astype(str))
        ad.AnnData(obs=obs, obsm={"X_pca": Z}).write_h5ad(tmp_path / "x.h5ad")
        shown = repr(refine_file(tmp_path / "x.h5ad", "batch"))
        assert (
            " no effect found" in shown or " effect removed" in shown or " weak evidence" in shown
        )


def test_objects_of_the_corridor(cells):
    Z, batch = cells
    moments = Moments.of(Z, batch)
    problem = Problem.of(moments, MomentTarget()(moments), Weights())
    solution = Exact().solve(problem, rounds=3)
    fitted = BatchProx(target="moment", rounds=None).fit(Z, batch=batch)
    for shown, facts in (
        (moments, ("Moments", "600 cells", "3 batches (a, b, c)", "5 coordinates")),
        (moments.pooled(), ("Pooled", "600 cells in 3 batches")),
        (problem.target, ("Target", "3 rows", "5 coordinates")),
        (problem, ("Problem", "3 rows", "mu=0.001")),
        (solution, ("Solution", "3 rounds", "not converged")),
        (solution.history, ("History", "3 rounds", f"to {solution.history.distance[-1]:.3g}")),
        (fitted.history_, ("the fixed point",)),
        (fitted.adapter_, ("Adapter", "3 batches (a, b, c)", "5 coordinates")),
        (fitted.fit_, ("Fit", "600 cells", "MomentTarget()", "the fixed point")),
        (BatchProx().fit(Z, batch=batch).adapter_, ("60 rows",)),
    ):
        assert "\n" not in repr(shown)
        for fact in facts:
            assert fact in repr(shown)


def test_many_batches_are_not_all_named(cells):
    shown = repr(Moments.of(cells[0], np.arange(600) % 40))
    assert "40 batches (0, 1, 2, 3 and 36 more)" in shown


@pytest.mark.parametrize(
    "rule",
    [PopulationTarget(), PopulationTarget(seed=3), MomentTarget(eps=0.1), Adam(seed=2), Adam()],
)
def test_options_print_what_was_changed(rule):
    assert eval(repr(rule)) == rule
    assert len(repr(rule)) < 40


def test_atlas(cells, tmp_path):
    atlas = Atlas.create(tmp_path / "lung")
    atlas.add(*cells)
    assert repr(atlas) == "<Atlas lung: version 2, 3 batches, 600 cells; target 'population'>"


class TestAtlas:
    @pytest.fixture
    def atlas(self, cells, tmp_path, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        atlas = Atlas.create(tmp_path / "lung", target="moment")
        Z, batch = cells
        atlas.add(Z[batch != "c"], batch[batch != "c"])
        return atlas

    def test_arrivals(self, atlas, cells):
        Z, batch = cells
        new = Z[batch == "c"], [f"<GSM433970>_{'filtered_' * 5}matrix"] * 200
        for dry, words in ((True, "judged but not added"), (False, "added as version 3")):
            arrival = atlas.add(*new, dry_run=dry)
            lines = repr(arrival).splitlines()
            assert lines[0] == f"<Arrival: 1 batch, 200 cells, {words}>"
            assert max(map(len, lines)) <= 80
            told = " ".join(repr(arrival).split())
            assert f"{new[1][0]}: {arrival.judgement['advice'].iloc[0]}" in told
            assert f"{arrival.judgement['distance'].iloc[0]:.2f}" in told
            assert "<GSM" not in arrival._repr_html_()
            assert words in arrival._repr_html_()

    def test_differences(self, atlas, cells):
        Z, batch = cells
        atlas.add(Z[batch == "c"], batch[batch == "c"])
        atlas.forget("b", policy="refit")
        found = atlas.diff(2, 4)
        lines = repr(found).splitlines()
        assert lines[0] == (
            "<Diff: 1 batch (c) added, 1 batch (b) removed, 1 in both, of which 0 are identical>"
        )
        assert f"{found.rows['mean_moved'].iloc[0]:.2f}" in lines[-1]
        assert lines[-1].startswith("a ")
        assert "no batch added, no batch removed" in repr(atlas.diff(2, 2))
        assert "<table" in found._repr_html_()

    def test_the_log(self, atlas, cells):
        Z, batch = cells
        atlas.add(Z[batch == "c"], [f"GSM433970_{'filtered_' * 5}matrix"] * 200)
        atlas.rollback(2)
        log = atlas.log()
        for lines in (repr(log).splitlines(), str(log).splitlines()):
            assert max(map(len, lines)) <= 80
            assert len(lines) == 5
            for line, word in zip(
                lines[1:], ("init", "+a, +b", "+GSM433970", "-GSM433970"), strict=True
            ):
                assert word in line
            assert lines[2].endswith(log["sha256"][2][:8])
            assert "400" in lines[2]
        assert type(log[["sha256"]]).__name__ == "DataFrame"
        assert "rollback to 2" in log._repr_html_()


def test_upstreams(rng):
    genes = pd.DataFrame(index=[f"g{i}" for i in range(30)])
    adata = ad.AnnData(rng.poisson(3.0, (60, 30)).astype(np.float32), var=genes)
    pca = PCAUpstream.fit(adata, n_components=4, genes="all")
    mark = pca.fingerprint[:12]
    assert repr(pca) == f"<PCAUpstream: 4 coordinates from 30 genes; {mark}>"
    found = pca.embed(adata[:, 3:])
    assert repr(found) == f"<Embedded: 60 cells, 4 coordinates from 27 of 30 genes; {mark}>"
    assert repr(found.report) == f"<GeneReport: {str(found.report).removesuffix('.')}>"


def test_comparisons(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    index = pd.Index(["macro_f1", "ilisi"], name="score")
    scores = pd.DataFrame({f"X_{'long_name_' * 4}{i}": [0.8, 0.125 * i] for i in range(3)}, index)
    found = Comparison(scores, pd.DataFrame())
    labels = labels_of(["a", "b"])
    for shown in (found, Scored(found, labels, labels, 10, 8)):
        assert "3 embeddings" in repr(shown)
        assert "2 scores" in repr(shown)
        assert repr(shown).splitlines()[-1].split() == ["ilisi", "0.00", "0.12", "0.25"]
        assert "0.25" in shown._repr_html_()
    assert "2 of 10 cells" in repr(shown)


PRINTED = {Exact, Method, Weights}  # a few short options, all of which matter


def test_no_public_object_prints_its_fields():
    """A new dataclass gets a repr of its own, or is one of options."""
    for module in (scbatchprox, scbatchprox.atlas, scbatchprox.upstream, scbatchprox.evaluate):
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, type) and is_dataclass(thing) and thing not in PRINTED:
                assert issubclass(thing, PrintsFacts | Changed), name


class TestDiagnosis:
    def test_fits_a_screen_with_whole_verdicts(self, cells, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        Z, batch = cells
        table = diagnose(Z + 30 * (batch == "b")[:, None], batch, target="moment", rounds=None)
        lines = str(table).splitlines()
        assert max(map(len, lines)) <= 80
        words = " ".join(str(table).split())
        for verdict in table["verdict"]:
            assert verdict in words
        details = ["support", "chance", "gain", "smooth", "removed"]
        for name in table.columns.drop(["level", "reasons", "verdict", *details]):
            if table[name].notna().any():
                # A long word is split, as "evid-ence".
                assert all(word[:4] in words for word in name.split("_"))

    @pytest.mark.parametrize("n_kept", [1, 2, 3])
    def test_columns_to_keep_are_sentences(self, cells, monkeypatch, rng, n_kept):
        """They are the same for all batches, and would make the table too wide."""
        monkeypatch.setenv("COLUMNS", "80")
        Z, batch = cells
        names = [f"a long name of condition {i}" for i in range(n_kept)]
        keep = {name: rng.choice(["x", "y"], 600) for name in names}
        Z = Z + 6.0 * np.stack([values == "x" for values in keep.values()], 1) @ rng.normal(
            size=(n_kept, 5)
        )
        table = diagnose(Z, batch, keep=keep)
        assert set(names) <= {name.removesuffix(" removed") for name in table}
        lines = str(table).splitlines()
        assert max(map(len, lines)) <= 80
        words, page = " ".join(str(table).split()), table._repr_html_()
        for name in names:
            told = f"{name}: batches tell {table[f'{name} confounded'].iloc[0]:.0%} of it; "
            assert told in words
            assert told in page
            assert f"{abs(table[f'{name} removed'].iloc[0]):.0%} of the variance" in words

    def test_names_of_files_as_batches(self, cells, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        names = [f"GSM43397{i}_C14{i}_filtered_feature_bc_matrix" for i in range(3)]
        table = diagnose(cells[0], np.repeat([*names[:2], "a\nb"], 200), keep={"c": cells[1]})
        lines = str(table).splitlines()
        assert max(map(len, lines)) <= 80
        assert sum(line.startswith("GSM43397") and "…" in line for line in lines) == 2
        assert r"a\x0ab" in str(table)
        for name in names[:2]:  # whole, with its verdict
            assert name in str(table)

    def test_of_many_batches(self, rng, monkeypatch):
        monkeypatch.setenv("COLUMNS", "80")
        batch = np.repeat(np.arange(200), 60)
        Z = rng.normal(size=(12_000, 4))
        alone = batch >= 190  # these have one type, elsewhere
        Z[~alone] += 12.0 * rng.normal(size=(5, 4))[rng.integers(0, 5, 11_400)]
        Z[alone] += 12.0 * rng.normal(size=(10, 4)).repeat(60, 0)
        table = diagnose(Z, batch, target="moment")
        lines = str(table).splitlines()
        assert "and 160 more batches; those with the worst verdicts are shown" in lines
        assert len(lines) < 110
        bad = table.index[table["level"] == "nothing to compare with"]
        assert 0 < len(bad) < 40
        shown = {line.split()[0] for line in lines[: lines.index("")]}
        assert set(map(str, bad)) <= shown
        assert table._repr_html_().count("<li>") < 20

    def test_a_selection_is_a_common_data_frame(self, cells):
        table = diagnose(*cells)
        assert type(table[["moved"]]).__name__ == "DataFrame"
        assert repr(table[["moved"]]).splitlines()[0].strip() == "moved"

    def test_labels_are_escaped(self, cells):
        table = diagnose(cells[0], np.repeat(["<script>", "b", "c"], 200))
        assert "<script>" not in table._repr_html_()
