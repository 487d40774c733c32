"""Verdicts are data: reasons are numbers with their limits, and words are made of them."""

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
from scbatchprox import Decision, PopulationSettings, diagnose, pl, refine, report
from scbatchprox.diagnosis.kept import Kept
from scbatchprox.diagnosis.table import COLUMNS, Diagnosis, with_kept
from scbatchprox.diagnosis.verdict import (
    NEARNESS,
    TEXT_COLUMNS,
    Level,
    Reason,
    Verdict,
    judge_arriving,
    judge_batch,
    judge_kept,
    judge_place,
    level_of,
    place_sentence,
    sentence,
    verdict_columns,
    verdicts_of,
    why,
    with_care,
)
from scbatchprox.plots.canvas import LEVELS as COLOURS

#: What earlier versions called safe, move with care, and leave alone.
EARLIER = [Level.REMOVED, Level.WEAK, Level.ALONE]
ROOT = Path(scbatchprox.__file__).parent
KEY = "X_pca_batchprox"
#: Numbers that are reasons for care where they are small.
SMALL = ("scale_min", "neighbours_kept")
SETTINGS = PopulationSettings()
PARTS = st.floats(0, 1) | st.sampled_from([0.25, 0.3, 0.5, 0.6, 0.7, 0.9, 1.0, np.nan])
RATIOS = st.floats(0, 4) | st.just(0.85)
NUMBERS = st.fixed_dictionaries(
    {
        "n_cells": st.integers(1, 60), "moved": st.floats(0.01, 1.2) | st.just(0.0),
        "scale_min": st.floats(0.3, 1.0), "scale_max": st.floats(1.0, 2.5), "matched": PARTS,
        "agreement": st.floats(-3, 12), "smooth": st.floats(-3, 12), "evidence": RATIOS,
        "composition": PARTS, "neighbours_kept": PARTS,
    }
)  # fmt: skip
DECISIONS = st.sampled_from([*Decision, None])
MOVERS = st.sampled_from([None, "target='moment'"])
KEPT = st.lists(
    st.builds(Kept, st.sampled_from(["condition", "b", "a, b", "a/b"]), PARTS, PARTS),
    max_size=3, unique_by=lambda column: column.name,
)  # fmt: skip
PLACES = st.fixed_dictionaries(
    {
        "moved": st.floats(0, 1.2), "distance": st.floats(0, 5), "nearest_distance": st.floats(0, 5),
        "spread_ratio": st.floats(0.1, 10) | st.just(np.nan), "agreement": st.floats(-3, 12),
        "smooth": st.floats(-3, 12), "evidence": RATIOS,
    },
)  # fmt: skip


def check_reasons(verdict, numbers, decision):
    """Every reason is a number of the table, on the side of its limit that the level tells."""
    assert len(set(verdict.names)) == len(verdict.names)
    for reason in verdict.reasons:
        if reason.name == "n_batches":
            assert (decision, reason.value) == (Decision.ALONE, 1)
            assert numbers["evidence"] > SETTINGS.evidence
            continue
        assert reason.value == numbers[reason.name]
        if reason.name == "agreement" and decision == Decision.NO_EFFECT:
            assert reason.limit >= SETTINGS.agreement
        elif reason.name == "agreement":
            # A batch with very few centres needs less, and has no smooth part to name.
            assert reason.limit == SETTINGS.agreement
            assert reason.value > reason.limit or numbers["smooth"] <= 0
        elif reason.name == "smooth":
            assert numbers["agreement"] <= SETTINGS.agreement
        elif reason.name == "evidence":
            assert verdict.level in (Level.WEAK, Level.ALONE)
            assert reason.limit == SETTINGS.evidence
        else:
            small = reason.name in SMALL or (reason.name == "spread_ratio" and reason.limit < 1)
            assert (reason.limit - reason.value) * (1 if small else -1) >= 0


def judged(numbers, decision, kept, by_moments):
    """The verdict on a batch, and all of its numbers."""
    verdict = judge_batch(numbers, decision, by_moments=by_moments)
    verdict = with_care(verdict, judge_kept(kept), numbers["moved"])
    return verdict, numbers | {name: x for column in kept for name, x in column.numbers.items()}


@given(NUMBERS, DECISIONS, KEPT, MOVERS)
def test_reasons_are_numbers_of_the_table_and_in_the_words(numbers, decision, kept, mover):
    verdict, numbers = judged(numbers, decision, kept, by_moments=mover is not None)
    check_reasons(verdict, numbers, decision)
    text = sentence(verdict, numbers, mover=mover)
    assert text == str(verdict.level) or text.startswith(f"{verdict.level}: ")
    for reason in verdict.reasons:
        name, _, measure = reason.name.rpartition(" ")
        if measure == "confounded":
            assert f"one value of {name!r}" in text
        elif reason.name == "n_batches":
            assert "no other batch" in text
        else:
            assert f"{reason.value:.2f}" in text or f"{reason.value:.0%}" in text
    assert ("left exactly as it is" in text) <= (numbers["moved"] == 0)


@given(NUMBERS, DECISIONS, KEPT, st.booleans())
def test_the_level_is_the_decision_unless_there_are_reasons_for_care(
    numbers, decision, kept, by_moments
):
    verdict, numbers = judged(numbers, decision, kept, by_moments)
    own = Level.REMOVED if decision is None else list(Level)[decision]
    care = {"composition", *SMALL, "scale_max", *(n for column in kept for n in column.numbers)}
    if care & set(verdict.names):
        assert verdict.level is Level.WEAK
        assert own is not Level.ALONE
        assert numbers["moved"] > 0
    else:
        assert verdict.level is own
    assert verdict.level.needs_force == (decision == Decision.ALONE)


@given(NUMBERS, DECISIONS, KEPT)
def test_a_table_gives_its_verdicts_back(numbers, decision, kept):
    verdict, numbers = judged(numbers, decision, kept, False)
    columns = verdict_columns([verdict])
    table = pd.DataFrame([numbers]).assign(**columns, verdict=sentence(verdict, numbers))
    (found,) = verdicts_of(table[sorted(table)])  # a file has columns in the order of the alphabet
    assert (found.level, found.names) == (verdict.level, verdict.names)
    text = table["verdict"].item()
    assert text in (str(verdict.level), f"{verdict.level}: {why(text)}")


@given(NUMBERS, DECISIONS, KEPT.filter(bool))
def test_columns_to_keep_are_added_to_a_stored_diagnosis(numbers, decision, kept):
    before, _ = judged(numbers, decision, [], False)
    table = pd.DataFrame([numbers]).assign(
        **verdict_columns([before]), verdict=sentence(before, numbers)
    )
    found = with_kept(table, kept)
    verdict, numbers = judged(numbers, decision, kept, False)
    assert found["level"].item() == verdict.level
    assert found["reasons"].item() == ", ".join(verdict.names)
    assert found["verdict"].item() == sentence(verdict, numbers)


@given(PLACES, DECISIONS)
def test_reasons_of_advice_on_new_batches(numbers, decision):
    place, advice = judge_place(numbers), judge_arriving(numbers, decision)
    check_reasons(place, numbers, None)
    check_reasons(advice, numbers, decision)
    text = place_sentence(place, numbers)
    assert text.startswith(f"{NEARNESS[place.level]}: ")
    assert all(f"{reason.value:.3g}" in text for reason in place.reasons)
    if place.level.needs_force:
        assert advice == place
    else:
        assert advice.level.needs_force == (decision == Decision.ALONE)


def test_more_agreement_is_needed_among_many_batches():
    """The limit in the words is one that the number is below."""
    numbers = {"agreement": 3.0, "evidence": 2.0, "moved": 0.0}
    for n, above in ((2, True), (30, False)):
        (reason,) = judge_batch(numbers, Decision.NO_EFFECT, n_batches=n).reasons
        assert (reason.value > reason.limit) == above


def test_columns_to_keep():
    one, both = Kept("a", 0.95, 0.1), Kept("b", 0.95, 0.6)
    assert [reason.name for reason in judge_kept([one, both])] == [
        "a confounded", "b confounded", "b removed",
    ]  # fmt: skip
    assert judge_kept([Kept("a", 0.5, np.nan)]) == []


def test_the_only_batch_has_no_other_number_as_a_reason():
    table = diagnose(np.random.default_rng(0).normal(size=(50, 3)), ["a"] * 50)
    assert table["level"].tolist() == [Level.ALONE]
    assert table["verdict"]["a"] == (
        f"{Level.ALONE}: there is no other batch that it can be compared with; left exactly as it is"
    )
    (found,) = verdicts_of(table)
    assert found.names == ["n_batches"]


@pytest.mark.filterwarnings("ignore:To keep")
@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_level_and_reasons_are_stored(tmp_path, kind):
    cells = make_cells()
    cells.obs["a/b"] = cells.obs["condition"]
    refine(cells, "batch", keep="a/b")
    del cells.obs["a/b"]
    made = pd.DataFrame(cells.uns[KEY]["diagnosis"])
    assert made["reasons"].str.contains("a|b confounded", regex=False).all()  # as it is called
    refine(cells, "batch", key_added="without")
    for key in (KEY, "without"):
        made = pd.DataFrame(cells.uns[key]["diagnosis"])
        path = tmp_path / f"{key}.{kind}"
        cells.write_h5ad(path) if kind == "h5ad" else cells.write_zarr(path)
        stored = (ad.read_h5ad if kind == "h5ad" else ad.read_zarr)(path).uns[key]["diagnosis"]
        assert verdicts_of(stored)[0].names == verdicts_of(made)[0].names
        for name in TEXT_COLUMNS:
            assert stored[name].tolist() == made[name].tolist()
    assert made["level"].tolist() == [Level.REMOVED] * 3
    assert made["reasons"].tolist() == ["agreement"] * 3
    marks = sum(len(found.names) for found in verdicts_of(cells.uns[KEY]["diagnosis"]))
    assert len(pl.diagnosis(cells, key=KEY).patches) == marks >= 3


class TestEarlierVersions:
    """Diagnoses in files have other levels, or sentences only."""

    @pytest.fixture(params=["sentences", "levels"])
    def cells(self, request):
        cells = make_cells(batches=["a", "b", "c"])
        refine(cells, "batch")
        known = ["n_cells", "moved", "scale_min", "scale_max", "matched", "neighbours_kept"]
        table = pd.DataFrame(cells.uns[KEY]["diagnosis"])[known].assign(
            composition=0.1, distinct=0.9
        )
        if request.param == "levels":
            table["level"] = ["safe", "move with care", "leave alone"]
            table["reasons"] = ["", "moved", "matched"]
        table["verdict"] = [
            "safe",
            "move with care: cells move by 0.80 of its spread",
            "leave alone: x",
        ]
        cells.uns[KEY]["diagnosis"] = table
        return cells

    def test_levels(self, cells):
        table = cells.uns[KEY]["diagnosis"]
        assert [found.level for found in verdicts_of(table)] == EARLIER
        assert [why(text) for text in table["verdict"]][::2] == ["", "x"]
        unknown = table.drop(columns=["level"], errors="ignore")
        assert verdicts_of(unknown.assign(verdict=["", "who knows", None])) == [None] * 3
        assert level_of("who knows") is level_of(None) is None

    def test_pictures(self, cells):
        axes = pl.diagnosis(cells)
        legend = [text.get_text() for text in axes.get_legend().get_texts()]
        assert legend[:3] == [f"verdict: {level}" for level in EARLIER]
        assert len(legend[3:]) == ("reasons" in cells.uns[KEY]["diagnosis"])
        names = [label.get_text() for label in axes.get_yticklabels()]
        assert names == ["c", "b", "a"]  # the worst first
        legend = [text.get_text() for text in pl.movement(cells).get_legend().get_texts()]
        assert legend == [f"verdict: {level}" for level in EARLIER]

    def test_printed(self, cells):
        table = Diagnosis(cells.uns[KEY]["diagnosis"])
        assert str(table).splitlines()[-3].endswith(": leave alone: x")

    def test_reports(self, cells):
        page = report(cells, "batch", view="pca")
        told = [f"1 with {level}" for level in EARLIER]
        assert f"Of 3 batches, {told[0]}, {told[1]} and {told[2]}." in page
        assert '<td class="why">x</td>' in page
        assert "made again" not in page
        # Without reasons to add to, a diagnosis with a column to keep is made again.
        page = report(cells, "batch", keep="sex", view="pca")
        if "reasons" not in cells.uns[KEY]["diagnosis"]:
            assert f"All 3 batches: {Level.REMOVED}." in page


def test_every_level_has_a_colour_and_a_nearness():
    assert set(Level) < set(COLOURS)
    assert set(Level) - {Level.NO_EFFECT} == set(NEARNESS)
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
                assert level not in node.value.replace("batch effect", ""), node.lineno


def test_every_number_has_a_title_and_a_meaning():
    """Pictures and reports take the columns from one list."""
    table = diagnose(make_cells(), "batch")
    assert set(table.columns) - set(TEXT_COLUMNS) == set(COLUMNS)
    for column in COLUMNS.values():
        assert column.title
        assert column.meaning
        assert column.how.format(0.5)


def test_a_reason_needs_words():
    unheard = Verdict(Level.WEAK, (Reason("unheard", 1.0, 2.0),))
    with pytest.raises(AssertionError, match="no words for the reason 'unheard'"):
        sentence(unheard, {"moved": 1.0})
