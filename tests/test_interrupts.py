"""Ctrl-C: soon obeyed in long loops; and tests that press it pass in a job started with SIGINT ignored."""

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


ADAM = """
import os, signal, sys, threading, time, warnings
import numpy as np
from scbatchprox import Adam, BatchProx
warnings.simplefilter("ignore")
signal.signal(signal.SIGINT, signal.default_int_handler)
n_batches, n_cells, rounds = map(int, sys.argv[1:4])
options = eval(sys.argv[4])
Z = np.random.default_rng(0).normal(size=(n_batches * n_cells, 20))
batch = np.repeat(np.arange(n_batches), n_cells)
BatchProx(target="moment", solver="adam", rounds=1).fit(Z[::n_cells], batch=batch[::n_cells])  # compiled
pressed = []
def press():
    pressed.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.5, press).start()
try:
    BatchProx(target="moment", solver=Adam(**options), rounds=rounds).fit(Z, batch=batch)
except KeyboardInterrupt:
    print(time.monotonic() - pressed[0])
"""


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        pytest.param((300, 2, 100_000), {}, id="many rounds"),
        pytest.param((3, 50, 2), {"local_epochs": 1_000_000}, id="a long round"),
    ],
)
def test_adam_obeys_within_a_second(sizes, options):
    words = [sys.executable, "-c", ADAM, *map(str, sizes), repr(options)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert float(done.stdout) < 1.0, done.stderr
