"""Verdicts are data: reasons are numbers beyond their limits, and words are made of them."""

import ast
import re
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import scbatchprox
from report_cells import make_cells
from scbatchprox import diagnose, pl, refine, report
from scbatchprox.diagnosis.judge import (
    judge_arriving,
    judge_batch,
    judge_kept,
    judge_place,
    together,
)
from scbatchprox.diagnosis.kept import Kept
from scbatchprox.diagnosis.levels import Level
from scbatchprox.diagnosis.printed import Diagnosis
from scbatchprox.diagnosis.verdict import COLUMNS, verdict_columns, verdicts_of
from scbatchprox.diagnosis.words import NEARNESS, place_sentence, sentence, why
from scbatchprox.plots.verdicts import LEVELS as COLOURS

ROOT = Path(scbatchprox.__file__).parent
KEY = "X_pca_batchprox"
#: Numbers that are reasons where they are small; all others are where they are large.
SMALL = ("n_cells", "matched", "distinct", "scale_min", "neighbours_kept")
PARTS = st.floats(0, 1) | st.sampled_from([0.25, 0.3, 0.5, 0.6, 0.7, 0.9, 1.0, np.nan])
NUMBERS = st.fixed_dictionaries(
    {
        "n_cells": st.integers(1, 60), "moved": st.floats(0, 1.2), "scale_min": st.floats(0.3, 1.0),
        "scale_max": st.floats(1.0, 2.5), "matched": PARTS, "composition": PARTS, "distinct": PARTS,
        "neighbours_kept": PARTS,
    }
)  # fmt: skip
KEPT = st.lists(
    st.builds(Kept, st.sampled_from(["condition", "b", "a, b", "a/b"]), PARTS, PARTS),
    max_size=3, unique_by=lambda column: column.name,
)  # fmt: skip
PLACES = st.fixed_dictionaries(
    {
        "moved": st.floats(0, 1.2), "distance": st.floats(0, 5), "nearest_distance": st.floats(0, 5),
        "spread_ratio": st.floats(0.1, 10) | st.just(np.nan),
    },
    optional={"matched": PARTS},
)  # fmt: skip


def check_reasons(verdict, numbers, by_mean):
    assert verdict.level.fine == (verdict.reasons == ())
    assert len(set(verdict.names)) == len(verdict.names)
    for reason in verdict.reasons:
        if by_mean and reason.name == "matched":
            assert np.isnan(reason.value)  # that it is unknown is the reason
            continue
        assert reason.value == numbers[reason.name]
        small = reason.name in SMALL or (reason.name == "spread_ratio" and reason.limit < 1)
        beyond = (reason.limit - reason.value) * (1 if small else -1)
        # A limit such as 1 - 0.3 is rounded; a column is confounded at its limit already.
        assert beyond > -1e-12 if reason.name != "n_cells" else beyond > 0


def judged(numbers, kept, by_moments, by_mean):
    """The verdict on a batch, and all of its numbers."""
    numbers = numbers | ({"matched": np.nan} if by_mean else {})
    verdict = together(judge_kept(kept), judge_batch(numbers, by_moments, by_mean))
    return verdict, numbers | {name: x for column in kept for name, x in column.numbers.items()}


@given(NUMBERS, KEPT, st.booleans(), st.booleans())
def test_reasons_are_numbers_beyond_their_limits_and_in_the_words(
    numbers, kept, by_moments, by_mean
):
    verdict, numbers = judged(numbers, kept, by_moments, by_mean)
    check_reasons(verdict, numbers, by_mean)
    text = sentence(verdict, numbers)
    assert text == str(verdict.level) or text.startswith(f"{verdict.level}: ")
    for reason in verdict.reasons:
        name, _, measure = reason.name.rpartition(" ")
        if measure == "confounded":
            assert f"one value of {name!r}" in text
        elif reason.name == "distinct":
            assert "populations overlap" in text
        elif np.isnan(reason.value):
            assert "it lies apart from all others" in text
        else:
            x = reason.value
            assert any(
                said in text for said in (f"{x:.2f}", f"{x:.0%}", f"{1 - x:.0%}", f" {x:g} ")
            )


@given(NUMBERS, KEPT, st.booleans(), st.booleans())
def test_a_table_gives_its_verdicts_back(numbers, kept, by_moments, by_mean):
    verdict, numbers = judged(numbers, kept, by_moments, by_mean)
    columns = verdict_columns([verdict])
    table = pd.DataFrame([numbers]).assign(**columns, verdict=sentence(verdict, numbers))
    (found,) = verdicts_of(table[sorted(table)])  # a file has columns in the order of the alphabet
    assert (found.level, found.names) == (verdict.level, verdict.names)
    assert sentence(found, numbers) == table["verdict"].item()
    assert why(table["verdict"].item(), verdict.level) in table["verdict"].item()


@given(PLACES, st.booleans())
def test_reasons_of_advice_on_new_batches(numbers, by_mean):
    numbers = numbers | ({"matched": np.nan} if by_mean else {})
    place, advice = judge_place(numbers), judge_arriving(numbers, by_mean)
    check_reasons(place, numbers, False)
    check_reasons(advice, numbers, by_mean)
    text = place_sentence(place, numbers)
    assert text.startswith(f"{NEARNESS[place.level]}: ")
    assert all(f"{reason.value:.3g}" in text for reason in place.reasons)
    assert advice.level.rank >= place.level.rank
    if place.level.needs_force:
        assert advice == place


def test_a_batch_that_may_not_be_moved_names_only_the_reason_that_decides():
    far = {"matched": 0.1, "moved": 0.9, "neighbours_kept": 0.1}
    assert judge_batch(far).names == ["matched"]
    against = judge_kept([Kept("a", 0.95, 0.1), Kept("b", 0.95, 0.6)])
    assert against.names == ["b confounded", "b removed"]
    assert together(against, judge_batch(far)) == against
    assert together(judge_kept([Kept("a", 0.95, 0.1)]), judge_batch(far)) == judge_batch(far)


def test_the_only_batch_has_no_other_number_as_a_reason():
    table = diagnose(np.random.default_rng(0).normal(size=(50, 3)), ["a"] * 50)
    assert table[list(COLUMNS)].loc["a"].tolist() == [
        "leave alone", "n_batches", "leave alone: there is no other batch to align it with",
    ]  # fmt: skip
    (found,) = verdicts_of(table)
    assert found.names == ["n_batches"]


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_level_and_reasons_are_stored(tmp_path, kind):
    cells = make_cells()
    cells.obs["a/b"] = cells.obs["condition"]
    refine(cells, "batch", keep="a/b")
    del cells.obs["a/b"]
    made = pd.DataFrame(cells.uns[KEY]["diagnosis"])
    assert set(made["reasons"]) == {"a|b confounded"}  # as the column is called
    refine(cells, "batch", key_added="safe")
    for key in (KEY, "safe"):
        made = pd.DataFrame(cells.uns[key]["diagnosis"])
        path = tmp_path / f"{key}.{kind}"
        cells.write_h5ad(path) if kind == "h5ad" else cells.write_zarr(path)
        stored = (ad.read_h5ad if kind == "h5ad" else ad.read_zarr)(path).uns[key]["diagnosis"]
        assert verdicts_of(stored)[0].names == verdicts_of(made)[0].names
        for name in COLUMNS:
            assert stored[name].tolist() == made[name].tolist()
    assert made["level"].tolist() == ["safe"] * 3
    assert made["reasons"].tolist() == [""] * 3
    assert len(pl.diagnosis(cells, key=KEY).patches) == 3


class TestEarlierVersions:
    """Diagnoses in files of version 0.1 have sentences only."""

    @pytest.fixture
    def cells(self):
        cells = make_cells(batches=["a", "b", "c"])
        refine(cells, "batch")
        table = pd.DataFrame(cells.uns[KEY]["diagnosis"]).drop(columns=["level", "reasons"])
        table["verdict"] = [
            "safe",
            "move with care: cells move by 0.80 of its spread",
            "leave alone: x",
        ]
        cells.uns[KEY]["diagnosis"] = table
        return cells

    def test_levels(self, cells):
        table = cells.uns[KEY]["diagnosis"]
        assert [found.level for found in verdicts_of(table)] == list(Level)
        assert verdicts_of(table.assign(verdict=["", "who knows", None])) == [None] * 3

    def test_pictures(self, cells):
        axes = pl.diagnosis(cells)
        legend = [text.get_text() for text in axes.get_legend().get_texts()]
        assert legend == [f"verdict: {level}" for level in Level]  # no number is marked
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert names == ["c", "b", "a"]  # the worst first
        legend = [text.get_text() for text in pl.movement(cells).get_legend().get_texts()]
        assert legend[:-1] == [f"verdict: {level}" for level in Level]

    def test_printed(self, cells):
        table = Diagnosis(cells.uns[KEY]["diagnosis"])
        assert str(table).splitlines()[-3].endswith(": leave alone: x")

    def test_reports(self, cells):
        page = report(cells, "batch", view="pca")
        assert "1 batch of 3 can be refined safely, 1 with care, and 1 should be left alone" in page
        assert '<td class="why">x</td>' in page
        assert "made again" not in page
        # There are no reasons to add to, so a diagnosis with a column to keep is made again.
        page = report(cells, "batch", keep="sex", view="pca")
        assert "All 3 batches can be refined safely" in page


def test_every_level_has_a_colour_and_a_nearness():
    assert set(Level) < set(COLOURS)
    assert set(Level) == set(NEARNESS)
    style = (ROOT / "reporting" / "style.css").read_text()
    for level in Level:
        assert f".verdict.{level.tone} " in style
        assert f".kind.{level.tone}" in style
    assert [level.rank for level in Level] == sorted(level.rank for level in Level)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_levels_are_written_in_one_module_and_sentences_are_not_parsed(path):
    if path.parent.name == "diagnosis" and path.name in ("levels.py", "verdict.py"):
        return
    source = path.read_text()
    parsed = (
        r"(verdict|advice)\w*(\W{0,3}\])?\)?(\.str)?\.(startswith|r?partition|split|contains)\("
    )
    assert not re.search(parsed, source)
    tree = ast.parse(source)
    documented = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in set(ast.walk(tree)) - documented:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for level in Level:
                assert node.value != level, node.lineno
                assert not node.value.startswith(f"{level}:"), node.lineno
                assert " " not in level or level not in node.value, node.lineno
