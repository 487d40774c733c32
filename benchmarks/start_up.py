"""The first call in a fresh process, with compiled code cached on disk, against a warm one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from .measure import Row

SCRIPT = """
import time
from benchmarks.measure import cells
Z, batch = cells(100_000, 50, 20)
started = time.perf_counter()
import scbatchprox
imported = time.perf_counter()
scbatchprox.BatchProx().fit_transform(Z, batch=batch)
first = time.perf_counter()
scbatchprox.BatchProx().fit_transform(Z, batch=batch)
second = time.perf_counter()
print(imported - started, (first - imported) - (second - first))
"""


def run() -> Iterator[Row]:
    command = [sys.executable, "-c", SCRIPT]
    subprocess.run(command, check=True, capture_output=True)  # fills the cache
    answers = [
        subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(5)
    ]
    imports, extra = zip(*(map(float, a.stdout.split()) for a in answers), strict=True)
    yield Row("first call minus a warm one, fresh process", min(extra), "s", most=1.0)
    yield Row("import scbatchprox (pandas already loaded)", min(imports), "s")
