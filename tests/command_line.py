"""Runs commands, in this process or in a new one."""

import json
import subprocess
import sys

from typer.testing import CliRunner

from scbatchprox.cli.app import app


def run(*arguments, code=0):
    """In this process, which is faster."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == code, result.output
    return result


def answer(*arguments, code=0):
    """The JSON object that a command prints."""
    return json.loads(run(*arguments, "--json", code=code).stdout)


def command(*arguments, **options):
    """In a new process, as in a shell."""
    return subprocess.run(
        [sys.executable, "-m", "scbatchprox", *map(str, arguments)],
        capture_output=True, text=True, **options,
    )  # fmt: skip
