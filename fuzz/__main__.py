"""Run the fuzz targets: ``python -m fuzz --seconds 600``, or one case again: ``--case h5ad:1:23``."""

from __future__ import annotations

import argparse
import re
import secrets
import sys
from collections import defaultdict

from .faults import preload
from .runner import fuzz, replay
from .targets import TARGETS


def main() -> int:
    """Run, print a summary, and return the exit code: 1 if a file was neither read nor refused."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--cases", type=int, help="end after this many")
    parser.add_argument(
        "--seed", type=int, default=None, help="default: a new one, which is printed"
    )
    parser.add_argument("--target", action="append", choices=list(TARGETS))
    parser.add_argument("--case", help="run one case again, TARGET:SEED:NUMBER")
    given = parser.parse_args()
    names = (
        given.target or [given.case.split(":")[0]] if given.case or given.target else list(TARGETS)
    )
    if "writes" in names and not preload():
        print("Expected a C compiler (cc, gcc or clang) to make writes fail, found none: skipped.")
        names.remove("writes")
    if given.case:
        print(replay(given.case))
        return 0
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    report = fuzz(names, seed, given.seconds, given.cases)
    outcomes = ("read", "refused", "in HDF5", "failed")
    print(f"{'':<12}" + "".join(f"{what:>9}" for what in outcomes))
    for name in [*names, "all"]:
        counts = [
            sum(n for (of, how), n in report.counts.items() if how == what and name in (of, "all"))
            for what in outcomes
        ]
        print(f"{name:<12}" + "".join(f"{n:>9,}" for n in counts))
    alike: dict[str, list[str]] = defaultdict(list)
    for case, reason in report.failures:
        # Names of folders and numbers differ from case to case.
        kind = re.sub(r"/dev/shm/\w+|[0-9a-f]{12}|\d+", "", reason)[:110]
        alike[f"{case.split(':')[0]}: {kind}"].append(f"{case}  {reason[:500]}")
    for cases in sorted(alike.values(), key=len, reverse=True):
        print(f"{len(cases):>5} like {cases[0]}")
    return 1 if any(how == "failed" for _, how in report.counts) else 0


if __name__ == "__main__":
    sys.exit(main())
