"""Real processes on loopback. Every wait is for a condition, with a limit; no process may be left."""

import contextlib
import http.client
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

import pytest

from scbatchprox.federated.flower import runs
from scbatchprox.federated.flower.programs import make_key, wait_for

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs flwr: make test-flower"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc"),
]


def cards(names):
    return [f"cards/{name}.card" for name in names]


def serve(loopback, *arguments):
    return loopback.command(
        "server", "server", "--port", loopback.port, "--state", loopback.root / "state", *arguments
    )


@contextlib.contextmanager
def proxy(loopback):
    """A proxy that passes /v1/fleet/ alone, and its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if not self.path.startswith("/v1/fleet/"):
                self.send_error(403)
                return
            connection = http.client.HTTPConnection(
                "127.0.0.1", loopback.port, timeout=loopback.limit
            )
            try:
                connection.request("POST", self.path, body, dict(self.headers))
                answer = connection.getresponse()
                content = answer.read()
            except OSError:
                self.send_error(502)
                return
            finally:
                connection.close()
            self.send_response(answer.status)
            self.send_header("content-type", answer.getheader("content-type", ""))
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def courier(loopback, name, address=None):
    outbox, inbox = loopback.site(name)
    return loopback.command(
        name, "courier", "--insecure", "--no-check", "--server", address or loopback.address,
        "--outbox", outbox, "--inbox", inbox,
    )  # fmt: skip


EVIL = """\
from pathlib import Path
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.app import Message, RecordDict
Path({mark!r}).touch()
app = ClientApp()
server = ServerApp()

@app.query()
def query(message, context):
    Path({mark!r}).touch()
    return Message(RecordDict(), reply_to=message)

@server.main()
def main(grid, context):
    Path({server!r}).touch()
    Path({mark!r}).unlink()
    messages = [Message(RecordDict(), dst_node_id=n, message_type="query") for n in grid.get_node_ids()]
    answers = list(grid.send_and_receive(messages, timeout={limit}))
    print("answers:", [sorted(a.content.config_records["codes"]["codes"]) for a in answers], flush=True)
"""


@pytest.mark.usefixtures("ctrl_c")
def test_silent_and_killed_sites(loopback):
    serve(loopback, "--insecure")
    for name in "abc":
        courier(loopback, name)
    loopback.run(3, "--insecure")
    for name in "abc":
        assert loopback.inbox(name) == cards(sorted({*"abc"} - {name}))

    def code(name):
        return f"codes/{loopback.maker.plan}/{name}.code"

    # A silent site does not stop the others.
    loopback.signal("c", signal.SIGSTOP)
    for name in "abc":
        loopback.maker.write(loopback.root / name / "out", code(name))
    loopback.command(
        "long", "run", "--server", loopback.address, "--store", loopback.root / "store",
        "--insecure", "--timeout", 15, "--pause", 0.3,
    )  # fmt: skip
    loopback.until(lambda: code("b") in loopback.inbox("a"))
    loopback.until(lambda: code("a") in loopback.inbox("b"))
    loopback.until(lambda: "is silent" in loopback.log("long"))  # which the server tells later
    assert code("a") not in loopback.inbox("c")

    # It wakes up, and another is killed meanwhile.
    loopback.running["b"].kill()
    loopback.signal("c", signal.SIGCONT)
    # A connection that was lost is tried again after two minutes at the latest.
    loopback.until(lambda: code("a") in loopback.inbox("c"))
    loopback.until(lambda: code("c") in loopback.inbox("a"))
    # The supernode of the killed one ends.
    loopback.until(lambda: len(loopback.processes("flower.supernode")) == 2)

    # Ctrl-C ends the run, also on the server.
    loopback.running["long"].send_signal(signal.SIGINT)
    assert loopback.running["long"].wait(loopback.limit) == 130
    loopback.until(lambda: not loopback.processes("flwr-serverapp"))


def test_a_program_that_a_server_sends_is_not_run(loopback):
    serve(loopback, "--insecure")
    folder = loopback.root / "evil"
    folder.mkdir()
    mark, server = loopback.root / "mark", loopback.root / "server-mark"
    (folder / "evil.py").write_text(
        EVIL.format(mark=str(mark), server=str(server), limit=loopback.limit)
    )
    text = runs._APP.format(version='"1.0.0"', config="")
    text = text.replace("scbatchprox.federated.flower.apps:server", "evil:server")
    text = text.replace("scbatchprox.federated.flower.apps:client", "evil:app")
    (folder / "pyproject.toml").write_text(text)
    wait_for("127.0.0.1", loopback.port, loopback.limit)
    with proxy(loopback) as outside:
        courier(loopback, "a", outside)
        loopback.until(lambda: "SuperNode ID" in loopback.log("a"))
        # Through the proxy, nobody can start a run.
        with runs.Server(outside, insecure=True).tools() as start:
            refused = start("run", str(folder), "server")
            refused.communicate(timeout=loopback.limit)
        assert refused.returncode != 0
        assert not server.exists()
        with runs.Server(loopback.address, insecure=True).tools() as start:
            run = start("run", str(folder), "server", "--stream")
            output, _ = run.communicate(timeout=loopback.limit)
        assert server.exists(), output  # the server ran it
        assert "answers: [['bad-request']]" in output
        assert not mark.exists()  # the site did not
        loopback.end()


def test_certificates_keys_and_a_restart(loopback):
    certificates = loopback.write_certificates(loopback.root / "certificates")
    others = loopback.write_certificates(loopback.root / "others")
    trust = ("--server", loopback.address, "--ca", certificates / "ca.crt")

    def carry(name, ca):
        outbox, inbox = loopback.site(name)
        key = loopback.root / f"{name}.key"
        loopback.start(name, loopback.carry, loopback.address, outbox, inbox, ca, key)

    for name in ("a", "b", "c", "stranger", "misled"):
        make_key(loopback.root / f"{name}.key")
    serve(loopback, "--certificates", certificates)
    wait_for("127.0.0.1", loopback.port, loopback.limit)
    for name in ("a", "b", "c", "misled"):
        loopback.command(f"admit-{name}", "admit", loopback.root / f"{name}.key.pub", *trust)
    for name in ("a", "b", "c", "misled"):
        assert loopback.running[f"admit-{name}"].wait(loopback.limit) == 0, loopback.log(
            f"admit-{name}"
        )
    for name in ("a", "b", "c", "stranger"):
        carry(name, certificates / "ca.crt")
    carry("misled", others / "ca.crt")

    loopback.run(3, *trust[2:])
    assert loopback.inbox("a") == cards("bc")
    assert loopback.inbox("b") == cards("ac")
    assert loopback.inbox("c") == cards("ab")
    for name in ("stranger", "misled"):
        assert loopback.running[name].wait(loopback.limit) == 1
        assert loopback.inbox(name) == []
    assert sorted(loopback.maker.found(loopback.root / "store")) == cards("abc")

    # A new server with the old database knows the keys, and couriers come back by themselves. One was killed.
    loopback.running["server"].kill()
    loopback.running["server"].wait(loopback.limit)
    loopback.running["c"].kill()
    plan = f"plans/{loopback.maker.plan}.plan"
    loopback.maker.write(loopback.root / "a" / "out", plan)
    serve(loopback, "--certificates", certificates)
    loopback.run(2, *trust[2:])
    assert plan in loopback.inbox("b")
    assert plan not in loopback.inbox("c")
