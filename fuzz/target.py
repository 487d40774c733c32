"""What a fuzz target is, and how its commands are run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import typer.testing
from typer.testing import CliRunner

from scbatchprox.cli.app import app
from scbatchprox.errors import InputError

# Otherwise each run of a command would build all commands again.
typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]

__all__ = ["SECRET", "Damage", "Door", "Stopped", "Target", "Wrong", "ran", "run"]

Damage = Callable[[np.random.Generator, Path], None]
Door = Callable[[np.random.Generator, Path, Path], None]
#: A part of every text in files that a damaged file points to, but that the user has not named.
SECRET = "sesame"


class Wrong(Exception):
    """A command ended in a way that it must not."""


class Stopped(Exception):
    """A command ended as it should, by a sentence that the door has looked at itself."""


@dataclass(frozen=True)
class Target:
    """Files of one kind: which seeds, how they are damaged, and the doors that read them.

    A door is called with a generator, the damaged file and a folder with the valid files. It returns, or
    raises as the library does. ``beside`` are files that lie beside the damaged one; those whose names
    begin with ``sentinel`` never change, whatever a door does.
    """

    seeds: tuple[str, ...]
    damage: Damage
    doors: tuple[Door, ...]
    beside: tuple[str, ...] = ()
    #: Doors that change their input.
    changing: tuple[Door, ...] = ()
    share: float = 1.0
    #: Whether a refusal must name a file; some cases have none.
    named: bool = True
    #: Whether HDF5 may crash or hang, as it does on some damaged files.
    crashes: bool = True
    #: How long a case may take.
    seconds: float = 15


def run(name: str, *arguments: object) -> None:
    """Run a command; exit code 2 becomes the library's error again, others are wrong."""
    result = ran(*arguments)
    if result.exit_code == 2:
        lines = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
        if len(lines) != 1:
            raise Wrong(f"{name}: exit code 2 with {result.stderr!r}")
        raise InputError(lines[0])
    if result.exit_code != 0:
        shown = re.sub(r"\s+", " ", result.stderr)
        shown = shown if len(shown) < 400 else f"{shown[:200]}...{shown[-100:]}"
        raise Wrong(f"{name}: exit code {result.exit_code}: {shown} {result.exception!r}")


def ran(*arguments: object) -> Any:
    """Run a command, and return what it printed and its exit code; it never prints a secret."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if SECRET in result.output:
        at = result.output.index(SECRET)
        shown = re.sub(r"\s+", " ", result.output[max(0, at - 150) : at + 50])
        raise Wrong(f"{arguments[0]}: printed what is in another file: {shown}")
    return result
