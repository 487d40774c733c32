"""Run all benchmarks, or those named on the command line, and print one table."""

from __future__ import annotations

import argparse
import platform
import sys

import numba
import numpy as np

import scbatchprox

from . import (
    adam,
    atlas,
    copy,
    dask_scaling,
    federated,
    file_memory,
    files,
    harmony,
    memory,
    populations,
    refine,
    report,
    start_up,
    threads,
)

BENCHMARKS = {
    "copy": copy.run,
    "threads": threads.run,
    "memory": memory.run,
    "start-up": start_up.run,
    "refine": refine.run,
    "report": report.run,
    "harmony": harmony.run,
    "populations": populations.run,
    "adam": adam.run,
    "files": files.run,
    "file-memory": file_memory.run,
    "dask": dask_scaling.run,
    "atlas": atlas.run,
    "federated": federated.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := set(names) - set(BENCHMARKS):
        parser.error(f"Expected names of {', '.join(BENCHMARKS)}, found {', '.join(unknown)}.")
    print(
        f"scbatchprox {scbatchprox.__version__}, {scbatchprox.get_num_threads()} threads, "
        f"Python {platform.python_version()}, numpy {np.__version__}, numba {numba.__version__}"
    )
    failed = 0
    for name in names:
        print(f"\n{name}", flush=True)
        for row in BENCHMARKS[name]():
            print(f"  {row}", flush=True)
            failed += not row.holds
    print(f"\n{'all limits hold' if not failed else f'{failed} limits missed'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
