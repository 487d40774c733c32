"""What is on the page, read as a program without a browser would."""

import re
from html.parser import HTMLParser

import pytest

from report_cells import BATCHES, TYPES, make_cells
from scbatchprox import diagnose, report
from scbatchprox.diagnosis import Level


class Page(HTMLParser):
    """Texts by the heading that they follow, and what the page refers to."""

    def __init__(self, html):
        super().__init__()
        self.sections, self.links, self.tags, self._inside = {"": ""}, [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href", "action", "data")]
        if tag in ("script", "style", "h2"):
            self._inside.append(tag)
            if tag == "h2":
                self.sections[dict(attributes)["id"]] = ""

    def handle_endtag(self, tag):
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data):
        if not {"script", "style"} & set(self._inside):
            last = list(self.sections)[-1]
            self.sections[last] += f" {data}"


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


def test_sections_come_in_this_order(page):
    expected = ["", "verdict", "scatter", "batches", "composition", "scores", "kept", "how"]
    assert list(page.sections) == expected


def test_nothing_is_loaded_from_elsewhere(page, html):
    assert page.links == ["#batches"]
    assert "default-src 'none'" in html
    assert "link" not in page.tags
    assert len(html) < 3e6


def test_names_are_text_and_never_markup(page, html):
    for name in BATCHES:
        assert name in page.sections["batches"]
        assert name in page.sections["composition"]
    for name in TYPES:
        assert name in page.sections["composition"]
    assert "img" not in page.tags
    assert "b" not in page.tags
    assert "</script><b>one" not in html
    assert "<img src=x" not in html


def test_verdict_is_the_first_thing_said(page):
    assert page.sections["verdict"].strip().startswith(f"All 3 batches: {Level.REMOVED}.")
    assert "Use the refined embedding (X_pca_batchprox)" in page.sections["verdict"]
    assert "the data were not changed" in page.sections["verdict"]


def test_a_condition_that_goes_with_batches_is_named():
    keep = ["condition", "sex"]
    page = Page(report(make_cells(), "batch", keep=keep, view="pca", target="population"))
    assert "Each batch has one value of 'condition'" in page.sections["verdict"]
    assert "one value of 'sex'" not in page.sections["verdict"]


def test_the_table_is_the_diagnosis(page):
    cells = make_cells()
    table = diagnose(cells, "batch", keep=["sex"])
    for name, row in table.iterrows():
        shown = " ".join(page.sections["batches"].split(name)[1].split())
        expected = [f"{row['n_cells']:,}", f"{row['moved']:.2f}", f"{row['matched']:.0%}"]
        assert shown.startswith(row["verdict"].split(":")[0])
        assert " ".join(expected) in shown


def test_compositions_are_shares_of_all_cells(page):
    obs = make_cells().obs
    own = obs[obs["batch"] == BATCHES[1]]
    counts = own["type"].value_counts()
    row = page.sections["composition"].split(BATCHES[1])[1].split()
    assert row[0] == str(len(own))
    order = obs["type"].value_counts().index
    assert row[1:4] == [f"{counts[name] / len(own):.0%}" for name in order]


def test_scores_are_beside_each_other(page):
    words = " ".join(page.sections["scores"].split())
    for title in (
        "F1 given batch",
        "Leave-one-batch-out F1",
        "Mixing within types",
        "Over-correction",
    ):
        assert re.search(rf"{title}\s*\d\.\d{{3}}\s*\d\.\d{{3}}\s*[+-]\d\.\d{{3}}", words), words


def test_how_it_was_made(page):
    how = " ".join(page.sections["how"].split())
    for name in ("target population", "scbatchprox", "fingerprint of the adapter adapter:"):
        assert name in how
    assert "scbatchprox.report(adata, 'batch', label_key='type'" in how


def test_without_types_groups_of_refined_cells_are_shown():
    page = Page(report(make_cells(), "batch", view="pca", target="population"))
    assert "scores" not in page.sections
    assert "kept" not in page.sections
    assert "Groups are clusters of all refined cells" in page.sections["composition"]
    assert "type shown" not in page.sections["scatter"]


@pytest.mark.slow
def test_many_batches_and_types_stay_small():
    names = [f"batch {i:03d}" for i in range(80)]
    cells = make_cells(4000, batches=names)
    cells.obs["many"] = [f"label {i % 50}" for i in range(4000)]
    html = report(cells, "batch", label_key="many", view="pca", target="population")
    assert len(html) < 3.5e6
    page = Page(html)
    note = "21 small columns are shown as one; the 60 largest of 80 batches are shown."
    assert note in page.sections["composition"]
