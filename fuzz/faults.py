"""Commands whose writes fail: a full disk or a broken one, at any call, once or from then on.

``faults.c`` is compiled when the fuzzer starts, and loaded before libc. It does nothing until it is armed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scbatchprox.atlas import Atlas
from scbatchprox.io.formats import open_cells

from .damage import pick
from .stored import meaning
from .target import Stopped, Wrong, ran

__all__ = ["FAULT_SEEDS", "failing_write", "preload"]

_SET = "FUZZ_FAULTS"
#: How a sentence may name the cause.
_CAUSES = {
    errno.ENOSPC: r"no space left|(disk|device|file system)[^.]* full",
    errno.EIO: r"input/output error|i/o error",
}
_ONCE, _ALWAYS, _SHORT = range(3)


def preload() -> bool:
    """Start this program again with the library, once; tell whether it is there."""
    made = os.environ.pop(_SET, None)
    if made is not None:  # it is loaded, so its file is not needed any more
        os.environ.pop("LD_PRELOAD", None)
        shutil.rmtree(made, ignore_errors=True)
        return hasattr(ctypes.CDLL(None), "faults_arm")
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        return False
    folder = tempfile.mkdtemp()
    library, source = f"{folder}/faults.so", Path(__file__).with_name("faults.c")
    command = [compiler, "-O1", "-shared", "-fPIC", "-w", "-o", library, str(source), "-ldl"]
    if subprocess.run(command, capture_output=True).returncode != 0:
        shutil.rmtree(folder)
        return False
    more = {_SET: folder, "LD_PRELOAD": library}
    os.execve(sys.executable, [sys.executable, "-m", "fuzz", *sys.argv[1:]], os.environ | more)


@dataclass(frozen=True)
class _Command:
    """What is run, and what it writes: files beside the input, or the input itself."""

    arguments: Callable[[Path], list[object]]
    writes: tuple[str, ...] = ()


def _cells(kind: str) -> tuple[_Command, ...]:
    """Commands that refine cells of one kind of file."""
    out = f"out{kind}"
    more: list[object] = ["--batch-key", "batch", "--target", "moment"]
    if kind == ".npy":
        more += ["--labels", "labels.txt"]

    def command(*last: str, writes: tuple[str, ...] = (out,)) -> _Command:
        def arguments(path: Path) -> list[object]:
            named = [
                path.with_name(x) if x in (*writes, "labels.txt") else x for x in (*more, *last)
            ]
            return ["refine", path, *named]

        return _Command(arguments, writes)

    return (
        command("--out", out),
        command("--in-place", writes=()),
        command("--out", out, "--model", "out.safetensors", writes=(out, "out.safetensors")),
    )


def _counts(kind: str) -> tuple[_Command, ...]:
    """Commands that embed counts, or score."""

    def embed(path: Path) -> list[object]:
        upstream = path.with_name("pca.safetensors")
        return ["embed", "apply", path, "--upstream", upstream, "--key-added", "done"]

    scores = ["--batch-key", "batch", "--label-key", "type", "--profile", "fast", "--runs", "1"]
    fit = ["--genes", "all", "--coordinates", "2"]
    return (
        _Command(lambda path: [*embed(path), "--out", path.with_name(f"out{kind}")], (f"out{kind}",)),
        _Command(lambda path: [*embed(path), "--in-place"]),
        _Command(
            lambda path: ["embed", "fit", path, *fit, "--out", path.with_name("out.safetensors")],
            ("out.safetensors",),
        ),
        _Command(
            lambda path: ["evaluate", path, *scores, "--reps", "X_pca", "--out", path.with_name("out.csv")],
            ("out.csv",),
        ),
    )  # fmt: skip


def _atlas() -> tuple[_Command, ...]:
    cells = ["--batch-key", "site", "--use-rep", "X_pca", "--force"]
    return (
        _Command(lambda path: ["atlas", "add", path, path.with_name("cells.h5ad"), *cells]),
        _Command(lambda path: ["atlas", "forget", path, "s1"]),
        _Command(lambda path: ["atlas", "rollback", path, "3"]),
    )


_KINDS = ("h5ad", "npz", "npy", "parquet", "csv", "csv.gz")
_COMMANDS = {
    **{f"cells.{kind}": _cells(f".{kind}") for kind in _KINDS},
    **{f"cells{version}.zarr": _cells(".zarr") for version in (2, 3)},
    "counts.h5ad": _counts(".h5ad"), "counts3.zarr": _counts(".zarr"), "atlas": _atlas(),
}  # fmt: skip
FAULT_SEEDS = ("cells.h5ad", "cells.h5ad", *_COMMANDS)


@dataclass(frozen=True)
class _Plain:
    """A run without faults: how many calls could fail, and what was there before and after."""

    calls: int
    before: dict[str, Any]
    after: dict[str, Any]


_plain: dict[tuple[str, int, bool], _Plain] = {}


def failing_write(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Run a command with a fault: it ends with the right content, or with a sentence and the old content."""
    commands = _COMMANDS[path.name]
    which, older = int(rng.integers(len(commands))), bool(rng.random() < 0.5)
    command = commands[which]
    if (path.name, which, older) not in _plain:
        _plain[path.name, which, older] = _without_faults(command, path, older, valid)
    plain = _plain[path.name, which, older]
    if older:
        _older(command, path, valid)
    call, code = 1 + int(rng.integers(plain.calls)), pick(rng, (errno.ENOSPC, errno.EIO))
    how = pick(rng, (_ONCE, _ONCE, _ALWAYS, _SHORT))
    shown = (
        f"{errno.errorcode[code]} {('once', 'always', 'short')[how]} at {call} of {plain.calls}, "
    )
    shown += " ".join(map(str, command.arguments(path))).replace(f"{path.parent}/", "")
    print(shown, flush=True)  # the process may die
    result, _ = _armed(command, path, call, code, how)
    _recover(path)
    found = _state(command, path)
    different = [name for name in found if found[name] != plain.after[name]]
    if result.exit_code == 0:
        if different:
            raise Wrong(f"exit code 0 with wrong {different}: {shown}")
        return
    lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    if result.exit_code != 1 or len(lines) != 1 or isinstance(result.exception, AssertionError):
        raise Wrong(f"exit code {result.exit_code}: {result.stderr[-200:]!r}: {shown}")
    mixed = [name for name in different if found[name] != plain.before[name]]
    if mixed or (different != list(found) and len(found) == 1):
        raise Wrong(
            f"exit code 1, {'mixed' if mixed else 'new'} content in {mixed or '--out'}: {shown}"
        )
    if not re.search(_CAUSES[code], lines[0], re.IGNORECASE):
        raise Wrong(f"a sentence that does not name the cause: {lines[0][:150]!r}: {shown}")
    left = [item.name for item in path.parent.iterdir() if item.name.startswith(".")]
    if left and (code == errno.ENOSPC or how == _ONCE):  # on a broken disk nothing can be removed
        raise Wrong(f"exit code 1, left {left}: {shown}")
    raise Stopped


def _without_faults(command: _Command, path: Path, older: bool, valid: Path) -> _Plain:
    folder = path.parent.with_name("plain")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(path.parent, folder)
    path = folder / path.name
    if older:
        _older(command, path, valid)
    before = _state(command, path)
    result, calls = _armed(command, path, -1, 0, _ONCE)
    if result.exit_code != 0:
        raise RuntimeError(f"a command that fails without a fault: {result.output}")
    found = _Plain(calls, before, _state(command, path))
    shutil.rmtree(folder)
    return found


def _armed(command: _Command, path: Path, call: int, code: int, how: int) -> tuple[Any, int]:
    """Run a command with a fault; return how it ended, and the number of calls that could fail."""
    library = ctypes.CDLL(None)
    arguments = command.arguments(path)
    library.faults_arm(os.fsencode(f"{path.parent}/"), ctypes.c_long(call), code, how)
    try:
        result = ran(*arguments)
        gc.collect()  # HDF5 may write, and crash, when a file that failed is given up
    finally:
        calls = library.faults_disarm()
    return result, calls


def _older(command: _Command, path: Path, valid: Path) -> None:
    """Put older files where the command writes."""
    for name in command.writes:
        old = {"out.safetensors": "model.safetensors", "out.csv": "cells.csv"}.get(name, path.name)
        if (valid / old).is_dir():
            shutil.copytree(valid / old, path.with_name(name))
        else:
            shutil.copyfile(valid / old, path.with_name(name))


def _state(command: _Command, path: Path) -> dict[str, Any]:
    """The content of the files that a command writes."""
    return {name: _read(path.with_name(name)) for name in command.writes or (path.name,)}


def _read(path: Path) -> Any:
    try:
        return meaning(path)
    except Exception as error:
        return repr(error)


def _recover(path: Path) -> None:
    """Open a file as the next command would."""
    with contextlib.suppress(Exception):
        Atlas.open(path) if path.name == "atlas" else open_cells(path).close()
