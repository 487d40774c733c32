"""Extra memory of fit_transform: the output and little more, for any number of cells."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from .measure import Row

# In a new process, because the peak memory of a process never falls. Linux gives it in kilobytes. The peak
# is reset once everything is loaded, so that it does not include the compiler.
SCRIPT = """
import sys
from benchmarks.measure import cells
from scbatchprox import BatchProx
def status(name):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[name].split()[0]) * 1024
params, n = dict([sys.argv[1].split("=")]), int(sys.argv[2])
Z, batch = cells(n, 50, 20)
BatchProx(**params).fit_transform(Z[:5000], batch=batch[:5000])
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
out = BatchProx(**params).fit_transform(Z, batch=batch)
print((status("VmHWM") - before) / out.nbytes)
"""


def run() -> Iterator[Row]:
    for params, most in (("solver=exact", 1.05), ("solver=adam", None)):
        yield Row(
            f"extra memory / output, {params}, 2,000,000 x 50 float32",
            extra(params, 2_000_000),
            most=most,
        )
    # Memory beyond the output (populations and a sample of cells) must not grow with the number of cells.
    half, whole = (extra("target=population", n) for n in (1_000_000, 2_000_000))
    what = "extra memory / output, target=population, 2,000,000 x 50 float32"
    yield Row(what, whole, note=f"{half:.2f} of 1,000,000")
    yield Row("the same at 2,000,000 / at 1,000,000 cells", whole / half, most=1.05)


def extra(params: str, n: int) -> float:
    """Return the peak memory to refine n cells, relative to the size of the result."""
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, params, str(n)], check=True, capture_output=True, text=True
    )
    return float(answer.stdout)
