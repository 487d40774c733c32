"""A courier: a supernode, and the hands that answer its messages."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from .hands import Hands
from .leash import GRACE
from .programs import check_installed, environment, free_port, node_command
from .site import Site

__all__ = ["carry"]


def carry(
    address: str,
    outbox: Path,
    inbox: Path,
    *,
    ca: Path | None = None,
    key: Path | None = None,
    insecure: bool = False,
    say: Callable[[str], None],
) -> int:
    """Carry files until a signal or the end of the supernode, and return the exit code."""
    check_installed()
    port, secret = free_port(), secrets.token_bytes(32)
    arguments = node_command(address, port, "/dev/fd/{}", ca, key, insecure=insecure)
    hands = Hands(f"127.0.0.1:{port}", secret, Site(outbox, inbox))
    with tempfile.TemporaryDirectory(prefix="courier-") as home:
        node = _start(arguments, secret, Path(home))
        try:
            worker = threading.Thread(target=hands.run, daemon=True)
            worker.start()
            say(f"carrying files between {outbox}, {inbox} and {address}")
            with _Signals(node):
                code = node.wait()
        finally:
            hands.stop()
            _end(node)
        worker.join(timeout=GRACE)
    if code:
        say(
            f"The courier ended, because its supernode did (exit code {code}); its last lines say why."
        )
    return 1 if code else 0


def _start(arguments: list[str], secret: bytes, home: Path) -> subprocess.Popen[bytes]:
    """Start the supernode; the secret goes through a pipe, so it is in no file and no list of processes."""
    reader, writer = os.pipe()
    try:
        os.write(writer, secret)
        os.close(writer)
        return subprocess.Popen(
            [
                sys.executable, "-m", f"{__package__}.leash",
                *(argument.replace("/dev/fd/{}", f"/dev/fd/{reader}") for argument in arguments),
            ],
            env=environment(home), pass_fds=(reader,), start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(reader)


class _Signals:
    """Within it, SIGINT and SIGTERM end the supernode."""

    def __init__(self, node: subprocess.Popen[bytes]) -> None:
        self._node = node

    def __enter__(self) -> None:
        self._before = {
            number: signal.signal(number, lambda *_: self._node.terminate())
            for number in (signal.SIGINT, signal.SIGTERM)
        }

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def _end(node: subprocess.Popen[bytes]) -> None:
    if node.poll() is None:
        node.terminate()
        try:
            node.wait(GRACE)
        except subprocess.TimeoutExpired:
            node.kill()
            node.wait()
