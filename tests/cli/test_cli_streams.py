"""Streams that are closed, or that nobody reads: the work is done, and its exit code tells how it ended."""

import resource
import subprocess
import sys

import numpy as np
import pytest

from command_line import command

COMMAND = f"{sys.executable} -m scbatchprox"


def shell(line, folder):
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    return done


@pytest.fixture
def cells(rng, tmp_path):
    np.save(tmp_path / "cells.npy", rng.normal(size=(60, 3)))
    (tmp_path / "b.txt").write_text("a\nb\nc\n" * 20)
    return "cells.npy --labels b.txt --batch-key b --out out.npy"


@pytest.mark.parametrize(
    "closed", [">&-", "2>&-", "<&- >&- 2>&-", "| true", "2>&1 | true", "2>/dev/full"]
)
def test_the_work_is_done(cells, tmp_path, closed):
    done = shell(f"{COMMAND} refine {cells} --verbose {closed}; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert done.returncode == 0
    assert np.load(tmp_path / "out.npy").shape == (60, 3)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "2>&1 | true"])
def test_bad_input_is_told_by_the_exit_code(tmp_path, closed):
    done = shell(f"{COMMAND} inspect absent {closed}; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert done.returncode == 2
    assert ("no file at absent" in done.stderr) == (closed == ">&-")


def test_a_reader_that_leaves_early(cells, tmp_path):
    done = shell(f"{COMMAND} refine {cells} | head -1; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


def test_a_full_disk_is_an_error(cells, tmp_path):
    done = shell(f"{COMMAND} refine {cells} --json > /dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path):
    """Or what a library prints would be written into it."""
    (tmp_path / "script.py").write_text(
        "from scbatchprox.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(open('new', 'w').fileno(), file=open('number', 'w'))"
    )
    shell(f"{sys.executable} script.py --version <&- >&- 2>&-", tmp_path)
    assert int((tmp_path / "number").read_text()) > 2


@pytest.mark.skipif(sys.platform != "linux", reason="limits differ")
@pytest.mark.parametrize("megabytes", [475, 500, 700, 1000])
def test_little_address_space(cells, tmp_path, megabytes):
    """Libraries that are loaded would wait for ever, or interrupt the process as Ctrl-C does."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    done = command("refine", *cells.split(), cwd=tmp_path, preexec_fn=limit, timeout=60)
    if megabytes == 1000:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2
        assert done.stderr == (
            f"Error: Expected an address space of at least 960 MB (ulimit -v), found {megabytes} MB.\n"
        )
