"""Runs commands, in this process or in a new one."""

import json
import os
import subprocess
import sys

from typer.testing import CliRunner

import warm_processes
from research.command import app as app_of_research
from scbatchprox.cli.app import app

#: What commands begin with, and what runs them.
PROGRAMS = {("scbatchprox",): app, ("python", "-m", "research"): app_of_research}


def run(*arguments, code=0, app=app):
    """In this process, which is faster."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


def research(*arguments, **options):
    """``python -m research`` in this process."""
    return run(*arguments, app=app_of_research, **options)


def program(words):
    """What runs a command of a page (None if it is neither of ours), and its arguments."""
    for start, found in PROGRAMS.items():
        if words[: len(start)] == start:
            return found, list(words[len(start) :])
    return None, list(words)


def answer(*arguments, code=0):
    """The JSON object that a command prints."""
    return json.loads(run(*arguments, "--json", code=code).stdout)


def command(*arguments, **options):
    """In a new process, as in a shell."""
    return subprocess.run(
        [sys.executable, "-m", "scbatchprox", *map(str, arguments)],
        capture_output=True, text=True, **options,
    )  # fmt: skip


def warm_command(*arguments):
    """As :func:`command`, two seconds faster: all is imported before."""
    return warm_processes.run("from scbatchprox.cli import main; main()", *arguments)


def printed_on(terminal):
    """All bytes that are written to a pseudo-terminal, which is then closed."""
    shown = b""
    while True:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # the end, on Linux
            break
        if not more:
            break
        shown += more
    os.close(terminal)
    return shown
