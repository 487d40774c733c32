"""The commands: what they refuse, and what they tell Flower's programs."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

import command_line
from scbatchprox.federated.flower import programs, runs

needs_flower = [
    pytest.mark.flower,
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs flwr: make test-flower"),
]


@pytest.fixture
def pretended(monkeypatch):
    """As if Flower were installed; nothing of it is started."""
    monkeypatch.setattr(programs, "find_spec", lambda name: name)
    monkeypatch.setattr(programs, "program", lambda name: f"/bin/{name}")


def run(*arguments, code=2):
    return " ".join(command_line.run("federated", *arguments, code=code).output.split())


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "study.example.org", "10.0.0.1", "128.0.0.1"])
def test_without_tls_only_loopback_is_allowed(host, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "in").mkdir()
    expected = (
        f"Expected a loopback host (127.0.0.1, localhost, ::1) with --insecure, found '{host}'."
    )
    assert expected in run("server", "--insecure", "--host", host, "--state", tmp_path / "state")
    assert not (tmp_path / "state").exists()
    boxes = ("--outbox", tmp_path / "out", "--inbox", tmp_path / "in")
    assert expected in run(
        "courier", "--insecure", "--no-check", "--server", f"{host}:8000", *boxes
    )
    with (
        pytest.raises(ValueError, match="Expected a loopback host"),
        runs.Server(f"{host}:8000", insecure=True).tools(),
    ):
        pass


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "127.1.2.3"])
def test_loopback(host):
    assert programs.is_loopback(host)


@pytest.mark.usefixtures("pretended")
def test_a_server_has_tls_and_known_sites(tmp_path):
    assert "Expected --certificates" in run("server", "--state", tmp_path / "state")
    found = run("server", "--certificates", tmp_path, "--state", tmp_path / "state")
    assert "Expected a certificate or key at" in found
    for name in ("ca.crt", "server.pem", "server.key"):
        (tmp_path / name).write_text("x")
    command = programs.server_command("127.0.0.1", 8000, tmp_path / "db", tmp_path, insecure=False)
    assert {"--enable-supernode-auth", "--database", "--ssl-keyfile"} < set(command)
    assert "--disable-runtime-dependency-installation" in command
    assert "--insecure" not in command


@pytest.mark.usefixtures("pretended")
def test_a_courier_has_an_authority_and_a_key(tmp_path):
    address = "study.example.org:443"
    for ca, key in ((None, None), (tmp_path / "ca.crt", None), (None, tmp_path / "key")):
        with pytest.raises(ValueError, match="Expected --ca, .* and --key, .* found no --"):
            programs.node_command(address, 1, "secret", ca, key, insecure=False)
    (tmp_path / "ca.crt").write_text("x")
    (tmp_path / "key").write_text("x")
    command = programs.node_command(
        address, 1, "secret", tmp_path / "ca.crt", tmp_path / "key", insecure=False
    )
    assert {"--root-certificates", "--auth-supernode-private-key"} < set(command)
    # So that no program of a server is run.
    assert command[command.index("--isolation") + 1] == "process"


@pytest.mark.usefixtures("pretended")
def test_a_courier_is_told_what_to_check(tmp_path):
    start = ("courier", "--server", "127.0.0.1:1", "--outbox", tmp_path, "--inbox", tmp_path)
    assert "found none" in run(*start)
    assert "found both" in run(*start, "--no-check", "--check", tmp_path)
    secret = tmp_path / "cells.h5ad"
    secret.write_text("cells")
    found = run(*start, "--insecure", "--check", secret)
    assert f"Expected that this account cannot read {secret}, found that it can" in found


def test_without_flower_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    for words in (
        ("run", "--insecure"),
        ("server", "--insecure"),
        ("courier-key", "--out", tmp_path / "key"),
        ("admit", tmp_path / "key.pub"),
    ):
        assert "pip install 'scbatchprox[flower]'" in run(*words)


@pytest.mark.parametrize("address", ["", "host", "host:", ":80", "host:0", "host:99999", "host:x"])
def test_bad_addresses(address):
    with pytest.raises(ValueError, match="Expected an address HOST:PORT"):
        programs.split_address(address)


def test_a_server_that_is_not_there(tmp_path):
    port = programs.free_port()
    with pytest.raises(ValueError, match=f"Expected a server at 127.0.0.1:{port} within 0 s"):
        runs.run(
            runs.Server(f"127.0.0.1:{port}", insecure=True),
            tmp_path,
            runs.Settings(),
            say=print,
            wait=0,
        )


def test_flower_sees_little_of_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DATABASE_PASSWORD", "secret")
    monkeypatch.setenv("SCBATCHPROX_DATA", "/data/cells")
    found = programs.environment(tmp_path)
    assert not {"DATABASE_PASSWORD", "SCBATCHPROX_DATA"} & found.keys()
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
    assert found["FLWR_DISABLE_UPDATE_CHECK"] == "1"


def test_a_key_is_for_its_owner_and_never_overwritten(tmp_path):
    pytest.importorskip("cryptography")
    public = programs.make_key(tmp_path / "courier.key")
    assert os.stat(tmp_path / "courier.key").st_mode & 0o777 == 0o600
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    before = (tmp_path / "courier.key").read_bytes()
    with pytest.raises(ValueError, match="a key is never overwritten"):
        programs.make_key(tmp_path / "courier.key")
    assert (tmp_path / "courier.key").read_bytes() == before


@pytest.mark.parametrize(
    "modules", ["", pytest.param("apps, client, server, supernode", marks=needs_flower)]
)
def test_a_courier_loads_neither_cells_nor_numbers(modules):
    wanted = modules or "courier, folder, runs, programs, server, client"
    script = (
        f"import sys\nfrom scbatchprox.federated.flower import {wanted}\n"
        "import scbatchprox.federated.flower.courier\n"
        "heavy = {'numba', 'anndata', 'pandas', 'scipy', 'sklearn', 'h5py', 'zarr', 'torch'}\n"
        "print(sorted(heavy & sys.modules.keys()))\n"
        "own = {'core', 'cells', 'kernels', 'io', 'api', 'targets'}\n"
        "print(sorted(m for m in sys.modules if m.split('.')[0] == 'scbatchprox' and own & {*m.split('.')}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["[]", "[]"]
