"""A courier: a supernode, and what answers its messages in place of the app that a server sends.

Flower runs whatever Python a server sends along with a run. A courier must not, so its supernode is started
with ``--isolation process``, which leaves this to another process. That process is this one: it takes each
message from the supernode over loopback, and always answers with our own code. These are parts of Flower
that may change with any version, so the extra ``flower`` pins its version.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .client import CourierSite
from .programs import check_installed, end, environment, free_port, node_command, on_signals
from .supernode import GRACE

__all__ = ["Responder", "carry"]

_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
#: Seconds between looks for a message, and failures in a row (a supernode starts slowly) until a warning.
POLL, PATIENCE = 0.25, 240

_log = logging.getLogger(__name__)


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
    responder = Responder(f"127.0.0.1:{port}", secret, CourierSite(outbox, inbox))
    with tempfile.TemporaryDirectory(prefix="courier-") as home:
        node = _start(arguments, secret, Path(home))
        try:
            worker = threading.Thread(target=responder.run, daemon=True)
            worker.start()
            say(f"carrying files between {outbox}, {inbox} and {address}")
            with on_signals((signal.SIGINT, signal.SIGTERM), lambda *_: node.terminate()):
                code = node.wait()
        finally:
            responder.stop()
            end(node, GRACE)
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
                sys.executable, "-m", f"{__package__}.supernode",
                *(argument.replace("/dev/fd/{}", f"/dev/fd/{reader}") for argument in arguments),
            ],
            env=environment(home), pass_fds=(reader,), start_new_session=True,
        )  # fmt: skip
    finally:
        os.close(reader)


class Responder:
    """Takes and answers messages until :meth:`stop`."""

    def __init__(self, address: str, secret: bytes, site: CourierSite) -> None:
        self._address, self._secret, self._site = address, secret, site
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End :meth:`run` after the message in hand."""
        self._stopped.set()

    def run(self) -> None:
        """Answer messages; an error is logged and the next message is taken."""
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.constant import TaskType
        from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

        signed = SuperExecAuthHttpInterceptor(
            master_secret=self._secret, protected_methods=frozenset({_ACQUIRE})
        )
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        client, trouble = _client(self._address, signed), 0
        try:
            while not self._stopped.is_set():
                try:
                    task = client.AcquireTask(wanted)
                    if task.HasField("task") and task.token:
                        self._answer(task.token)
                    trouble = 0
                except Exception as error:
                    trouble += 1
                    if trouble == PATIENCE:
                        _log.warning("The courier has trouble with its supernode: %s", error)
                self._stopped.wait(POLL)
        finally:
            client.close()

    def _answer(self, token: str) -> None:
        from flwr.common.constant import SubStatus
        from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
        from flwr.supernode.runtime.run_clientapp import (
            pull_task_input,
            push_message,
            push_task_output,
        )

        from .apps import reply

        client = _client(self._address, RuntimeTokenHttpInterceptor(token=token))
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heartbeat.start()
        try:
            # The app itself (the last value) is neither unpacked nor run.
            message, context, _, _ = pull_task_input(client)
            push_message(client, reply(message, self._site), context)
            # After a failure nothing is reported: without heartbeats, the supernode gives the message up. A
            # report without an answer would make it wait for ever.
            push_task_output(client, context, SubStatus.COMPLETED, "")
        finally:
            heartbeat.stop()
            client.close()


def _client(address: str, interceptor: Any) -> Any:
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    return RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=True,  # loopback, within one account
        root_certificates=None,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"), interceptor],
    )
