"""Couriers of a demonstration: a server, a courier for each site and a run, as processes on loopback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..errors import BadValue
from ..federated.flower.programs import end, free_port

__all__ = ["PATIENCE", "couriers"]

#: Seconds that sites wait for each other and for the server, which may start slowly on a busy machine.
PATIENCE = "900"
#: Seconds that the processes have to end.
END = 60.0


@contextmanager
def couriers(out: Path, homes: Mapping[str, Path]) -> Iterator[None]:
    """Carry messages between the inboxes and outboxes of sites; leave no process behind."""
    logs, store, port = out / "logs", out / "server" / "store", free_port()
    logs.mkdir()
    where = ["--server", f"127.0.0.1:{port}", "--insecure"]
    with ExitStack() as running:
        print("Starting a Flower server and a courier for each site, each a process of its own ...")
        state = ["--port", str(port), "--state", str(out / "server")]
        _start(running, logs, "server", *state, "--insecure")
        for site, home in homes.items():
            boxes = ["--outbox", str(home / "outbox"), "--inbox", str(home / "inbox")]
            _start(running, logs, "courier", *where, *boxes, "--no-check", log=f"courier-{site}")
        run = _start(
            running, logs, "run", *where, "--store", str(store), "--nodes", str(len(homes)),
            "--pause", "0.3", "--wait", PATIENCE,
        )  # fmt: skip
        yield
        if run.poll() is not None:
            raise BadValue(
                f"Expected the couriers to run to the end, found that they failed; see {logs}."
            )
        (store / "stop").touch()
        run.wait(END)


def _start(
    running: ExitStack, logs: Path, verb: str, *arguments: str, log: str | None = None
) -> subprocess.Popen[bytes]:
    file = running.enter_context((logs / f"{log or verb}.log").open("ab"))
    process = subprocess.Popen(
        [sys.executable, "-m", "scbatchprox", "federated", verb, *arguments],
        stdin=subprocess.DEVNULL, stdout=file, stderr=file,
    )  # fmt: skip
    running.callback(end, process, END)
    return process
