"""``python -m research`` in real processes, some of them killed or interrupted."""

import json
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from command_line import research as run
from pages import ROOT
from research.command import NAMES
from research.experiments import EXPERIMENTS
from research.experiments.journal import Key
from scbatchprox.demo import Composition, simulate

CONFIG = """
upstreams = ["pca"]
methods = ["batchprox", "batchprox_adam"]
n_components = 5
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A file of a user, with other names of columns, and a configuration."""
    folder = tmp_path_factory.mktemp("mine")
    counts = np.array([[60, 40, 20], [30, 30, 10], [20, 20, 20]])
    adata = simulate(
        Composition("s", ("a", "b", "c"), ("T", "B", "NK"), counts), n_genes=80, n_components=5
    )
    adata.obs = adata.obs.rename(columns={"batch": "donor", "cell_type": "annotation"})
    del adata.obsm["X_pca"]
    adata.write_h5ad(folder / "mine.h5ad")
    (folder / "c.toml").write_text(CONFIG)
    return folder


def arguments(folder, out, *more):
    words = ["classify", "--data", folder / "mine.h5ad", "--config", folder / "c.toml"]
    words += ["--batch-key", "donor", "--label-key", "annotation", "--runs", 6, "--out", out, *more]
    return [str(word) for word in words]


def start(words, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "research", *words], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def rows_of(out):
    rows = pd.read_csv(out / "classify.csv", keep_default_na=False, na_values={"value": ""})
    return rows[~rows["metric"].str.startswith("seconds")].reset_index(drop=True)


def wait_for_lines(path, n, process):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if path.exists() and path.read_bytes().count(b"\n") >= n:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)
    raise AssertionError("no rows in two minutes")


class TestOwnData:
    def test_a_page_on_a_file_of_the_user(self, folder, tmp_path):
        result = run(*arguments(folder, tmp_path / "results"))
        page = (tmp_path / "results" / "classify.md").read_text()
        command = page.split("```console\n")[1].split("\n")[0]
        assert command.startswith("python -m research classify --data mine.h5ad --batch-key donor ")
        assert str(folder) not in page
        assert command.endswith("--config c.toml --out results")
        assert "--runs 6" in command
        for word in ("| mine | PCA | unrefined |", "cell types (control)", "random (control)"):
            assert word in page
        assert "classify: 30 rows, 0 of them from an earlier run" in result.output
        assert (tmp_path / "results" / "classify.png").read_bytes().startswith(b"\x89PNG")

    def test_json(self, folder, tmp_path):
        facts = json.loads(run(*arguments(folder, tmp_path, "--json")).stdout)["experiments"][
            "classify"
        ]
        assert (facts["rows"], facts["reused"], facts["failed"]) == (30, 0, 0)
        again = json.loads(run(*arguments(folder, tmp_path, "--json")).stdout)
        assert again["experiments"]["classify"]["reused"] == 30

    def test_quiet_prints_nothing(self, folder, tmp_path):
        assert run(*arguments(folder, tmp_path, "--quiet")).output == ""


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    run(*arguments(folder, out, "--quiet"))
    return rows_of(out)


@pytest.mark.slow
class TestInterruption:
    @pytest.mark.parametrize("after", [1, 8])
    def test_a_killed_run_continues_to_the_same_rows(self, folder, tmp_path, whole, after):
        journal = tmp_path / "work" / "classify.jsonl"
        process = start(arguments(folder, tmp_path))
        wait_for_lines(journal, after, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kept = journal.read_bytes().count(b"\n")
        assert after <= kept < 30
        assert not (tmp_path / "classify.csv").exists()
        result = json.loads(run(*arguments(folder, tmp_path, "--json")).stdout)
        assert result["experiments"]["classify"]["reused"] == kept
        pd.testing.assert_frame_equal(rows_of(tmp_path), whole)

    @pytest.mark.usefixtures("ctrl_c")
    def test_ctrl_c_leaves_a_page_and_prints_how_to_continue(self, folder, tmp_path, whole):
        process = start(arguments(folder, tmp_path))
        wait_for_lines(tmp_path / "work" / "classify.jsonl", 5, process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == 130
        assert "run the same command to continue" in err
        assert "Incomplete" in (tmp_path / "classify.md").read_text()
        so_far = rows_of(tmp_path).drop_duplicates(list(Key._fields))
        # The fifth row may be on disk but not on the page; the next run reads it.
        assert 4 <= len(so_far) < 30
        run(*arguments(folder, tmp_path))
        pd.testing.assert_frame_equal(rows_of(tmp_path), whole)

    @pytest.mark.scvi
    @pytest.mark.usefixtures("ctrl_c")
    def test_ctrl_c_while_scvi_trains_keeps_no_half_trained_embedding(self, folder, tmp_path):
        pytest.importorskip("scvi")
        (tmp_path / "long.toml").write_text('upstreams = ["scvi"]\nscvi_epochs = 100000\n')
        words = arguments(folder, tmp_path / "o", "--config", tmp_path / "long.toml")
        process = start(words)
        assert "scvi of mine" in process.stderr.readline()
        time.sleep(20)  # until it trains; an earlier signal has the same result
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert process.returncode == 130, err
        assert "run the same command to continue" in err
        assert not list((tmp_path / "o" / "work").glob("embeddings/*"))
        assert (tmp_path / "o" / "work" / "classify.jsonl").read_bytes() == b""


class TestBadInput:
    def test_names(self, tmp_path):
        for words, found in (
            (["table1"], "found 'table1'"),
            ([], "found neither"),
            (["classify", "--all"], "found both 'classify' and --all"),
        ):
            output = run(*words, "--out", tmp_path / "o", code=2).output
            assert found in output
            assert ", ".join(EXPERIMENTS) in output
        assert not (tmp_path / "o").exists()

    def test_data(self, folder, tmp_path):
        for words, found in (
            (["--data", tmp_path / "none.h5ad"], "none.h5ad"),
            (
                ["--data", "pbmc5"],
                "Expected the name of a data set or an .h5ad file, found 'pbmc5'",
            ),
            (["--data", folder / "mine.h5ad"], "available: 'donor', 'annotation'"),
            (["--data-dir", tmp_path / "none"], "Expected --data-dir to be a folder"),
        ):
            assert found in run("classify", "--out", tmp_path, *words, code=2).output

    def test_settings(self, folder, tmp_path):
        (tmp_path / "c.toml").write_text("rouns = 3\n")
        words = ("classify", "--out", tmp_path / "o", "--config", tmp_path / "c.toml")
        assert "found 'rouns'; available: " in run(*words, code=2).output
        assert not (tmp_path / "o").exists()

    def test_no_data_at_all_is_an_error_with_its_reason(self, tmp_path):
        (tmp_path / "c.toml").write_text('data = ["cell_lines", "synovium"]\n')
        (tmp_path / "empty").mkdir()
        result = run(
            "ablation", "--config", tmp_path / "c.toml", "--data-dir", tmp_path / "empty",
            "--out", tmp_path / "o", code=2,
        )  # fmt: skip
        assert "Expected data to run on, found none" in result.output
        assert "cell_lines.h5ad" in result.output


@pytest.mark.bench
@pytest.mark.scvi
@pytest.mark.parametrize("name", ["classify", "continual", "cumulative"])
def test_from_counts_with_scvi(name, tmp_path):
    """scVI and scArches in experiments: one epoch, few cells, every row."""
    for package in ("scvi", "scib_metrics", "harmonypy"):
        pytest.importorskip(package)
    (tmp_path / "c.toml").write_text(
        "max_cells = 150\nscvi_epochs = 1\ncontrols = false\nruns = 1\n"
        '[continual]\nfirst = 1\nmethods = ["batchprox_frozen"]\n'
        '[cumulative]\nfirst = 1\nmethods = ["batchprox"]\n'
    )
    words = ("--quick", "--data", "sim_balanced2", "--config", tmp_path / "c.toml", "--json")
    facts = json.loads(run(name, *words, "--out", tmp_path / "o").stdout)
    found = facts["experiments"][name]
    assert found["failed"] == 0, found["reasons"]
    upstreams = set(pd.read_csv(tmp_path / "o" / f"{name}.csv")["upstream"])
    assert upstreams == {"pca", "scvi", *(["scarches"] if name == "classify" else [])}


def test_progress_of_experiments_counts_rows_not_cells(monkeypatch):
    """On a terminal: the count is printed, and no speed in rows per second."""
    import io

    from rich.console import Console

    from scbatchprox.cli.output import Output

    output = Output()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    shown = {}
    for cells in (True, False):
        text = io.StringIO()
        output.err = Console(file=text, force_terminal=True, width=120)
        with output.progress(cells=cells) as progress:
            progress("classify mine", 0, 1500)
            progress("classify mine", 1500, 1500)
        shown[cells] = text.getvalue()
    assert "1,500 / 1,500" in shown[False]
    assert "rows/s" not in shown[False]
    assert "rows/s" in shown[True]


def test_help_names_the_experiments_and_loads_nothing():
    assert list(NAMES) == list(EXPERIMENTS)
    script = (
        "import runpy, sys; sys.argv = ['research', '--help']\n"
        "try:\n    runpy.run_module('research', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as done:\n    assert done.code == 0, done.code\n"
        "print('loaded:', *sorted({'numpy', 'pandas', 'anndata', 'matplotlib'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "loaded:"
    assert all(name in done.stdout for name in NAMES)
    assert "Usage: python -m research [OPTIONS] [NAME]" in " ".join(done.stdout.split())
