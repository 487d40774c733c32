"""Tests that press Ctrl-C pass in a background job, which is started with SIGINT ignored."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

IGNORING = """
import signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))
"""


@pytest.mark.parametrize(
    "test",
    [
        "io/formats/test_journal.py::TestJournal::test_ctrl_c_during_a_commit_waits_for_its_end",
        "cli/test_cli_refine.py::TestRefine::test_interrupted",
    ],
)
def test_in_a_background_job(test):
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / test)]
    done = subprocess.run(
        [sys.executable, "-c", IGNORING, *words], capture_output=True, text=True, cwd=HERE.parent
    )
    assert done.returncode == 0, done.stdout
