"""R reads the files that the command writes; skipped where there is no R."""

import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

import command_line
from data import make_cells

pytestmark = pytest.mark.skipif(shutil.which("Rscript") is None, reason="needs R")


def r(script, *arguments):
    done = subprocess.run(
        ["Rscript", "--vanilla", "-e", script, *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def table(rng, tmp_path):
    cells = make_cells(rng, [40, 30], 3)
    table = pd.DataFrame(cells.Z, columns=["PC_1", "PC_2", "PC_3"])
    table.insert(0, "batch", np.array(["s1", "s2"])[cells.codes])
    table.to_csv(tmp_path / "cells.csv", index=False)
    return tmp_path / "cells.csv"


def test_base_r_reads_a_table(table, tmp_path):
    out = tmp_path / "refined.csv"
    command_line.run(
        "refine", table, "--batch-key", "batch", "--use-rep", "PC_", "--target", "moment",
        "--out", out,
    )  # fmt: skip
    script = """
    cells <- read.csv(commandArgs(TRUE)[1])
    numbers <- cells[sapply(cells, is.numeric)]
    stopifnot(nrow(cells) == 70, !anyNA(numbers))
    cat(paste(names(numbers), sprintf("%.12g", colMeans(numbers)), sep = "="), sep = "\\n")
    """
    found = dict(line.split("=") for line in r(script, out).split())
    expected = pd.read_csv(out).select_dtypes("number").mean()
    assert list(found) == list(expected.index)
    np.testing.assert_allclose([float(value) for value in found.values()], expected, atol=1e-9)


@pytest.mark.parametrize("package", ["rhdf5", "hdf5r"])
def test_r_reads_an_h5ad(package, rng, tmp_path):
    import anndata as ad

    if "TRUE" not in r(f'cat(requireNamespace("{package}", quietly = TRUE))'):
        pytest.skip(f"needs the R package {package}")
    cells = make_cells(rng, [40, 30], 3)
    obs = pd.DataFrame({"batch": np.array(["s1", "s2"])[cells.codes]}, map(str, range(70)))
    ad.AnnData(obs=obs, obsm={"X_pca": cells.Z}).write_h5ad(tmp_path / "cells.h5ad")
    path = tmp_path / "cells.h5ad"
    command_line.run("refine", path, "--batch-key", "batch", "--target", "moment", "--in-place")
    read = {
        "rhdf5": 'rhdf5::h5read(commandArgs(TRUE)[1], "obsm/X_pca_batchprox")',
        "hdf5r": 'hdf5r::H5File$new(commandArgs(TRUE)[1], "r")[["obsm/X_pca_batchprox"]][, ]',
    }[package]
    # R counts dimensions from the other end: a row there is a coordinate here.
    found = r(f'cat(sprintf("%.12g", rowMeans({read})))', path).split()
    expected = ad.read_h5ad(path).obsm["X_pca_batchprox"].mean(0)
    np.testing.assert_allclose([float(value) for value in found], expected, atol=1e-9)
