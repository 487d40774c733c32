"""The committed pages have the same fixed wording as the code."""

from pathlib import Path

import pytest

from research.experiments import EXPERIMENTS
from research.experiments.page import MEANINGS, NAMES
from research.planted import KINDS

PAGES = Path(__file__).parents[3] / "docs" / "results"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_title_question_and_headings(name):
    page = (PAGES / f"{name}.md").read_text()
    experiment = EXPERIMENTS[name]
    assert page.startswith(f"# {experiment.title}\n")
    for line in (experiment.question, "## Findings", "## How it was measured"):
        assert f"\n{line}\n" in page


@pytest.mark.parametrize("name", ["planted", "sensitivity", "real_sets/classify"])
def test_definitions_of_scores(name):
    assert f"\n- {MEANINGS}\n" in (PAGES / f"{name}.md").read_text()


def test_planted_kinds_and_columns():
    page = (PAGES / "planted.md").read_text()
    for kind, planted in KINDS.items():
        assert f"| {kind} | {planted.about} |" in page
    assert f"| {NAMES['displacement_error']} | {NAMES['displacement_relative']} |" in page
