"""Runs cases in child processes with little memory and little time, and judges how each ends.

A case is named by its target, the seed of the run and a number, from which all its choices follow.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import hashlib
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from scbatchprox.errors import InputError

from .seeds import make_seeds
from .target import SECRET, Stopped, Target, Wrong
from .targets import TARGETS

__all__ = ["Report", "fuzz", "replay"]

#: Sentences on a model that does not fit what it is used with.
_OF_MODELS = (
    "Expected the parameters that the model was fitted with",
    "Expected batches seen when fitting",
)
#: Memory that a case may use beyond that of the process before.
MEMORY = 2 << 30


@dataclass
class Report:
    """Counts of outcomes, and the failures: case and reason."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[tuple[str, str]] = field(default_factory=list)

    def add(self, case: str, outcome: str) -> None:
        """Count the outcome of a case."""
        what, _, reason = outcome.partition("\t")
        self.counts[case.split(":")[0], what] += 1
        if what in ("failed", "in HDF5"):
            self.failures.append((case, reason))


def fuzz(names: list[str], seed: int, seconds: float, cases: int | None = None) -> Report:
    """Run cases of some targets, for a time or a number of cases that they share."""
    report = Report()
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        seeds = _seeds(Path(folder))
        number = 0
        while time.monotonic() < end and (cases is None or number < cases):
            number = _child(names, seed, number, cases, end, seeds, Path(folder), report)
    return report


def _name(names: list[str], seed: int, number: int) -> str:
    """The target of a case."""
    shares = np.array([TARGETS[name].share for name in names])
    at = np.random.default_rng([seed, number]).choice(len(names), p=shares / shares.sum())
    return names[int(at)]


def replay(case: str) -> str:
    """Run one case in this process, with the traceback of its error."""
    name, seed, number = case.rsplit(":", 2)
    with tempfile.TemporaryDirectory(dir=_fast_folder()) as folder:
        seeds = _seeds(Path(folder))
        return _judged(name, int(seed), int(number), seeds, Path(folder) / "case", verbose=True)


def _fast_folder() -> str | None:
    """Memory, if the system has a folder in it: each file that we write is synced."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def _seeds(folder: Path) -> Path:
    """Write the valid files in a child, so that this process starts no thread and can fork."""
    seeds = folder / "seeds"
    seeds.mkdir()
    pid = os.fork()
    if pid == 0:
        _quiet()
        code = 1
        try:
            make_seeds(seeds)
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise SystemExit("Expected valid files to begin with, found an error.")
    return seeds


def _quiet() -> None:
    warnings.simplefilter("ignore")
    os.environ["OMP_NUM_THREADS"] = os.environ["NUMBA_NUM_THREADS"] = "1"


def _child(
    names: list[str], seed: int, number: int, cases: int | None, end: float, seeds: Path,
    folder: Path, report: Report,
) -> int:  # fmt: skip
    """Run cases in a child until it ends or dies; return the number of the next case."""
    first = number
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(receive)
        code = 1
        try:
            _work(names, seed, number, cases, end, seeds, folder / "case", send)
            code = 0
        finally:
            os._exit(code)  # never back into the parent's code, which removes the valid files
    os.close(send)
    with os.fdopen(receive, encoding="utf-8") as lines:
        for line in lines:
            report.add(f"{_name(names, seed, number)}:{seed}:{number}", line.rstrip("\n"))
            number += 1
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0:
        stack = (folder / "stack").read_text() if (folder / "stack").exists() else ""
        what = "no end" if "Timeout" in stack else f"end of the process with {code}"
        what += f", which ran cases from {first} on;"
        # The innermost call of each thread, and first of those that are in h5py.
        frames = re.findall(r"hread .*\n  (File .*)", stack)
        frames.sort(key=lambda frame: "/h5py/" not in frame)
        # HDF5 itself hangs or crashes on some damaged files, and nothing in Python can prevent it.
        name = _name(names, seed, number)
        known = TARGETS[name].crashes and bool(frames) and "/h5py/" in frames[0]
        outcome = f"{'in HDF5' if known else 'failed'}\t{what} {frames[0] if frames else ''}"
        report.add(f"{name}:{seed}:{number}", outcome)
        number += 1
    return number


def _work(
    names: list[str], seed: int, number: int, cases: int | None, end: float, seeds: Path,
    folder: Path, send: int,
) -> None:  # fmt: skip
    _quiet()
    _limit()
    gc.freeze()
    stack = (folder.parent / "stack").open("w")
    faulthandler.enable(stack, all_threads=False)
    while time.monotonic() < end and (cases is None or number < cases):
        name = _name(names, seed, number)
        faulthandler.dump_traceback_later(TARGETS[name].seconds, exit=True, file=stack)
        outcome = _judged(name, seed, number, seeds, folder)
        gc.collect()  # what is left open by a case must crash in it, not in the next
        faulthandler.cancel_dump_traceback_later()
        os.write(send, (outcome.replace("\n", " ") + "\n").encode("utf-8", "backslashreplace"))
        number += 1
        if outcome.startswith("failed"):
            return  # what it left behind must not harm the next case


def _limit() -> None:
    """Limit the memory of this process, and keep what it writes to the standard streams."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    # Each thread would reserve 64 MB of addresses of its own.
    ctypes.CDLL(None).mallopt(-8, 2)
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)


def _judged(
    name: str, seed: int, number: int, seeds: Path, folder: Path, verbose: bool = False
) -> str:
    """Run a case; return ``read``, ``refused``, or ``failed`` with a reason."""
    target = TARGETS[name]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), number])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = _prepared(target, rng, seeds, folder)
    doors = target.doors + target.changing
    door = doors[int(rng.integers(len(doors)))]
    before, there = _content(folder), {item.name for item in folder.iterdir()}
    if verbose:
        print(f"{path.name}, {door.__name__}", flush=True)  # the process may die
    refused = None
    try:
        door(rng, path, seeds)
    except InputError as error:
        if verbose:
            traceback.print_exc()
        refused = str(error)
    except Stopped:
        return "refused"
    except Wrong as error:
        return f"failed\t{door.__name__}: {error}"
    except BaseException as error:
        if verbose:
            traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in where if "scbatchprox" in frame.filename] or where
        at = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}"
        return f"failed\t{door.__name__}: {type(error).__name__} at {at}: {str(error)[:300]}"
    if refused is not None:
        known = [path.name, *(item.name for item in folder.rglob("*"))]
        if "\n" in refused or len(refused) > 2000:
            return f"failed\t{door.__name__}: more than a sentence: {refused[:300]!r}"
        if SECRET in refused:
            return (
                f"failed\t{door.__name__}: a sentence with what is in another file: {refused[:300]}"
            )
        if "pip install" in refused:
            refused = None  # it was read, and is not scored
        elif refused.startswith(_OF_MODELS):
            pass  # a model that was changed after it was fitted, which is no damage
        elif target.named and not any(name in refused for name in known):
            return f"failed\t{door.__name__}: a sentence that names no file: {refused[:300]}"
    after = _content(folder)
    touched = [name for name in before if _foreign(name) and before[name] != after.get(name)]
    touched += [name for name in after if _foreign(name) and name not in before]
    if touched:
        return f"failed\t{door.__name__}: wrote into another file: {touched[:3]}, {refused}"
    told = [item.name for item in folder.rglob("*") if _tells(item, before, folder)]
    if told:
        return f"failed\t{door.__name__}: stored what is in another file: {told[:3]}"
    if refused is not None or door not in target.changing:
        changed = [name for name in before if before[name] != after.get(name)]
        if changed and target is not TARGETS["journal"]:  # which restores the old content
            return f"failed\t{door.__name__}: changed {changed[:3]}, {refused}"
    made = {item.name for item in folder.iterdir()} - there
    left = [item for item in made if refused is not None or not item.startswith("out")]
    if left and left != ["lock"]:
        return f"failed\t{door.__name__}: left {left}, {refused}"
    return "read" if refused is None else "refused"


def _foreign(name: str) -> bool:
    """Whether a file is one that the damaged file may point to, but that the user has not named."""
    return name.startswith("sentinel")


def _tells(item: Path, before: dict[str, bytes], folder: Path) -> bool:
    """Whether a new file has a text of a file that was not named."""
    name = str(item.relative_to(folder))
    return name not in before and item.is_file() and SECRET.encode() in item.read_bytes()


def _prepared(target: Target, rng: np.random.Generator, seeds: Path, folder: Path) -> Path:
    """Copy valid files to a folder and damage the first."""
    seed = target.seeds[int(rng.integers(len(target.seeds)))]
    for name in (seed, *target.beside):
        if (seeds / name).is_dir():
            shutil.copytree(seeds / name, folder / name)
        else:
            shutil.copyfile(seeds / name, folder / name)
    # A value may not fit into the array that is changed: the file is a case as it is then.
    with contextlib.suppress(Exception):
        target.damage(rng, folder / seed)
    return folder / seed


def _content(folder: Path) -> dict[str, bytes]:
    """The checksums of all files of a folder, by name; a lock is no content."""
    return {
        str(item.relative_to(folder)): hashlib.blake2b(item.read_bytes()).digest()
        for item in folder.rglob("*")
        if item.is_file() and item.name != "lock"
    }


if sys.platform != "linux":
    raise SystemExit(f"Expected Linux for limits of memory and time, found {sys.platform}.")
