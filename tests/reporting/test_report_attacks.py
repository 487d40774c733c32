"""Reports of strangers' files: whatever is written in them is text on the page, and nothing else."""

import hashlib
import html
import os
from base64 import b64encode
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from report_attacks import ATTACKS, HARMLESS, file_page, refined_page
from report_cells import make_cells
from scbatchprox import refine, report
from scbatchprox.diagnosis import Level
from scbatchprox.reporting.page import sortable

#: All of them, one after the other.
ALL = " ".join(ATTACKS.values())


class Made(HTMLParser):
    """What a page is made of: elements with the names of their attributes, its scripts, and its rules."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.scripts, self.policy, self.text = [], [], "", ""
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, sorted(name for name, _ in attributes)))
        if tag == "script":
            self.scripts.append("")
        if dict(attributes).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attributes)["content"]

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two kinds of reports, without attacks and with all of them."""

    def both(text):
        return Made(refined_page(text)), Made(file_page(text, tmp_path_factory.mktemp("cells")))

    return both(HARMLESS), both(ALL)


def test_a_page_is_made_of_the_same_elements_whatever_the_names_are(pages):
    for plain, attacked in zip(*pages, strict=True):
        assert attacked.elements == plain.elements
        assert len(plain.elements) > 100
        assert not [name for _, names in plain.elements for name in names if name.startswith("on")]


def test_attacks_are_shown_as_they_are_written(pages):
    shown = pages[1][0].text
    for what in ("batch", "type", "keep", "X", "R", "p"):
        assert f"{what} {ALL}" in shown


def test_only_our_scripts_may_run(pages):
    """The rules name the fingerprints of the scripts in the page, and allow no others."""
    for made in (*pages[0], *pages[1]):
        rules = dict(rule.strip().split(" ", 1) for rule in made.policy.split(";"))
        hashes = [hashlib.sha256(code.encode()).digest() for code in made.scripts]
        expected = [f"'sha256-{b64encode(digest).decode()}'" for digest in hashes]
        assert rules["script-src"].split() == [*expected, "'unsafe-eval'"]
        assert rules["default-src"] == rules["form-action"] == rules["base-uri"] == "'none'"
        assert "http" not in made.policy
    # Bokeh itself; names of the data are only in the last script.
    assert pages[0][0].scripts[:-1] == pages[1][0].scripts[:-1]


@pytest.mark.parametrize("kind", ATTACKS)
def test_titles_of_the_sortable_table_are_html_that_shows_a_text(kind):
    text = ATTACKS[kind]
    names = [f"{text} confounded", f"{text} removed"]
    numbers = dict.fromkeys(["n_cells", "moved", *names], 0.5)
    table = pd.DataFrame(numbers | {"verdict": f"safe: {text}"}, index=[text])
    models = sortable(SimpleNamespace(table=table))
    titles = [column.title for column in models["sortable"].columns]
    assert [html.unescape(title) for title in titles[-2:]] == names
    assert not set("<>\"'") & set("".join(titles))
    assert models["sort"].options[-2:] == names  # these are text
    fields = [column.field for column in models["sortable"].columns]
    assert text not in "".join(fields)


def refined(change=None):
    """Cells whose record has a diagnosis that was changed, or has none."""
    cells = make_cells(300, batches=["a", "b", "c"], types=["T", "B"])
    refine(cells, "batch")
    record = cells.uns["X_pca_batchprox"]
    table = pd.DataFrame(record.pop("diagnosis"))
    if change is not None:
        record["diagnosis"] = change(table)
    return cells


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.assign(**{f"{ATTACKS['image']} removed": 0.5}),
        lambda t: t.assign(**{f"{ATTACKS['script']} confounded": 0.5}),
        lambda t: t.assign(**{ATTACKS["image"]: 0.5}),
        lambda t: t.assign(**{"a confounded": 0.5, "a removed": ATTACKS["image"]}),
        lambda t: t.assign(moved=ATTACKS["image"]),
        lambda t: t.assign(moved=[None, "a", 1.0]),
        lambda t: t.assign(moved=pd.array([1, 2, None], dtype="Int64")),
        lambda t: t.assign(moved=np.inf),
        lambda t: t.assign(moved=-1e300),
        lambda t: t.assign(verdict=0.5),
        lambda t: t.assign(level=ATTACKS["image"]),
        lambda t: t.assign(level=0.5),
        lambda t: t.assign(reasons=0.5),
        lambda t: t.drop(columns="level"),
        lambda t: t.drop(columns="moved"),
        lambda t: pd.concat([t, t[["moved"]]], axis=1),
        lambda t: t.iloc[:2],
        lambda t: {"n_cells": np.zeros(3), "verdict": np.zeros((2, 2))},
        lambda t: ATTACKS["image"],
        lambda t: np.zeros(3),
    ],
)
def test_a_table_with_other_columns_is_no_diagnosis(change):
    page = report(refined(change), "batch", view="pca")
    assert "not one of these cells as they are, so it was made again" in page


def numbers(page):
    """The plain table."""
    plain = page[page.index('<details class="plain">') : page.index("</details>")]
    return plain[plain.index("<table>") :]


@pytest.mark.parametrize(
    "reasons", [*ATTACKS.values(), "verdict, level", "scale_min, moved, n_batches"]
)
def test_any_text_in_the_place_of_reasons(reasons):
    """It is read where there is a column to keep, and never written."""
    cells = refined(lambda t: t.assign(reasons=reasons, level=Level.WEAK))
    page = report(cells, "batch", keep="sex", view="pca")
    assert f"All 3 batches: {Level.WEAK}." in page
    assert "onerror" not in page[: page.index("<script>")]


def test_a_stored_diagnosis_with_other_columns_is_made_again():
    page = report(
        refined(lambda t: t.assign(**{f"{ATTACKS['image']} removed": 0.5})), "batch", view="pca"
    )
    assert "was in the data, with a record" in page
    assert "not one of these cells as they are, so it was made again" in page
    assert "onerror" not in page[: page.index("<script>")]
    anew = report(refined(), "batch", view="pca")
    assert "made again" not in anew
    assert numbers(page) == numbers(anew)


def test_a_stored_diagnosis_is_shown_as_it_is():
    cells = refined(lambda t: t.assign(moved=7.77, **{"a confounded": 0.5, "a removed": 0.25}))
    page = report(cells, "batch", view="pca")
    assert "made again" not in page
    assert page.count("7.77</td>") == 3
    assert "a removed" in page


def test_a_part_of_nothing_is_not_said():
    """Of a column whose values do not differ in the embedding, no part is removed."""
    cells = refined(lambda t: t.assign(**{"a confounded": 0.5, "a removed": np.nan}))
    page = report(cells, "batch", view="pca")
    assert "a removed" in page
    assert "nan%" not in page


def test_a_name_that_is_not_utf_8(tmp_path):
    cells = make_cells(60, batches=["a", "b"], types=["T", "B"])
    path = tmp_path / os.fsdecode(b"\xff.npz")
    np.savez(path, X_pca=cells.obsm["X_pca"], batch=cells.obs["batch"].to_numpy(str))
    out = report(path, "batch", view="pca", target="population", out=tmp_path / "report.html")
    assert "Batch refinement of ?.npz" in out.read_text("utf-8")
