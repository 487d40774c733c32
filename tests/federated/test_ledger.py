"""A site answers a plan once, whatever happens: the same bytes again, or nothing."""

import json
import os
import shutil
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from federated_study import (
    NAMES,
    Study,
    answer_file,
    own_moments,
    own_of,
    run,
    write_cells,
)
from scbatchprox import BatchProx, Moments, Pooled
from scbatchprox.errors import BadValue, InUse
from scbatchprox.federated import (
    WIDE,
    Message,
    MessageFolder,
    OwnNumbers,
    Waiting,
    refine_parameters,
)
from scbatchprox.federated.ledger import Answer, Ledger
from scbatchprox.federated.messages import MAGIC, as_bytes

FOUR = (*NAMES, "west")


@pytest.fixture
def study(tmp_path):
    return Study.make(tmp_path)


@pytest.fixture
def moments(rng):
    return own_moments(rng, FOUR)


def files_in(place):
    return {path: path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def test_the_same_bytes_again(study, moments):
    plan = study.plan()
    study.answer(plan, {name: moments[name] for name in NAMES})
    before = files_in(study.shared)
    for name in NAMES:
        assert isinstance(run(study.sites[name], plan, moments[name]), Pooled)
    assert files_in(study.shared) == before
    # Lost messages are repeated, also after the ledger's copy is lost: they depend on nothing else.
    shutil.rmtree(study.shared / "sums")
    for path in (study.sites["north"].private / "ledger").rglob("*.sum"):
        path.unlink()
    for name in NAMES:
        run(study.sites[name], plan, moments[name])
    assert files_in(study.shared) == before


@pytest.mark.parametrize("permitted", [False, True])
def test_a_second_answer_with_other_cells(study, moments, rng, permitted):
    plan = study.plan()
    run(study.sites["east"], plan, moments["east"])
    before = files_in(study.shared)
    other = own_moments(rng)["east"]
    for lost in (False, True):
        if lost:
            shutil.rmtree(study.shared / "sums")
        with pytest.raises(BadValue, match="a site answers a plan once"):
            run(study.sites["east"], plan, other, permitted=permitted)
        assert not lost or not (study.shared / "sums").exists()
        assert lost or files_in(study.shared) == before
    assert isinstance(run(study.sites["east"], plan, moments["east"]), Waiting)
    assert files_in(study.shared) == before


def test_a_plan_with_other_members(tmp_path, moments):
    """The difference of two such sums is one site's numbers: only its operator can allow that."""
    study = Study.make(tmp_path, FOUR)
    east = study.sites["east"]
    first, second = study.plan(NAMES), study.plan(("east", "north", "west"))
    run(east, first, moments["east"])
    before = files_in(study.shared)
    with pytest.raises(BadValue, match="other members: the difference of the two sums may reveal"):
        run(east, second, moments["east"])
    assert files_in(study.shared) == before
    assert isinstance(run(east, second, moments["east"], permitted=True), Waiting)
    # Both can be repeated and finished without being asked again, whichever comes first in the ledger.
    for plan in (first, second):
        assert isinstance(run(east, plan, moments["east"], confirmed=None), Waiting)
    third = study.plan(("east", "south", "west"))
    with pytest.raises(BadValue, match="other members"):
        run(east, third, moments["east"])


def entered(tmp_path, *answers):
    """Enter answers in a new ledger; the last one may be refused."""
    ledger = Ledger(tmp_path / "ledger")
    with ledger.held():
        for answer in answers:
            ledger.enter(answer, permitted=False)


def answer_of(
    study,
    names=NAMES,
    kind="refine",
    sizes=(40, 25),
    numbers=1.0,
    note="",
    model=None,
    embedding="x",
):
    parameters = refine_parameters(model or BatchProx(target="moment"), 3, embedding)
    plan = study.plan(names, kind, note, **parameters)
    own = OwnNumbers.of([f"b{i}" for i in range(len(sizes))], np.array(sizes), np.array([numbers]))
    return Answer.to(plan, own)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"names": ("east", "north", "west")}, "other members"),
        # The sums of a PCA hold the moments of its scores, so kinds are compared too.
        ({"names": ("east", "north", "west"), "kind": "pca"}, "other members"),
        ({"sizes": (40, 24), "kind": "pca"}, "other cells"),
        ({"sizes": (40, 24), "note": "a"}, "other cells"),
        ({"sizes": (41, 24), "note": "a"}, "other cells"),
        ({"sizes": (41, 24), "embedding": "y"}, "other cells"),
        ({"numbers": 2.0, "note": "a"}, "other cells"),
        # How the sums are used does not change what is summed.
        ({"numbers": 2.0, "model": BatchProx(rounds=7, target="moment")}, "other cells"),
        ({"note": "again"}, ""),
        ({"model": BatchProx(rounds=7, target="moment")}, ""),
        ({"numbers": 2.0, "embedding": "y"}, ""),
        ({"numbers": 2.0, "kind": "pca"}, ""),
    ],
    ids=str,
)
def test_what_needs_permission(tmp_path, change, found):
    study = Study.make(tmp_path, FOUR)
    answers = answer_of(study), answer_of(study, **change)
    for pair in (answers, answers[::-1]):
        shutil.rmtree(tmp_path / "ledger", ignore_errors=True)
        if found:
            with pytest.raises(BadValue, match=f"found {found}: the difference of the two sums"):
                entered(tmp_path, *pair)
        else:
            entered(tmp_path, *pair)


def test_plans_whose_hashes_begin_alike(tmp_path, moments, study):
    """The start of a hash can be made to agree; each plan still has an entry of its own."""
    answer = answer_of(study)
    alike = Answer(**{**vars(answer), "plan": answer.plan[:16] + "0" * 48})
    entered(tmp_path, answer, alike)
    assert len(list((tmp_path / "ledger").glob("*/answer.json"))) == 2


# --- damage ---------------------------------------------------------------------------------------


def damaged(content):
    known = json.loads(content)
    yield b""
    yield content[:-1]
    yield content[: len(content) // 2]
    yield b"\0" * len(content)
    yield b"null"
    yield b"[]"
    yield b'{"plan":"x"}'
    yield as_bytes(known | {"more": 1})
    yield as_bytes(known | {"plan": "0" * 64})
    yield as_bytes({name: known[name] for name in known if name != "members"})


def test_a_damaged_entry_refuses_everything(study, moments):
    east = study.sites["east"]
    first, second = study.plan(), study.plan(note="another")
    run(east, first, moments["east"])
    (entry,) = (east.private / "ledger").glob("*/answer.json")
    content = entry.read_bytes()
    before = files_in(study.shared)
    for raw in damaged(content):
        entry.write_bytes(raw)
        for plan in (first, second):
            with pytest.raises(BadValue, match="found a damaged file; nothing is sent"):
                run(east, plan, moments["east"])
    assert files_in(study.shared) == before
    entry.write_bytes(content)
    assert isinstance(run(east, second, moments["east"]), Waiting)


@pytest.mark.parametrize("at", [3, 40, 500, -70, -1])
def test_a_damaged_message_in_the_ledger_never_leaves(study, moments, at):
    east, plan = study.sites["east"], study.plan()
    run(east, plan, moments["east"])
    (path,) = (east.private / "ledger").rglob("*.sum")
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    shutil.rmtree(study.shared / "sums")
    with pytest.raises(BadValue, match="Expected"):
        run(east, plan, moments["east"])
    assert not (study.shared / "sums").exists()


# --- kills and other processes --------------------------------------------------------------------


def test_the_ledger_is_on_disk_before_anything_leaves(study, moments, monkeypatch):
    """Not only written but synced: the folder of messages may be another disk, or a mail."""
    east, plan = study.sites["east"], study.plan()
    events = []
    sync, publish = os.fsync, MessageFolder.publish

    def synced(handle):
        events.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    def published(self, place, message):
        events.append("publish")
        publish(self, place, message)

    if not Path("/proc/self/fd").exists():
        pytest.skip("names of open files are only known on Linux")
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(MessageFolder, "publish", published)
    run(east, plan, moments["east"])
    ledger = east.private.resolve() / "ledger"
    before = events[: events.index("publish")]
    entry = ledger / plan.hash
    assert [event for event in before if ".answer.json." in event]
    assert [event for event in before if ".0000.sum." in event]
    assert before.count(str(entry)) == 2
    assert str(ledger) in before
    assert not any(str(study.shared) in event for event in before)


KILL = """
import json, os, shutil, signal, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import numpy as np
from federated_study import Study, NAMES, own_moments, run
from scbatchprox.errors import BadValue
from scbatchprox.federated import MessageFolder
from scbatchprox.federated import Site, Waiting

os.fsync = lambda handle: None  # a killed process loses nothing that it has written
place, rounds = Path(sys.argv[1]), int(sys.argv[2])
study = Study.make(place / "start")
plan = study.plan()
moments = own_moments(np.random.default_rng(1))
other = own_moments(np.random.default_rng(2))["east"]
if rounds == 2:  # killed while it answers round 1
    study.answer(plan, moments, rounds=2)

def copy(name):
    shutil.copytree(place / "start", place / name)
    shared = place / name / "shared"
    return Site.open(place / name / "private-east", MessageFolder(shared, shared)), shared

def answer(site, own=moments["east"]):
    return run(site, plan, own, rounds=rounds)

message = f"sums/{plan.id}/{rounds - 1:04}/east.sum"
site, shared = copy("whole")
answer(site)
expected = (shared / message).read_bytes()

def hooked(limit):
    count = 0
    def call(*_):
        nonlocal count
        count += 1
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)
    os.fsync = call
    watched = {"open", "os.rename", "os.mkdir", "os.remove", "os.chmod", "os.link"}
    sys.addaudithook(lambda event, _: call() if event in watched else None)

kills, seen = 0, set()
while True:
    site, shared = copy("now")
    child = os.fork()
    if child == 0:
        hooked(kills + 1)
        try:
            answer(site)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    killed = os.WIFSIGNALED(status)
    # What is in the folder is the message or a part of it, under another name, or nothing.
    there = [path for path in shared.rglob("*") if path.is_file() and "east.sum" in path.name
             and path.parent.name == f"{rounds - 1:04}"]
    entry = site.private / "ledger" / plan.hash
    for path in there:
        raw = path.read_bytes()
        assert raw == expected if path.name == "east.sum" else expected.startswith(raw), path
        assert (entry / "answer.json").exists()
        assert (entry / f"{rounds - 1:04}.sum").read_bytes() == expected
    known = (entry / "answer.json").exists()
    given = (shared / message).exists()
    seen.add((known, given, bool(there)))
    # Other cells: refused as soon as the ledger has an entry.
    second = shutil.copytree(place / "now", place / "second")
    twin = Site.open(second / "private-east", MessageFolder(second / "shared", second / "shared"))
    try:
        answer(twin, other)
        assert not known and not there, "two answers"
    except BadValue as error:
        assert known and "answers a plan once" in str(error), error
    # The same cells: the same bytes.
    answer(site)
    assert (shared / message).read_bytes() == expected
    shutil.rmtree(place / "now")
    shutil.rmtree(place / "second")
    if not killed:
        break
    kills += 1
print(json.dumps({"kills": kills, "seen": sorted(seen)}))
"""


def script(text, *arguments):
    tests = str(Path(__file__).parent.parent)
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(os.name != "posix", reason="forks")
@pytest.mark.parametrize("rounds", [1, 2])
def test_killed_at_every_system_call(tmp_path, rounds):
    found = script(KILL, str(tmp_path), str(rounds))
    assert found["kills"] > 20
    if (
        rounds == 1
    ):  # kills before the entry, after it, while the message is written, and at the end
        assert [False, False, False] in found["seen"]
        assert [True, False, False] in found["seen"]
    assert [True, False, True] in found["seen"]
    assert [True, True, True] in found["seen"]


RACE = """
import json, os, sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
import numpy as np
from federated_study import Study, own_moments, run
from scbatchprox.errors import BadValue

study = Study.make(Path(sys.argv[1]))
plan = study.plan()
site = study.sites["east"]
start, go = os.pipe()
children = []
for seed in range(6):  # six processes of one site, each with other cells
    own = own_moments(np.random.default_rng(seed))["east"]
    child = os.fork()
    if child == 0:
        code = 3
        try:
            os.close(go)
            os.read(start, 1)  # all at once, when the parent closes its end
            run(site, plan, own)
            code = 0
        except BadValue:
            code = 1
        finally:
            os._exit(code)
    children.append(child)
os.close(go)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(json.dumps(codes))
"""


@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_several_processes_of_one_site(tmp_path):
    codes = script(RACE, str(tmp_path))
    assert sorted(codes) == [0, 1, 1, 1, 1, 1]
    assert len(list((tmp_path / "shared" / "sums").rglob("*"))) == 3  # two folders and one message
    assert len(list((tmp_path / "private-east" / "ledger").rglob("*.sum"))) == 1


def test_a_second_process_is_told_so(study, moments):
    plan = study.plan()
    with (
        study.sites["east"].ledger.held(),
        pytest.raises(InUse, match="the ledger .* to be free to write to"),
    ):
        run(study.sites["east"], plan, moments["east"])
    assert not (study.shared / "sums").exists()


# --- every byte that leaves a site ----------------------------------------------------------------


def encodings(value):
    """Bytes that would show a number; too few of them could be in random bytes by chance."""
    yield from (struct.pack(f"{order}d", value) for order in "<>")
    if value != np.round(value) and abs(value) < 1e38:
        yield from (struct.pack(f"{order}f", value) for order in "<>")
    for text in (repr(float(value)), f"{value:.6f}", f"{value:.6e}", f"{value:.9g}"):
        if len(text) > 7:
            yield text.encode()
    (fixed,) = WIDE.integers(WIDE.encoded(np.array([float(value)])))
    for order in ("little", "big"):
        raw = fixed.to_bytes(48, order, signed=True)
        yield raw
        core = raw.strip(b"\0").strip(b"\xff")
        if len(core) > 4:
            yield core
    if value == np.round(value):
        yield from (struct.pack(f"{order}q", int(value)) for order in "<>")


def secrets_of(own, Z):
    """Numbers of a site that nobody may see: cells, and sums of any of its batches or of all of them."""
    both = Z.sum(0), (Z**2).sum(0), Z.mean(0), Z.var(0), Z.std(0)
    per_batch = own.mean, own.m2, own.var, own.std, own.n[:, None] * own.mean
    numbers = [Z[:3], *both, *per_batch, own.n, own.n.sum()]
    return {float(value) for array in numbers for value in np.ravel(array)} - {0.0}


def test_no_byte_in_the_folder_shows_a_value(study, tmp_path, rng):
    plan = study.plan()
    files, secrets, words = {}, set(), [str(tmp_path).encode()]
    for i, name in enumerate(NAMES):
        n = 4711 + i
        donors = np.array([f"donor-{name}-A", f"donor-{name}-B"])[
            (np.arange(n) >= 3000).astype(int)
        ]
        Z = rng.normal(size=(n, 3)) * [1.0, 5.0, 0.1]
        Z[:, 2] = 1234.56789 + i  # a constant coordinate is easy to recognise
        files[name] = write_cells(tmp_path / f"ward-{name}.h5ad", Z, donors)
        secrets |= secrets_of(Moments.of(Z, donors), Z)
        words += [f"donor-{name}".encode(), f"ward-{name}".encode(), b"X_pca", b"donor"]
    for name in NAMES:
        answer_file(study.sites[name], plan, files[name])
    found = {}
    for name in NAMES:
        file = files[name]
        out = tmp_path / f"refined-{name}.h5ad"
        file = type(file)(file.path, file.batch_key, file.use_rep, None, out)
        found[name] = answer_file(study.sites[name], plan, file, write=True)
        assert out.exists()
    assert found["east"].fit_.pooled.n_cells == 3 * 4711 + 3

    everything = files_in(study.shared)
    patterns = {pattern for value in secrets for pattern in encodings(value)}
    assert len(patterns) > 1000
    for path, raw in everything.items():
        place = path.relative_to(study.shared).as_posix().encode()
        for pattern in patterns | set(words):
            assert pattern not in raw, (path, pattern)
            assert pattern not in place
        # Headers hold what is known without any cell; only a sum has a body, and that is masked.
        message = Message.read(path)
        kind = path.suffix[1:]
        if kind == "sum":
            header = {
                "type": "sum", "site": path.stem, "plan": plan.hash, "round": 0, "state": "",
                "bits": 384, "fraction": 192, "count": 9,
            }  # fmt: skip
            assert message.header == header
            assert len(message.body) == 9 * 48
        elif kind == "plan":
            assert message.header == {"type": "plan", "site": "east", "plan": plan.to_json()}
        else:
            card = study.sites[path.stem].keys.card
            assert message.header == {"type": "card", "card": card.to_json()}
        if kind != "sum":
            assert message.body == b""
        assert raw == MAGIC + as_bytes(message.header) + b"\n" + message.body + message.signature
    suffixes = sorted(path.suffix for path in everything)
    assert suffixes == [".card"] * 3 + [".plan"] + [".sum"] * 3
    # No private key either.
    for site in study.sites.values():
        for key in (site.keys.signing, site.keys.masking):
            raw = key.private_bytes_raw()
            for content in everything.values():
                assert raw not in content
                assert raw.hex().encode() not in content


def test_the_search_would_find_a_value(study, tmp_path, moments, monkeypatch):
    """Without masks the same search finds many."""
    from scbatchprox.federated import site as module

    monkeypatch.setattr(module, "masked", lambda limbs, *_: limbs)
    plan, own = study.plan(), moments["east"]
    run(study.sites["east"], plan, own)
    raw = study.sum_path(plan, "east").read_bytes()
    total = {float(own.n.sum()), float((own.n[:, None] * own.mean).sum(0)[0])}
    assert sum(pattern in raw for value in total for pattern in encodings(value)) >= 2


def test_hashes_of_own_numbers_stay_in_the_ledger(study, moments):
    """A hash of few numbers could be guessed."""
    plan = study.plan()
    study.answer(plan, {name: moments[name] for name in NAMES})
    own = own_of(moments["east"])
    for raw in files_in(study.shared).values():
        assert own.sizes.encode() not in raw
        assert own.numbers.encode() not in raw
