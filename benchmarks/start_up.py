"""Waiting times in a new process: the import, the help, the first call, the compiler."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from .measure import Row

SCRIPT = """
import time
from benchmarks.measure import cells
Z, batch = cells(100_000, 50, 20)
started = time.perf_counter()
from scbatchprox import BatchProx
imported = time.perf_counter()
BatchProx().fit_transform(Z, batch=batch)
first = time.perf_counter()
BatchProx().fit_transform(Z, batch=batch)
second = time.perf_counter()
print(imported - started, (first - imported) - (second - first))
"""


#: Refine cells of some dtypes for the first time; print the CPU seconds, without imports.
COMPILE = """
import sys, time
import numba, numpy as np, pandas, sklearn.neighbors
from scbatchprox import BatchProx
started = time.process_time()
for dtype in sys.argv[1:]:
    Z = np.random.default_rng(0).normal(size=(5000, 8)).astype(dtype)
    BatchProx().fit_transform(Z, batch=np.arange(5000) % 3)
print(time.process_time() - started)
"""


def run() -> Iterator[Row]:
    yield from _cpu()
    yield from _compiling()
    yield from _first_call()


def _cpu() -> Iterator[Row]:
    """CPU seconds of new processes; unlike elapsed time, they do not depend on the machine's load."""
    command = [sys.executable, "-m", "scbatchprox"]
    for what, words in (
        ("import scbatchprox", [sys.executable, "-c", "import scbatchprox"]),
        ("scbatchprox --version", [*command, "--version"]),
        ("scbatchprox --help", [*command, "--help"]),
        ("scbatchprox refine --help", [*command, "refine", "--help"]),
        ("scbatchprox atlas add --help", [*command, "atlas", "add", "--help"]),
    ):
        taken = []
        for _ in range(5):
            before = _children()
            subprocess.run(words, check=True, capture_output=True)
            taken.append(_children() - before)
        yield Row(f"{what}, CPU time", min(taken), "s", most=0.4)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _compiling() -> Iterator[Row]:
    """Time for compiling in the first refine after an installation: empty cache minus full cache."""
    for dtypes, most in ((["float32"], None), (["float64"], None), (["float32", "float64"], 4.0)):
        with tempfile.TemporaryDirectory() as cache:
            cold, warm = (
                subprocess.run(
                    [sys.executable, "-c", COMPILE, *dtypes],
                    env=os.environ | {"NUMBA_CACHE_DIR": cache}, check=True, capture_output=True, text=True,
                )
                for _ in range(2)
            )  # fmt: skip
        seconds = float(cold.stdout) - float(warm.stdout)
        yield Row(f"compiling for {' and '.join(dtypes)}, CPU time", seconds, "s", most=most)


def _first_call() -> Iterator[Row]:
    command = [sys.executable, "-c", SCRIPT]
    subprocess.run(command, check=True, capture_output=True)  # fills the cache
    answers = [
        subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(5)
    ]
    imports, extra = zip(*(map(float, a.stdout.split()) for a in answers), strict=True)
    yield Row("first call (imports numba) minus a warm one, new process", min(extra), "s", most=1.0)
    yield Row("from scbatchprox import BatchProx (pandas already loaded)", min(imports), "s")
