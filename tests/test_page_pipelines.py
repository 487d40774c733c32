"""Pipelines and R on the pages: Make, Snakemake and R run where they are installed."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import anndata as ad
import pandas as pd
import pytest

import command_line
import page_files
import pages
from pages import ROOT


def environment():
    """As in a shell in which the command is installed."""
    places = [Path(sys.executable).parent, os.environ["PATH"]]
    return os.environ | {"PATH": os.pathsep.join(map(str, places))}


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_makefile_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page_files.write_cells()
    (block,) = (block for block in pages.blocks("docs/files.md") if block.kind == "make")
    Path("Makefile").write_text(block.text)
    os.utime("cells.h5ad")
    subprocess.run(["make", "refined.h5ad"], env=environment(), check=True, capture_output=True)
    assert "X_pca_batchprox" in ad.read_h5ad("refined.h5ad").obsm


@pytest.fixture
def pipeline(tmp_path, monkeypatch):
    """The folder of a pipeline, with the files of ``docs/howto/snakemake.md`` and two studies."""
    monkeypatch.chdir(tmp_path)
    for name in ("Snakefile", "config.yaml"):
        shutil.copy(ROOT / "docs" / "howto" / name, name)
    page_files.write_cells()
    Path("cells").mkdir()
    for study in STUDIES:
        shutil.copy("cells.h5ad", f"cells/{study}.h5ad")


STUDIES = ("lung", "skin")


def check_verdicts():
    verdicts = pd.read_csv("verdicts.tsv", sep="\t")
    assert verdicts.groupby("study")["n_cells"].sum().to_dict() == dict.fromkeys(STUDIES, 900)
    assert set(verdicts["batch"]) == {"donor1", "donor2", "donor7"}


@pytest.mark.skipif(
    find_spec("snakemake") is None, reason="needs snakemake: make docs runs the page"
)
@pytest.mark.usefixtures("pipeline")
def test_the_pipeline_of_the_page():
    run = [sys.executable, "-m", "snakemake", "--cores", "2"]
    done = subprocess.run(run, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check_verdicts()
    for study in STUDIES:
        assert "X_pca_batchprox" in ad.read_h5ad(f"refined/{study}.h5ad").obsm


@pytest.mark.usefixtures("pipeline")
def test_commands_of_the_pipeline():
    """Its command and its Python, without snakemake."""
    text = Path("Snakefile").read_text()
    shell = "".join(
        re.findall(r'^        "(.*)"$', text.split("shell:")[1].split("rule")[0], re.MULTILINE)
    )
    arguments = shlex.split(shell.split("scbatchprox ")[1].split(" > ")[0])
    for folder in ("refined", "models", "records"):
        Path(folder).mkdir()
    for study in STUDIES:
        names = {
            "{input}": f"cells/{study}.h5ad",
            "{output.cells}": f"refined/{study}.h5ad",
            "{output.model}": f"models/{study}.safetensors",
            "{params.batch_key}": "donor",
            "{params.use_rep}": "X_pca",
        }
        done = command_line.run(*(names.get(word, word) for word in arguments))
        Path(f"records/{study}.json").write_text(done.stdout)
    records = [f"records/{study}.json" for study in STUDIES]
    code = textwrap.dedent(text.split("    run:\n")[1])
    exec(code, {"input": records, "output": ["verdicts.tsv"]})
    check_verdicts()
    # With the lines of "Stop at a bad batch" a bad verdict is an error.
    (stop,) = (b.text for b in pages.blocks("docs/howto/snakemake.md") if b.kind == "")
    last = code.rindex("            print(")
    strict = code[:last] + textwrap.indent(textwrap.dedent(stop), " " * 12) + code[last:]
    exec(strict, {"input": records, "output": ["verdicts.tsv"]})
    record = json.loads(Path(records[1]).read_text())
    record["diagnosis"]["verdict"][0] = "nothing to compare with: a reason"
    Path(records[1]).write_text(json.dumps(record))
    with pytest.raises(ValueError, match="skin, donor1: nothing to compare with: a reason"):
        exec(strict, {"input": records, "output": ["verdicts.tsv"]})


R_BLOCKS = [block for page in pages.ALL for block in pages.blocks(page) if block.kind == "r"]


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="needs R")
@pytest.mark.parametrize("block", R_BLOCKS, ids=lambda block: f"{block.page}:{block.line}")
def test_r_of_the_page_can_be_parsed(block, tmp_path):
    (tmp_path / "block.R").write_text(block.text)
    script = "invisible(parse(commandArgs(TRUE)[1]))"
    done = subprocess.run(
        ["Rscript", "--vanilla", "-e", script, str(tmp_path / "block.R")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


#: What blocks of R expect to find, by the package that they use.
BEFORE = {
    "SeuratObject": """
        names <- paste0("cell", 1:200)
        counts <- matrix(rpois(200 * 5, 2), 5, dimnames = list(paste0("g", 1:5), names))
        cells <- SeuratObject::CreateSeuratObject(counts)
        cells$sample <- rep(c("s1", "s2"), 100)
        Z <- matrix(rnorm(200 * 6), 200, dimnames = list(names, paste0("PC_", 1:6)))
        cells[["pca"]] <- SeuratObject::CreateDimReducObject(Z, key = "PC_", assay = "RNA")
        """,
    "rhdf5": "",
}
#: What must hold after them.
AFTER = {
    "SeuratObject": 'stopifnot(identical(dim(Embeddings(cells, "batchprox")), c(200L, 6L)))',
    "rhdf5": "stopifnot(identical(dim(refined), c(900L, 10L)), nlevels(batch) == 3, !anyNA(batch))",
}


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="needs R")
@pytest.mark.parametrize("package", BEFORE)
def test_r_of_the_page_runs(package, tmp_path, monkeypatch):
    found = subprocess.run(
        ["Rscript", "-e", f'cat(requireNamespace("{package}", quietly = TRUE))'],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "TRUE" not in found.stdout:
        pytest.skip(f"needs the R package {package}")
    monkeypatch.chdir(tmp_path)
    page_files.write_cells()
    command_line.run("refine", "cells.h5ad", "--batch-key", "batch", "--out", "refined.h5ad")
    words = {"SeuratObject": "SeuratObject", "rhdf5": "h5read"}[package]
    text = "\n".join(block.text for block in R_BLOCKS if words in block.text)
    Path("page.R").write_text("\n".join([BEFORE[package], text, AFTER[package]]))
    done = subprocess.run(
        ["Rscript", "--vanilla", "page.R"],
        env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
