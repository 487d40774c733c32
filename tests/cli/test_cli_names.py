"""Names that look like markup or hold commands to a terminal are printed as they are, or as \\xNN."""

import json
import logging
import os
import pty
import re
import subprocess
import sys
import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from command_line import answer, command, run
from scbatchprox import BatchProx, refine
from scbatchprox.cli.output import Output
from scbatchprox.errors import BadValue
from scbatchprox.evaluate import comparison

pytestmark = pytest.mark.filterwarnings("ignore:.*zarr")

LONG = "the batch of " + "a long name " * 12 + "ends here"
NAMES = ["[/b]", "[red]", ":smile:", "\x1b[2J\x1b]0;x\x07", "a\nb\tc\x9b1m\u202e", LONG]
SHOWN = ["[/b]", "[red]", ":smile:", r"\x1b[2J\x1b]0;x\x07", r"a\x0ab\x09c\x9b1m\u202e", LONG]
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")


def assert_shown(text, names=tuple(SHOWN)):
    assert not UNSAFE.search(text), text
    for name in names:
        assert name in text, name


@pytest.fixture
def adata(rng):
    n = 40
    batch = np.repeat(NAMES, n)
    adata = ad.AnnData(
        np.zeros((batch.size, 1), np.float32),
        pd.DataFrame({"batch": batch}, index=[f"cell{i}" for i in range(batch.size)]),
        obsm={"X_pca": rng.normal(size=(batch.size, 3)) + np.repeat(rng.normal(size=(6, 3)), n, 0)},
    )
    return adata


@pytest.fixture
def path(adata, tmp_path):
    path = tmp_path / "[red]\x1b[31m.h5ad"
    adata.write_h5ad(path)
    return path


class TestNames:
    def test_refine_and_inspect(self, path):
        model = path.parent / "[b]\x1b.safetensors"
        words = ("refine", path, "--batch-key", "batch", "--in-place", "--diagnose")
        shown = run(*words, "--model", model).stdout
        assert_shown(shown, [*SHOWN, r"[red]\x1b[31m.h5ad", r"[b]\x1b.safetensors"])
        for name in SHOWN:  # once in the table, once with the verdict
            assert sum(line.startswith(name) for line in shown.splitlines()) == 2
        shown = run("inspect", model).stdout
        assert_shown(shown, [*SHOWN, r"[red]\x1b[31m.h5ad"])

    def test_json_has_the_names_themselves(self, path):
        found = answer("refine", path, "--batch-key", "batch", "--in-place")
        assert sorted(found["batches"]) == sorted(NAMES)
        assert found["written"] == str(path)

    def test_atlas(self, path):
        at = path.parent / "[b]\x1bat"
        run("atlas", "init", at)
        assert_shown(run("atlas", "add", at, path, "--batch-key", "batch").stdout)
        assert_shown(run("atlas", "log", at).stdout)
        shown = run("atlas", "diff", at, 1, 2).stdout
        assert_shown(shown)
        assert shown.startswith("added: ")
        for name in NAMES[:3]:
            assert f"forgot {name}" in run("atlas", "forget", at, name).stdout
        assert_shown(run("atlas", "diff", at, 2, 5).stdout)
        assert_shown(run("atlas", "log", at).stdout)
        found = answer("atlas", "log", at)
        assert [count["batch"] for count in found["versions"][2]["removed"]] == ["[/b]"]

    def test_evaluate(self, adata, path, monkeypatch):
        # The numbers do not matter here, and most of them need another library.
        monkeypatch.setattr(comparison, "scores", lambda *_, **__: {"[score]": 0.5})
        adata.obs["type"] = np.tile(["x", "[i]"], adata.n_obs // 2)
        adata.obsm["[bold]\x1b"] = adata.obsm["X_pca"]
        refine(adata, "batch", use_rep="[bold]\x1b", key_added="[u]", target="moment")
        adata.write_h5ad(path)
        shown = run("evaluate", path, "--batch-key", "batch", "--label-key", "type", "--reps",
                    "[bold]\x1b,[u]").stdout  # fmt: skip
        assert_shown(shown, [*SHOWN, "[score]", r"From [bold]\x1b to [u]"])
        header = next(line for line in shown.splitlines() if line.startswith("score"))
        assert header.split() == ["score", r"[bold]\x1b", "[u]", "change"]

    def test_errors(self, path):
        done = run(
            "refine", path.with_name("[b]\x1b[2J.h5ad"), "--batch-key", "x", "--in-place", code=2
        )
        assert_shown(done.stderr, [r"[b]\x1b[2J.h5ad"])
        assert done.stderr.count("\n") == 1
        done = run("inspect", path.with_name("[b]\x1b[2J"), "--json", code=2)
        assert "[b]\x1b[2J" in json.loads(done.stdout)["error"]

    def test_verbose_errors(self, path):
        done = run("inspect", path.with_name("[b]\x1b[2J"), "--verbose", code=2)
        assert "Traceback" in done.stderr
        assert_shown(done.stderr, [r"[b]\x1b[2J"])

    def test_wrong_use(self, path):
        for words in (
            ["\x1b[2J"],
            ["--\x1b[2J"],
            ["refine", path, "\x1b[2J", "--batch-key", "b"],
            ["inspect", path, "--\x1b[2J"],
            ["atlas", "\x1b[2J"],
            ["atlas", "log", "x", "\x1b[2J"],
        ):
            assert_shown(run(*words, code=2).stderr, [r"\x1b[2J"])

    def test_a_file_name_that_is_not_utf_8(self, path):
        other = os.fsencode(path.with_name("cells")) + b"\xff.h5ad"
        os.rename(path, other)
        done = command("refine", os.fsdecode(other), "--batch-key", "batch", "--in-place")
        assert done.returncode == 0, done.stderr
        assert r"cells\xff.h5ad" in done.stdout


class TestMessages:
    @pytest.fixture
    def output(self, monkeypatch):
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        log = logging.getLogger("scbatchprox")
        before = log.handlers, log.level
        yield Output(verbose=True)
        log.handlers, _ = before
        log.setLevel(before[1])

    def test_warnings_and_log(self, output, capsys):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = output._warn
            warnings.warn("[/b] \x1b[2J\nError: no", stacklevel=1)
        logging.getLogger("scbatchprox.test").info("[/b] %s", "\x1b[2J\n")
        try:
            raise BadValue("\x1b[2J")
        except BadValue:
            logging.getLogger("scbatchprox.test").exception("with a traceback")
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == r"Warning: [/b] \x1b[2J\x0aError: no"
        assert lines[1] == r"INFO     [/b] \x1b[2J\x0a"
        assert lines[3].startswith("Traceback")
        assert lines[-1].endswith(r"\x1b[2J")

    def test_a_stage_of_the_progress(self, tmp_path):
        script = r"""
from scbatchprox.cli.output import Output
with Output().progress() as report:
    report("[/b]\x1b[2J", 1, 2)
"""
        main, other = pty.openpty()
        process = subprocess.Popen([sys.executable, "-c", script], stderr=other,
                                   env=os.environ | {"COLUMNS": "120", "TERM": "xterm"})  # fmt: skip
        os.close(other)
        shown = b""
        while True:
            try:
                shown += (more := os.read(main, 4096))
            except OSError:
                break
            if not more:
                break
        os.close(main)
        assert process.wait() == 0
        assert rb"[/b]\x1b[2J" in shown
        assert b"\x1b[2J" not in shown


class TestWidth:
    def test_a_table_in_a_pipe_is_not_cut_or_wrapped(self, path):
        model = path.parent / "m.safetensors"
        done = command("refine", path, "--batch-key", "batch", "--in-place", "--model", model,
                       env=os.environ | {"COLUMNS": "80"})  # fmt: skip
        lines = done.stdout.splitlines()
        # A row and a verdict for each batch; the header, an empty line, and two files.
        assert len(lines) == 2 * len(NAMES) + 4
        row = next(line for line in lines if line.startswith(LONG))
        numbers = row.removeprefix(LONG).split()
        assert numbers[0] == "40"
        assert len(numbers) == len(BatchProx.load(model).movement().columns)

    def test_names_of_batches_in_the_log_of_an_atlas(self, path):
        at = path.parent / "at"
        run("atlas", "init", at)
        run("atlas", "add", at, path, "--batch-key", "batch")
        lines = run("atlas", "log", at).stdout.splitlines()
        assert len(lines) == 3
        assert f"{LONG} (40)" in lines[2]

    def test_an_encoding_without_the_letters(self, adata, path):
        adata.obs["batch"] = adata.obs["batch"].astype(str).replace("[red]", "β")
        adata.write_h5ad(path)
        done = command("refine", path, "--batch-key", "batch", "--in-place",
                       env=os.environ | {"PYTHONIOENCODING": "ascii"})  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert r"\u03b2" in done.stdout
