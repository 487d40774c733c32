"""Flower's own programs: where they are, what they may see, and the options and keys we give them."""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...errors import BadFile, BadValue, MissingExtra

__all__ = [
    "check_installed",
    "end",
    "environment",
    "free_port",
    "is_loopback",
    "make_key",
    "node_command",
    "on_signals",
    "program",
    "server_command",
    "wait_for",
]

#: What Flower sees of the environment: a shell may hold passwords and paths that are none of its business.
_PASSED = {
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PYTHONPATH",
    "VIRTUAL_ENV", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
}  # fmt: skip


def check_installed() -> None:
    """Raise an error without Flower."""
    if find_spec("flwr") is None:
        raise MissingExtra("Flower", "flower")


def program(name: str) -> str:
    """Return the path of a program of Flower, which is installed beside Python."""
    check_installed()
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}")
    found = found or shutil.which(name)
    if found is None:
        raise MissingExtra(f"the program {name}", "flower")
    return found


def environment(home: Path) -> dict[str, str]:
    """Return the environment of Flower's programs: nothing is reported or looked up on the internet."""
    passed = {name: value for name, value in os.environ.items() if name in _PASSED}
    beside = str(Path(sys.executable).parent)  # superlinks start other programs by their names
    return passed | {
        "PATH": os.pathsep.join([beside, passed.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",  # what a run says is shown at once
    }


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host of this name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise BadValue(f"Expected an address HOST:PORT, found {address!r}.")
    return host.strip("[]"), int(port)


def check_secure(host: str, insecure: bool) -> None:
    """Without TLS, allow loopback only."""
    if insecure and not is_loopback(host):
        raise BadValue(
            f"Expected a loopback host (127.0.0.1, localhost, ::1) with --insecure, found {host!r}."
        )


def existing(path: Path, what: str) -> Path:
    """Return the absolute path of a file that exists."""
    if not path.is_file():
        raise BadFile(f"Expected {what} at {path}, found none.")
    return path.resolve()


def server_command(
    host: str, port: int, database: Path, certificates: Path | None, *, insecure: bool
) -> list[str]:
    """Return the command of a superlink: with TLS and known sites only, unless it is insecure."""
    check_secure(host, insecure)
    command = [program("flower-superlink"), "--host", host, "--port", str(port)]
    command += ["--database", str(database), "--disable-runtime-dependency-installation"]
    if insecure:
        return [*command, "--insecure"]
    if certificates is None:
        raise BadValue(
            "Expected --certificates, a folder with ca.crt, server.pem and server.key, found none; "
            "--insecure is for loopback only."
        )
    for option, name in _CERTIFICATES.items():
        command += [option, str(existing(certificates / name, "a certificate or key"))]
    return [*command, "--enable-supernode-auth"]


_CERTIFICATES = {
    "--ssl-ca-certfile": "ca.crt",
    "--ssl-certfile": "server.pem",
    "--ssl-keyfile": "server.key",
}


def node_command(
    address: str, port: int, secret: str, ca: Path | None, key: Path | None, *, insecure: bool
) -> list[str]:
    """Return the arguments of a supernode that leaves its messages to :class:`~.courier.Responder`."""
    check_secure(split_address(address)[0], insecure)
    arguments = ["--superlink", address, "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--isolation", "process", "--superexec-auth-secret-file", secret]
    if insecure:
        return [*arguments, "--insecure"]
    if ca is None or key is None:
        raise BadValue(
            "Expected --ca, the server's certificate authority, and --key, this site's key, found "
            f"{'no --ca' if ca is None else 'no --key'}; --insecure is for loopback only."
        )
    arguments += ["--root-certificates", str(existing(ca, "the server's certificate authority"))]
    return [*arguments, "--auth-supernode-private-key", str(existing(key, "this site's key"))]


def free_port() -> int:
    """Return a port of loopback that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for(host: str, port: int, seconds: float) -> None:
    """Wait until a port answers; raise an error if it does not in time."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=2).close()
            return
        except OSError:
            if time.monotonic() >= end:
                raise BadValue(
                    f"Expected a server at {host}:{port} within {seconds:.0f} s, found none."
                ) from None
            time.sleep(0.2)


def end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask a process to end, and kill it if it does not in time."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def on_signals(numbers: Iterable[int], handler: Callable[..., Any]) -> Iterator[None]:
    """Within it, a function is called at these signals."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known)


def make_key(path: Path) -> Path:
    """Write a new P-384 key, which only its owner can read, and its public half beside it.

    The server knows a site by it. It signs no message of a study.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    public = path.with_name(path.name + ".pub")
    for taken in (path, public):
        if os.path.lexists(taken):
            raise BadValue(
                f"Expected a new file at {taken}, found one; a key is never overwritten."
            )
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(private)
    half = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public.write_bytes(half + b"\n")
    return public
