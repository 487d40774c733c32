"""``scbatchprox refine`` as pipelines use it: real processes, real files, exit codes."""

import json
import os
import pty
import subprocess
import sys

import anndata as ad
import numpy as np
import pytest

import warm_processes
from command_line import command, printed_on, run, warm_command
from scbatchprox import BatchProx
from scbatchprox.diagnosis import Level
from scbatchprox.io.model_file import params_as_json

pytestmark = pytest.mark.filterwarnings("ignore:.*zarr")

# Sends Ctrl-C from one call of a method: the first, or the last of the same command on a copy.
INTERRUPTING = """
import os, shutil, signal, sys
from scbatchprox import refine_file
from scbatchprox.io.formats.journal import JournaledFile
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
path, method, call = sys.argv[1:]
real, calls, at = getattr(JournaledFile, method), 0, None
def hook(self, *arguments):
    global calls
    calls += 1
    if calls == at:
        signal.raise_signal(signal.SIGINT)
    return real(self, *arguments)
setattr(JournaledFile, method, hook)
if call == "last":
    shutil.copy(path, path + ".copy.h5ad")
    refine_file(path + ".copy.h5ad", "batch", diagnose=False)
    os.unlink(path + ".copy.h5ad")
calls, at = 0, max(calls, 1)
from scbatchprox.cli.app import app
app(["refine", path, "--batch-key", "batch", "--in-place", "--no-diagnose"])
"""


class TestRefine:
    def test_out_and_model(self, path, adata, tmp_path):
        out, model = tmp_path / "out.h5ad", tmp_path / "m.safetensors"
        before = path.read_bytes()
        result = run("refine", path, "--batch-key", "batch", "--out", out, "--model", model)
        expected = BatchProx().fit(adata.obsm["X_pca"], batch=adata.obs["batch"])
        refined = expected.transform(adata.obsm["X_pca"], batch=adata.obs["batch"])
        np.testing.assert_allclose(ad.read_h5ad(out).obsm["X_pca_batchprox"], refined, rtol=1e-10)
        np.testing.assert_allclose(BatchProx.load(model).scale_, expected.scale_, rtol=1e-10)
        assert path.read_bytes() == before
        for word in ("s1", "s2", "s3", "moved", "wrote"):
            assert word in result.stdout

    def test_a_model_on_a_device_is_refused_before_anything_is_written(self, path, tmp_path):
        words = ("refine", path, "--batch-key", "batch", "--out", tmp_path / "out.h5ad")
        result = run(*words, "--model", os.devnull, code=2)
        assert "found a device" in " ".join(result.output.split())
        assert not (tmp_path / "out.h5ad").exists()

    def test_verdicts_are_printed_on_request(self, path):
        """By default for the population target only; the moment target has a line on how to get them."""
        words = ("refine", path, "--batch-key", "batch", "--in-place")
        hint = "no verdicts were made; --diagnose gives one per batch"
        for more, verdicts in (
            ([], True),
            (["--no-diagnose"], False),
            (["--target", "moment"], False),
            (["--target", "moment", "--diagnose"], True),
        ):
            lines = run(*words, *more).stdout.splitlines()
            levels = [line.split(": ")[1] for line in lines if line.startswith("s1: ")]
            assert len(levels) == verdicts
            assert set(levels) <= set(Level)
            assert (hint in lines) == (not verdicts)

    def test_names_of_batches_are_not_wrapped(self, adata, tmp_path):
        name = "E-MTAB-5061 of the second laboratory"
        adata.obs["batch"] = adata.obs["batch"].cat.rename_categories({"s1": name})
        adata.write_h5ad(tmp_path / "c.h5ad")
        done = command("refine", tmp_path / "c.h5ad", "--batch-key", "batch", "--in-place",
                       env=os.environ | {"COLUMNS": "80"})  # fmt: skip
        assert name in done.stdout

    def test_every_method_option_reaches_the_model(self, path, tmp_path):
        model = tmp_path / "m.safetensors"
        run(
            "refine", path, "--batch-key", "batch", "--batch-key", "site", "--in-place",
            "--model", model, "--solver", "adam", "--rounds", 2, "--lambda-target", 0.7,
            "--mu", 0.01, "--lambda-id", 0.02, "--eps", 1e-3, "--mean-only", "--seed", 5, "--lr",
            0.01, "--local-epochs", 2, "--batch-size", 32, "--target", "moment",
            "--key-added", "mine", "--use-rep", "X_pca", "--strength", 0.5,
        )  # fmt: skip
        params = params_as_json(BatchProx.load(model).get_params(deep=False))
        assert params["solver"] | {"betas": 0, "adam_eps": 0} == {
            "name": "adam", "lr": 0.01, "local_epochs": 2, "batch_size": 32, "seed": 5,
            "betas": 0, "adam_eps": 0,
        }  # fmt: skip
        assert {name: params[name] for name in params if name != "solver"} == {
            "target": {"name": "moment", "eps": 1e-3, "variance_matching": False}, "rounds": 2,
            "lambda_target": 0.7, "mu": 0.01, "lambda_id": 0.02, "strength": 0.5,
        }  # fmt: skip
        assert "mine" in ad.read_h5ad(path).obsm
        assert len(BatchProx.load(model).batches_) == 6

    def test_fixed_point(self, path, tmp_path):
        run("refine", path, "--batch-key", "batch", "--in-place", "--rounds", "fixed-point",
            "--target", "moment", "--model", tmp_path / "m")  # fmt: skip
        assert BatchProx.load(tmp_path / "m").rounds is None

    def test_json_is_one_object(self, path):
        answer = json.loads(
            run("refine", path, "--batch-key", "batch", "--in-place", "--json").stdout
        )
        assert answer["batches"] == ["s1", "s2", "s3"]
        assert answer["movement"]["n_cells"] == [80, 60, 40]
        assert answer["written"] == str(path)
        assert answer["provenance"]["source"] == "cells.h5ad"
        assert answer["evidence"]["batches"] == answer["batches"]
        assert answer["history"]["matched"][0] is None
        assert len(answer["history"]["movement"]) == 11

    def test_json_has_no_infinity(self, path):
        done = run("refine", path, "--batch-key", "batch", "--in-place", "--json", "--rounds",
                   "fixed-point", "--target", "moment")  # fmt: skip
        answer = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
        assert answer["history"]["round"] == [0, None]

    @pytest.mark.usefixtures("ctrl_c")
    def test_interrupted(self, adata, tmp_path):
        """Ctrl-C before the end: the old content, exit code 130, and no partial files."""
        path = tmp_path / "cells.h5ad"
        adata.write_h5ad(path)
        before = path.read_bytes()
        script = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores it
from scbatchprox.cells import file as stream
from scbatchprox.io.formats import h5ad
real = h5ad._H5adWriter.write
def write(self, lo, block):
    real(self, lo, block)
    signal.raise_signal(signal.SIGINT)
h5ad._H5adWriter.write = write
from scbatchprox.cli.app import app
app(["refine", sys.argv[1], "--batch-key", "batch", "--in-place", "--no-diagnose"])
"""
        done = warm_processes.run(script, path)
        assert done.returncode == 130
        # A line about compiled code may come first.
        assert done.stderr.splitlines()[-1] == "Error: Interrupted."
        assert "Traceback" not in done.stderr
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["cells.h5ad"]

    @pytest.mark.parametrize("call", ["first", "last"])
    @pytest.mark.parametrize("method", ["seek", "readinto", "write", "truncate", "flush"])
    def test_interrupted_inside_the_file_object(self, path, method, call):
        """HDF5 calls these methods, and an exception cannot pass through it."""
        before = path.read_bytes()
        done = warm_processes.run(INTERRUPTING, path, method, call)
        assert done.returncode == 130, done.stderr
        assert done.stderr.splitlines()[-1] == "Error: Interrupted."
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]

    def test_quiet_prints_nothing(self, path):
        done = warm_command("refine", path, "--batch-key", "batch", "--in-place", "--quiet")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_no_bar_without_a_terminal(self, path):
        done = warm_command("refine", path, "--batch-key", "batch", "--in-place", "--no-diagnose")
        assert done.returncode == 0
        assert not any(word in done.stderr for word in ("%", "rows/s", "moments"))

    @pytest.mark.slow
    def test_bar_with_rows_a_second_on_a_terminal(self, path):
        main, other = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "scbatchprox", "refine", path, "--batch-key", "batch", "--in-place"],
            stderr=other, stdout=subprocess.DEVNULL, env=os.environ | {"COLUMNS": "120", "TERM": "xterm"},
        )  # fmt: skip
        os.close(other)
        shown = printed_on(main)
        assert process.wait() == 0
        for word in (b"moments", b"refine", b"rows/s", b"100%"):
            assert word in shown

    @pytest.mark.slow
    def test_bar_with_rounds_of_adam_on_a_terminal(self, path):
        main, other = pty.openpty()
        words = ["refine", path, "--batch-key", "batch", "--in-place", "--target", "moment"]
        process = subprocess.Popen(
            [sys.executable, "-m", "scbatchprox", *words, "--solver", "adam", "--rounds", "7"],
            stderr=other, stdout=subprocess.DEVNULL, env=os.environ | {"COLUMNS": "120", "TERM": "xterm"},
        )  # fmt: skip
        os.close(other)
        shown = printed_on(main)
        assert process.wait() == 0
        assert b"rounds" in shown
        assert b"7 / 7" in shown

    @pytest.mark.slow
    @pytest.mark.parametrize(("option", "lines"), [("--json", 1), ("--quiet", 0)])
    def test_one_line_while_code_is_compiled(self, path, tmp_path, option, lines):
        words = ("refine", path, "--batch-key", "batch", "--in-place", "--no-diagnose", option,
                 "--target", "moment")  # fmt: skip
        env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "COLUMNS": "40"}
        cold, warm = (command(*words, env=env) for _ in range(2))
        assert cold.returncode == warm.returncode == 0
        printed = cold.stderr.splitlines()
        assert len(printed) == lines
        assert all("scbatchprox: compiling its loops, once" in line for line in printed)
        assert warm.stderr == ""

    def test_verbose_prints_the_size_of_the_input(self, path):
        done = warm_command("refine", path, "--batch-key", "batch", "--in-place", "-v")
        assert "180 cells x 5 coordinates (float64) in 3 batches" in done.stderr

    def test_labels_from_a_second_file(self, adata, tmp_path):
        np.save(tmp_path / "z.npy", adata.obsm["X_pca"])
        adata.obs.to_csv(tmp_path / "obs.csv")
        run("refine", tmp_path / "z.npy", "--labels", tmp_path / "obs.csv", "--batch-key", "batch",
            "--out", tmp_path / "r.npy")  # fmt: skip
        expected = BatchProx().fit_transform(adata.obsm["X_pca"], batch=adata.obs["batch"])
        np.testing.assert_allclose(np.load(tmp_path / "r.npy"), expected)

    def test_barcodes_as_batches_are_a_warning(self, adata, tmp_path):
        adata.obs["barcode"] = adata.obs_names
        adata.write_h5ad(tmp_path / "b.h5ad")
        done = warm_command("refine", tmp_path / "b.h5ad", "--batch-key", "barcode", "--in-place")
        assert done.returncode == 0
        assert done.stderr.startswith("Warning: Expected batches of cells, found 180 batches")
        assert done.stderr.count("\n") == 1
