"""The Python examples in the README and the docs run, from top to bottom of each page.

Cells of pages that are notebooks (``{code-cell}``) run when the site is built: ``make docs``.
"""

import re
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scbatchprox import __version__, refine

ROOT = Path(__file__).parents[1]
PAGES = [
    "README.md", "docs/atlas.md", "docs/data.md", "docs/files.md", "docs/plots.md", "docs/populations.md",
    "docs/upstream.md", "docs/index.md", "docs/howto/larger_than_memory.md",
    "docs/tutorials/scvi_and_harmony.md",
]  # fmt: skip
#: Words in a block that needs more than the test extra, and the marker of the tests that run it.
HEAVY = {"scanpy": "bench", "ScviUpstream": "scvi", "import scvi": "scvi"}


def blocks(page):
    """Yield the Python blocks of a page as (marker or None, code); errors show the line in the page."""
    text = (ROOT / page).read_text()
    for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if "tcp://" in match[1]:
            continue  # needs a running cluster
        lines_before = text[: match.start(1)].count("\n")
        marker = next((HEAVY[word] for word in HEAVY if word in match[1]), None)
        yield marker, compile("\n" * lines_before + match[1], page, "exec")


def run(page, markers, folder, monkeypatch):
    """Run a page in a folder that has the cells, labels and files that the examples use."""
    monkeypatch.chdir(folder)
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, 6000)
    Z = (rng.normal(size=(6000, 10)) + 8.0 * np.eye(3, 10)[kind]).astype(np.float32)
    labels = rng.choice([f"donor{i}" for i in (1, 2, 7)], 6000)
    obs = pd.DataFrame({"batch": labels, "leiden": kind.astype(str)}, map(str, range(6000)))
    obs["donor"] = obs["sample"] = obs["batch"]
    obs["annotation"] = obs["condition"] = obs["leiden"]
    adata = ad.AnnData(obs=obs, obsm={"X_pca": Z})
    for file in ("cells.h5ad", "mine.h5ad"):
        adata.write_h5ad(file)
    arrays = {"Z": Z, "labels": labels, "Z_new": Z[:300], "labels_new": labels[:300]}
    names = {"adata": adata, "refine": refine, **arrays}
    for marker, code in blocks(page):
        if marker is None or marker in markers:
            exec(code, names)


@pytest.mark.parametrize("page", PAGES)
def test_examples_run(page, tmp_path, monkeypatch):
    run(page, [], tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("page", "markers"),
    [
        pytest.param(page, found, marks=[getattr(pytest.mark, name) for name in found], id=page)
        for page in PAGES
        if (found := sorted({marker for marker, _ in blocks(page)} - {None}))
    ],
)
@pytest.mark.filterwarnings("default")  # warnings of other packages
def test_examples_that_need_other_packages_run(page, markers, tmp_path, monkeypatch):
    run(page, markers, tmp_path, monkeypatch)


def test_every_page_with_python_is_run():
    pages = [path for path in ROOT.glob("docs/**/*.md") if "_build" not in path.parts]
    with_python = {str(path.relative_to(ROOT)) for path in pages if "```python" in path.read_text()}
    assert with_python <= set(PAGES)


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
    named = re.findall(r"`((?:src|tests|docs|tools|\.ci)/[^`\s]*)`", text)
    assert len(named) > 30
    examples = re.compile("NAME|X_Y_Z")  # placeholders
    assert not [path for path in named if not (examples.search(path) or (ROOT / path).exists())]


@pytest.mark.parametrize(
    ("file", "names"),
    [
        ("targets/by_name.py", ["TARGETS"]),
        ("core/target.py", ["class TargetRule(Protocol)"]),
        ("core/solvers/__init__.py", ["SOLVERS"]),
        ("core/solvers/solution.py", ["class Solver("]),
        ("io/formats/__init__.py", ["SUFFIXES"]),
        ("io/formats/base.py", ["class CellFile"]),
        ("io/atomic.py", ["def replacing"]),
        ("bench/baselines/methods.py", ["METHODS"]),
        ("bench/baselines/embeddings.py", ["UPSTREAMS"]),
        ("bench/datasets/presets.py", ["PRESETS"]),
        ("bench/datasets/originals.py", ["ORIGINALS"]),
        ("bench/experiments/__init__.py", ["EXPERIMENTS"]),
        ("bench/experiments/page.py", ["NAMES"]),
        ("choices.py", ["class Solvers"]),
    ],
)
def test_names_in_contributing_exist(file, names):
    text = (ROOT / "src" / "scbatchprox" / file).read_text()
    assert not [name for name in names if name not in text]


def test_the_citation_has_the_version_of_the_package():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [__version__]


def test_the_changelog_has_the_version():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] in (f"Unreleased ({__version__})", __version__)
