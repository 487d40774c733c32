"""Runs of the courier's app on a server, with Flower's own command line."""

from __future__ import annotations

import json
import math
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ..._version import __version__
from .programs import (
    check_secure,
    environment,
    existing,
    on_signals,
    program,
    split_address,
    wait_for,
)

__all__ = ["DONE", "ENDED", "FAILED", "TIMED_OUT", "Server", "Settings", "admit", "run"]

DONE, FAILED, TIMED_OUT = 0, 1, 124
#: The last line of a run; what follows says why it ended.
ENDED = "courier ended: "
#: Seconds for one question to a server, and for a run to start and to end beyond its own limit.
_ASK, _MARGIN = 60.0, 120.0
_NAME = "server"
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_STARTED = re.compile(r"Successfully started run (\d+)")

_APP = """\
[project]
name = "scbatchprox-courier"
version = {version}
description = "Carries signed files between sites."
license = "BSD-3-Clause"

[tool.flwr.app]
publisher = "scbatchprox"

[tool.flwr.app.components]
serverapp = "scbatchprox.federated.flower.apps:server"
clientapp = "scbatchprox.federated.flower.apps:client"

[tool.flwr.app.config]
{config}
"""


@dataclass(frozen=True)
class Settings:
    """When a run ends, and how long it waits."""

    seconds: float = 0.0  # 0: no limit
    idle: int = 0  # sweeps in a row in which nothing moved; 0: no limit
    nodes: int = 1  # as many sites must have answered for a sweep to be idle
    timeout: float = 60.0  # for one answer
    pause: float = 2.0  # between sweeps in which nothing moved
    poll: float = 0.5


@dataclass(frozen=True)
class Server:
    """Where a superlink is, and how it is trusted."""

    address: str
    ca: Path | None = None
    insecure: bool = False

    @contextmanager
    def tools(self) -> Iterator[Callable[..., subprocess.Popen[str]]]:
        """Yield a function that starts ``flwr`` with arguments, in a home of its own."""
        host, _ = split_address(self.address)
        check_secure(host, self.insecure)
        lines = [f"[superlink.{_NAME}]", f"address = {json.dumps(self.address)}"]
        if self.insecure:
            lines.append("insecure = true")
        elif self.ca is not None:
            ca = existing(self.ca, "the server's certificate authority")
            lines.append(f"root-certificates = {json.dumps(str(ca))}")
        with tempfile.TemporaryDirectory(prefix="courier-run-") as home:
            (Path(home) / "config.toml").write_text("\n".join(lines) + "\n")

            def start(*arguments: str) -> subprocess.Popen[str]:
                return subprocess.Popen(
                    [program("flwr"), *arguments],
                    env=environment(Path(home)), cwd=home, text=True, errors="replace",
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    # Ctrl-C is ours: it stops the run first.
                    start_new_session=True,
                )  # fmt: skip

            yield start


def admit(server: Server, public_key: Path) -> str:
    """Let a site's key in, and return what the server says."""
    key = str(existing(public_key, "a public key"))
    with server.tools() as start:
        code, output = _ask(start("supernode", "register", key, _NAME))
    if code:
        raise RuntimeError(f"the server did not admit {public_key.name}: {_last(output)}")
    return _last(output)


def run(
    server: Server,
    store: Path,
    settings: Settings,
    *,
    say: Callable[[str], None],
    wait: float = 60.0,
) -> int:
    """Run the courier's app until it ends, and return 0, 1 (failed) or 124 (out of time)."""
    wait_for(*split_address(server.address), wait)
    with server.tools() as start, tempfile.TemporaryDirectory(prefix="courier-app-") as folder:
        _write_app(Path(folder), store.resolve(), settings)
        stream = start("run", folder, _NAME, "--stream")
        watch, status = _Watch(stream, say), "unknown"
        # SIGTERM is like Ctrl-C. Only the main thread may say so.
        main = threading.current_thread() is threading.main_thread()
        try:
            with on_signals([signal.SIGTERM] if main else [], signal.default_int_handler):
                watch.follow(settings.seconds + _MARGIN if settings.seconds else math.inf)
        finally:
            _end(stream)
            if watch.number is not None:
                status = _status(start, watch.number)
                if status not in _OVER:
                    # Nobody would see it any more.
                    _ask(start("stop", watch.number, _NAME))
    if watch.late or (watch.ended == "seconds" and settings.idle):
        return TIMED_OUT
    return DONE if status == "finished:completed" else FAILED


_OVER = {"finished:completed", "finished:failed", "finished:stopped"}


@dataclass
class _Watch:
    """Follows the output of a run, line by line, until it ends or a time is over."""

    stream: subprocess.Popen[str]
    say: Callable[[str], None]
    number: str | None = None
    ended: str | None = None
    late: bool = False

    def follow(self, seconds: float) -> None:
        """Print lines as they come."""
        reader = threading.Thread(target=self._read, daemon=True)
        reader.start()
        end = time.monotonic() + seconds
        while reader.is_alive():
            reader.join(0.2)
            if time.monotonic() >= end:
                self.late = True
                return

    def _read(self) -> None:
        assert self.stream.stdout is not None
        for line in self.stream.stdout:
            line = _COLOURS.sub("", line).rstrip()
            if found := _STARTED.search(line):
                self.number = found[1]
            if ENDED in line:
                self.ended = line.split(ENDED)[1].strip()
            if line and line != "INFO :":
                self.say(line)


def _write_app(folder: Path, store: Path, settings: Settings) -> None:
    """Write an app that has no code: its components are in this package, which is installed."""
    values = {"store": str(store), **asdict(settings)}
    config = "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
    version = ".".join(re.findall(r"\d+", __version__)[:3])
    text = _APP.format(version=json.dumps(version), config=config)
    (folder / "pyproject.toml").write_text(text)


def _status(start: Callable[..., subprocess.Popen[str]], number: str) -> str:
    """Return the status of a run: the end of its stream says nothing about it."""
    code, output = _ask(start("list", _NAME, "--run-id", number, "--format", "json"))
    found = re.search(r"\{.*\}", output, re.DOTALL)
    if code or not found:
        return "unknown"
    runs = json.loads(found[0]).get("runs", [])
    return str(runs[0].get("status", "unknown")) if runs else "unknown"


def _ask(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        output, _ = process.communicate(timeout=_ASK)
    except subprocess.TimeoutExpired:
        output = ""
    finally:
        _end(process)
    return process.returncode, output


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing"
