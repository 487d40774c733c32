import contextlib
import datetime
import hashlib
import ipaddress
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scbatchprox.federated.flower.letters import FIRST_LINE, Content, Part
from scbatchprox.federated.flower.programs import free_port

PLAN = "0123456789abcdef"
#: Seconds that a test waits for anything at most. A busy machine may need minutes to start the processes of
#: Flower; what a test waits for is a condition, and this only ends a test that waits in vain.
LIMIT = 600


def pytest_configure(config):
    config.addinivalue_line("markers", "flower: needs flwr, which make test-flower installs")
    # The typer that Flower wants is older than click's latest.
    config.addinivalue_line("filterwarnings", "ignore:'click.utils:DeprecationWarning")


class Maker:
    """Writes messages, and makes parts of them."""

    plan = PLAN

    @staticmethod
    def content(text="x", size=0):
        return (FIRST_LINE + text.encode()).ljust(size, b".")

    def write(self, root, name, content=None):
        path = Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.content(name) if content is None else content)
        return path

    @staticmethod
    def entry(content):
        return Content(hashlib.sha256(content).hexdigest(), len(content))

    def part(self, name, content, offset=0, length=None):
        data = content[offset:] if length is None else content[offset : offset + length]
        return Part(name, self.entry(content), offset, data)

    @staticmethod
    def found(root):
        """Content by name of all files below a folder."""
        root = Path(root)
        return {
            str(path.relative_to(root)): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and not path.is_symlink()
        }


@pytest.fixture(scope="session")
def maker():
    return Maker()


def _certificate(subject, key, issuer=None, issuer_key=None):
    """A certificate for loopback; of an authority, if nobody else issues it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    now = datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer.subject if issuer else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    return made.sign(issuer_key or key, hashes.SHA256())


def write_certificates(folder):
    """ca.crt, server.pem and server.key, for tests on loopback."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    folder.mkdir(parents=True)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    ca = _certificate("test authority", keys[0])
    own = _certificate("localhost", keys[1], ca, keys[0])
    (folder / "ca.crt").write_bytes(ca.public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(own.public_bytes(Encoding.PEM))
    private = keys[1].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.key").write_bytes(private)
    return folder


COMMAND = "from scbatchprox.cli import main; main()"
# What the command does after its checks, which refuse root with TLS.
CARRY = """
import sys
from pathlib import Path
from scbatchprox.federated.flower.courier import carry
address, outbox, inbox, ca, key = sys.argv[1:]
sys.exit(carry(address, Path(outbox), Path(inbox), ca=Path(ca), key=Path(key), say=print))
"""


class Loopback:
    """A server and couriers in processes of their own, found by a folder in their environment."""

    write_certificates = staticmethod(write_certificates)
    carry = CARRY
    limit = LIMIT
    until = staticmethod(lambda condition: _until(condition))

    def __init__(self, root, maker):
        self.root, self.maker = root, maker
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.logs = root / "logs"
        self.logs.mkdir(parents=True)
        (root / "tmp").mkdir()
        self.running = {}

    def start(self, name, script, *arguments):
        env = os.environ | {"TMPDIR": str(self.root / "tmp")}
        with open(self.logs / name, "ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-c", script, *map(str, arguments)],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, cwd=self.root,
                start_new_session=True,
            )  # fmt: skip
        return self.running[name]

    def command(self, name, *arguments):
        return self.start(name, COMMAND, "federated", *arguments)

    def site(self, name):
        for box in ("out", "in"):
            (self.root / name / box).mkdir(parents=True, exist_ok=True)
        self.maker.write(self.root / name / "out", f"cards/{name}.card")
        return self.root / name / "out", self.root / name / "in"

    def inbox(self, name):
        return sorted(self.maker.found(self.root / name / "in"))

    def log(self, name):
        return (self.logs / name).read_text(errors="replace")

    def processes(self, containing=""):
        """Numbers of all processes of this test, or of those whose command contains a text."""
        mark, found = os.fsencode(str(self.root / "tmp")), []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environ = (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if mark in environ and containing in command:
                found.append(int(folder.name))
        return found

    def family(self, name):
        """A courier and its supernode."""
        parent = self.running[name].pid
        return [parent, *(p for p in self.processes() if _parent(p) == parent)]

    def signal(self, name, number):
        for process in self.family(name):
            os.kill(process, number)

    def run(self, nodes, *arguments):
        """Carry files between all sites until nothing moves."""
        name = f"run-{len(list(self.logs.glob('run-*')))}"
        # A site that answered late gets its files with the next sweeps, so one idle sweep is not enough.
        process = self.command(
            name, "run", "--server", self.address, "--store", self.root / "store", "--wait", LIMIT,
            "--timeout", 60, "--pause", 0.3, "--idle", 3, "--nodes", nodes, *arguments,
        )  # fmt: skip
        assert process.wait(LIMIT) == 0, self.log(name)

    def end(self):
        """Ask all to end, and assert that they do, with all that they started."""
        for process in self.processes():
            os.kill(process, signal.SIGCONT)
        for process in self.running.values():
            if process.poll() is None:
                process.terminate()
        _until(lambda: [p.poll() for p in self.running.values()].count(None) == 0)
        _until(lambda: not self.processes())

    def kill(self):
        for process in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for process in self.running.values():
            process.wait(LIMIT)


def _parent(process):
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def _holds(condition):
    try:
        return condition()
    except FileNotFoundError:  # a file was moved between its listing and its reading
        return False


def _until(condition):
    end = time.monotonic() + LIMIT
    while not _holds(condition):
        assert time.monotonic() < end, "not in time"
        time.sleep(0.1)


@pytest.fixture
def loopback(tmp_path, maker):
    made = Loopback(tmp_path, maker)
    try:
        yield made
        made.end()
    finally:
        made.kill()
