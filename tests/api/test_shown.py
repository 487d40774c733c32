"""Objects print what a person would ask of them."""

import numpy as np
import pytest

from scbatchprox import (
    Adam,
    Atlas,
    BatchProx,
    Exact,
    Moments,
    MomentTarget,
    PopulationTarget,
    Problem,
    Weights,
    diagnose,
    refine_file,
)


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
        assert "verdicts: 2 safe, 1 not examined" in repr(model)

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
        import anndata as ad
        import pandas as pd

        Z, batch = cells
        obs = pd.DataFrame({"batch": batch}, index=np.arange(600).astype(str))
        ad.AnnData(obs=obs, obsm={"X_pca": Z}).write_h5ad(tmp_path / "x.h5ad")
        assert "safe" in repr(refine_file(tmp_path / "x.h5ad", "batch"))


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
        for name in table.columns.drop("verdict"):
            if table[name].notna().any():
                assert all(word in words for word in name.split("_"))

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
        batch = np.repeat(np.arange(200), 30)
        Z = rng.normal(size=(6000, 4))
        Z[batch >= 190] *= 5.0
        Z[batch >= 190] += 40.0 * rng.normal(size=(10, 4)).repeat(30, 0)
        table = diagnose(Z, batch, target="moment")
        lines = str(table).splitlines()
        assert "and 160 more batches; those with the worst verdicts are shown" in lines
        assert len(lines) < 110
        bad = table.index[table["verdict"].str.startswith("leave alone")]
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
