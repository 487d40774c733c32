"""The examples and commands in the README and the docs run, from top to bottom of each page.

Cells of pages that are notebooks (``{code-cell}``) run when the site is built: ``make docs``.
``pages.NOT_RUN`` has the commands that are not run, with the reason.
``docs/federated.md`` runs in ``test_page_commands.py``.
"""

import re

import numpy as np
import pytest

import command_line
import page_files
import pages
from pages import ROOT
from scbatchprox import __version__, refine


def run(page, markers, folder, monkeypatch):
    """Run a page in a folder that has the cells, labels and files that the examples use."""
    monkeypatch.chdir(folder)
    adata = page_files.write_cells()
    page_files.write_upstream()
    Z, labels = adata.obsm["X_pca"], adata.obs["batch"].to_numpy()
    arrays = {"Z": Z, "labels": labels, "Z_new": Z[:300], "labels_new": labels[:300]}
    names = {"adata": adata, "refine": refine, **arrays}
    for block in pages.blocks(page):
        if block.marker not in (None, *markers):
            continue
        if block.kind == "python" and "tcp://" not in block.text:  # needs a running cluster
            exec(block.code, names)
        elif block.kind == "console":
            for command in pages.commands(block):
                if pages.reason(command) is None:
                    call(command)


def call(command):
    """Run a command of a page; it must print what the page shows, if the page shows anything."""
    app, words = command_line.program(command.words)
    assert app is not None, f"{command}: neither run nor listed in pages.NOT_RUN"
    if words[0] == "embed" and ("scvi" in words or "surgery" in words):
        words += ["--max-epochs", "2"]  # scVI's own number takes minutes
    done = command_line.run(*words, code=command.code, app=app)
    if command.printed:
        told, found = facts("\n".join(command.printed)), facts(done.output)
        assert found[0] == told[0], command
        # Numbers of another machine may differ in the last digit that is shown.
        np.testing.assert_allclose(found[1], told[1], rtol=0.02, atol=0.011, err_msg=str(command))


def facts(text):
    """The words of a text, and its numbers; dates and fingerprints differ from run to run."""
    text = re.sub(r"\d{4}-\d\d-\d\d|pca:[0-9a-f]+", "...", text).replace(",", "")
    number = re.compile(r"\d+\.?\d*")
    return number.sub("#", text).split(), [float(found) for found in number.findall(text)]


@pytest.mark.parametrize("page", pages.RUN)
@pytest.mark.filterwarnings("default", "ignore::DeprecationWarning")  # as Python does for a command
def test_examples_run(page, tmp_path, monkeypatch):
    run(page, [], tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("page", "markers"),
    [
        pytest.param(page, found, marks=[getattr(pytest.mark, name) for name in found], id=page)
        for page in pages.RUN
        if (found := pages.markers(page))
    ],
)
@pytest.mark.filterwarnings("default", "ignore::DeprecationWarning")  # as Python does for a command
def test_examples_that_need_other_packages_run(page, markers, tmp_path, monkeypatch):
    run(page, markers, tmp_path, monkeypatch)


def test_every_page_with_python_is_run():
    with_python = {page for page in pages.ALL if "```python" in (ROOT / page).read_text()}
    assert with_python <= set(pages.RUN)


@pytest.mark.parametrize(
    "page",
    [str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]],
)
def test_links_between_pages_have_targets(page):
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, heading = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = ROOT / page if path == "" else (ROOT / page).parent / path
        assert target.exists(), f"{page} links to {link}"
        if heading and target.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert heading in map(_anchor, headings), f"{page} links to {link}"


def _anchor(heading):
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_files_named_in_contributing_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:src|research|tests|docs|tools|\.ci)/[^`\s]*)`", text)
    assert len(named) > 30
    examples = re.compile("NAME|X_Y_Z")  # placeholders
    assert not [path for path in named if not (examples.search(path) or (ROOT / path).exists())]


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("src/scbatchprox/targets/method.py", ["TARGETS"]),
        ("src/scbatchprox/core/target.py", ["class TargetRule(Protocol)"]),
        ("src/scbatchprox/core/solvers/__init__.py", ["SOLVERS"]),
        ("src/scbatchprox/core/problem.py", ["class Solver("]),
        ("src/scbatchprox/io/formats/__init__.py", ["SUFFIXES", "class CellFile"]),
        ("src/scbatchprox/io/atomic.py", ["def replacing"]),
        ("research/baselines/methods.py", ["METHODS"]),
        ("research/baselines/embeddings.py", ["UPSTREAMS"]),
        ("research/datasets/presets.py", ["PRESETS"]),
        ("research/datasets/originals.py", ["ORIGINALS"]),
        ("research/experiments/__init__.py", ["EXPERIMENTS"]),
        ("research/experiments/page.py", ["NAMES"]),
        ("src/scbatchprox/choices.py", ["class Solvers"]),
    ],
)
def test_names_in_contributing_exist(file, names):
    text = (ROOT / file).read_text()
    assert not [name for name in names if name not in text]


def test_the_citation_has_the_version_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [__version__]


def test_the_changelog_has_the_version():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in (f"Unreleased ({__version__})", __version__)
