"""Extra memory of fit_transform: the output, and at most 5 % of it besides."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from .measure import Row

# In a fresh process, since the peak of a process never falls. Linux counts it in kilobytes. The peak
# is set back once everything is loaded, so that compiling does not hide what the cells need.
SCRIPT = """
import sys
from benchmarks.measure import cells
from scbatchprox import BatchProx
def status(name):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[name].split()[0]) * 1024
solver, n = sys.argv[1], int(sys.argv[2])
Z, batch = cells(n, 50, 20)
BatchProx(solver=solver).fit_transform(Z[:5000], batch=batch[:5000])
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
out = BatchProx(solver=solver).fit_transform(Z, batch=batch)
print((status("VmHWM") - before) / out.nbytes)
"""


def run() -> Iterator[Row]:
    for solver, most in (("exact", 1.05), ("adam", None)):
        answer = subprocess.run(
            [sys.executable, "-c", SCRIPT, solver, "2000000"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        what = f"extra memory / output, {solver}, 2,000,000 x 50 float32"
        yield Row(what, float(answer.stdout), most=most)
