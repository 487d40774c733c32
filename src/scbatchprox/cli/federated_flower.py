"""The commands of ``scbatchprox federated`` that carry messages with Flower."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..errors import BadValue
from . import options as o
from .command import command

__all__ = ["add"]

_trust = partial(typer.Option, rich_help_panel="Trust")
_limits = partial(typer.Option, rich_help_panel="Limits")
Address = Annotated[str, typer.Option("--server", metavar="HOST:PORT", help="Where the server is.")]
Ca = Annotated[Path | None, _trust(help="Certificate authority of the server (ca.crt).")]
Insecure = Annotated[
    bool, _trust("--insecure", help="Without TLS and without keys: on loopback only.")
]


def add(app: typer.Typer) -> None:
    """Register the commands."""
    for function, example in (
        (server, "server --certificates certificates"),
        (
            courier,
            "courier --server study.example.org:443 --ca ca.crt --key courier.key --outbox outbox "
            "--inbox inbox --check /data/cells.h5ad",
        ),
        (run, "run --server 127.0.0.1:8000 --ca ca.crt --nodes 3 --idle 5"),
        (courier_key, "courier-key --out courier.key"),
        (admit, "admit courier.key.pub --server 127.0.0.1:8000 --ca ca.crt"),
    ):
        command(app, f"scbatchprox federated {example}")(function)


def server(
    output: o.VerboseOnly,
    certificates: Annotated[
        Path | None, _trust(help="Folder with ca.crt, server.pem and server.key.")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Host to listen on; a proxy should be all that reaches it.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    state: Annotated[
        Path, typer.Option(help="Folder of the server's database; a restart goes on from there.")
    ] = Path("courier-server"),
    insecure: Insecure = False,
) -> None:
    """Start the server that couriers meet at (a Flower superlink).

    It sees names, sizes and signed bytes of messages. Whoever reaches its control API can run programs on
    this machine: keep it on loopback, behind a proxy that passes /v1/fleet/ alone.
    """
    from ..federated.flower.programs import environment, is_loopback, server_command

    folder = state.resolve()
    superlink = server_command(host, port, folder / "flower.db", certificates, insecure=insecure)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_loopback(host):
        output.print_note(
            f"Warning: whoever reaches port {port} of {host} can run programs on this machine; let a "
            "proxy pass /v1/fleet/ alone."
        )
    # From here on, this process is the superlink: signals reach it, and nothing else is left behind.
    os.execve(superlink[0], superlink, environment(folder / "flower"))


def courier(
    output: o.NoJson,
    address: Address,
    outbox: Annotated[Path, typer.Option(help="Folder of this site's own messages.")],
    inbox: Annotated[Path, typer.Option(help="Folder for messages of other sites.")],
    ca: Ca = None,
    key: Annotated[
        Path | None, _trust(help="This site's key for the server (courier-key makes one).")
    ] = None,
    check: Annotated[
        list[Path] | None,
        _trust(
            help="Cells or a private folder, which this account must not be able to read; repeat for all."
        ),
    ] = None,
    no_check: Annotated[
        bool,
        _trust("--no-check", help="Neither cells nor keys are on this machine: check nothing."),
    ] = False,
    insecure: Insecure = False,
) -> None:
    """Carry messages between this site's folders and a server, until Ctrl-C.

    It runs under an account of its own that can read the outbox and write the inbox, and nothing of the
    site's cells and keys. Programs that a server sends are never run.
    """
    from ..federated.flower import folder
    from ..federated.flower.programs import check_installed

    check_installed()
    if bool(check) == no_check:
        raise BadValue(
            "Expected --check with the site's cells and private folder, or --no-check if neither is on "
            f"this machine, found {'both' if check else 'none'}."
        )
    folder.check_account(insecure=insecure)
    folder.check_private(check or [])
    folder.check_boxes(outbox, inbox)

    from ..federated.flower.courier import carry

    code = carry(address, outbox, inbox, ca=ca, key=key, insecure=insecure, say=output.print_note)
    raise typer.Exit(code)


def run(
    output: o.NoJson,
    address: Address = "127.0.0.1:8000",
    ca: Ca = None,
    insecure: Insecure = False,
    store: Annotated[
        Path, typer.Option(help="Folder of the files that are carried; a later run goes on there.")
    ] = Path("courier-server/store"),
    seconds: Annotated[float, _limits(min=0, help="End after this time; 0 for never.")] = 0.0,
    idle: Annotated[
        int,
        _limits(
            min=0, help="End after so many sweeps in a row in which nothing moved; 0 for never."
        ),
    ] = 0,
    nodes: Annotated[
        int,
        _limits(min=1, help="As many sites must have answered for a sweep to count as idle."),
    ] = 1,
    timeout: Annotated[float, _limits(min=1, help="Seconds to wait for a site's answer.")] = 60.0,
    pause: Annotated[
        float, _limits(min=0, help="Seconds between sweeps while nothing moves.")
    ] = 2.0,
    wait: Annotated[float, _limits(min=0, help="Seconds to wait for the server.")] = 60.0,
) -> None:
    """Carry files between all connected sites, on the server's machine, until nothing is left to carry.

    Exit codes: 0 done, 1 failed, 124 out of time before the sites were idle. A file named `stop` in the
    store ends it too.
    """
    from ..federated.flower import runs
    from ..federated.flower.programs import check_installed

    check_installed()
    settings = runs.Settings(seconds=seconds, idle=idle, nodes=nodes, timeout=timeout, pause=pause)

    def say(line: str) -> None:
        output.print_line(line)
        sys.stdout.flush()  # a log file shows it at once, too

    code = runs.run(runs.Server(address, ca, insecure), store, settings, say=say, wait=wait)
    raise typer.Exit(code)


def courier_key(
    output: o.VerboseOnly,
    out: Annotated[Path, typer.Option(help="Write the key here, and its public half to OUT.pub.")],
) -> None:
    """Make the key by which a server knows this site's courier. It signs no message of a study."""
    from ..federated.flower.programs import check_installed, make_key

    check_installed()
    public = make_key(out)
    output.print_line(f"wrote {out} and {public}; send {public.name} to the server's operator")


def admit(
    output: o.VerboseOnly,
    public_key: Annotated[
        Path, typer.Argument(metavar="KEY.pub", help="Public half of a courier's key.")
    ],
    address: Address = "127.0.0.1:8000",
    ca: Ca = None,
    insecure: Insecure = False,
) -> None:
    """Let a site's courier in, on the server's machine."""
    from ..federated.flower import runs
    from ..federated.flower.programs import check_installed

    check_installed()
    output.print_line(runs.admit(runs.Server(address, ca, insecure), public_key))
