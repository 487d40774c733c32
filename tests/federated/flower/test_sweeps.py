"""A server and its sites in one process: only Flower is missing."""

import json

import pytest

from scbatchprox import BatchProx, PopulationSettings, PopulationTarget, federated
from scbatchprox.errors import BadFile, BadValue
from scbatchprox.federated.flower import letters
from scbatchprox.federated.flower.client import CourierSite
from scbatchprox.federated.flower.letters import Code, Letter
from scbatchprox.federated.flower.runs import Settings
from scbatchprox.federated.flower.server import STOP, Sweeps


class Post:
    """Sites that answer at once, unless they are silent. Time passes when somebody waits."""

    def __init__(self, sites):
        self.sites, self.silent, self.time = sites, set(), 0.0
        self.sent, self.answers, self.bytes = [], {}, []

    def nodes(self):
        return list(self.sites)

    def send(self, node, records, ttl):
        number = f"{len(self.sent)}"
        self.sent.append((node, Letter.of(records)))
        self.bytes.append(repr(records))
        self.answers[number] = (node, records)
        return number

    def receive(self, numbers):
        found = {}
        for number in numbers:
            node, records = self.answers[number]
            if node not in self.silent:
                found[number] = self.sites[node].answer(records)
                self.bytes.append(repr(found[number]))
        return found

    def sleep(self, seconds):
        self.time += seconds


class Study:
    def __init__(self, root, maker, names="abc", **options):
        self.root, self.maker = root, maker
        self.names = dict(enumerate(names, 1))
        for name in names:
            for box in ("out", "in"):
                (root / name / box).mkdir(parents=True, exist_ok=True)
        self.said = []
        self.post = Post(
            {
                i: CourierSite(root / n / "out", root / n / "in", **options)
                for i, n in self.names.items()
            }
        )

    def write(self, site, name, content=None):
        return self.maker.write(self.root / site / "out", name, content)

    def sweeps(self, **settings):
        settings = Settings(
            **{"idle": 2, "nodes": 1, "timeout": 10.0, "seconds": 1000.0} | settings
        )
        (self.root / "store").mkdir(exist_ok=True)
        return Sweeps(
            self.post, self.root / "store", settings,
            say=self.said.append, clock=lambda: self.post.time, sleep=self.post.sleep,
        )  # fmt: skip

    def inbox(self, site):
        return self.maker.found(self.root / site / "in")

    def complete(self):
        """All outboxes, as they should be in all other inboxes."""
        out = {name: self.maker.found(self.root / name / "out") for name in self.names.values()}
        return all(
            self.inbox(site) == {k: v for n, files in out.items() if n != site for k, v in files.items()}
            for site in out
        )  # fmt: skip


@pytest.fixture
def study(tmp_path, maker):
    return Study(tmp_path, maker)


def fill(study):
    for site in study.names.values():
        study.write(site, f"cards/{site}.card")
        study.write(site, f"sums/{study.maker.plan}/0000/{site}.sum")


def test_files_of_three_outboxes_reach_all_inboxes(study):
    fill(study)
    assert study.sweeps(nodes=3).run() == "idle"
    assert study.complete()
    assert not [line for line in study.said if "conflict" in line]


def test_large_files_travel_in_parts(tmp_path, maker, monkeypatch):
    monkeypatch.setattr(letters, "PART", 1_000)
    monkeypatch.setattr("scbatchprox.federated.flower.server.BUDGET", 2_500)
    study = Study(tmp_path, maker, budget=2_500)
    study.write("a", "cards/a.card", maker.content(size=10_123))
    study.write("b", "cards/b.card", maker.content(size=3_000))
    assert study.sweeps(nodes=3).run() == "idle"
    assert study.complete()
    sizes = [sum(len(part.data) for part in letter.parts) for _, letter in study.post.sent]
    assert 2_000 < max(sizes) <= 2_500


def test_a_silent_site_delays_the_others_by_one_timeout(study):
    fill(study)
    study.post.silent = {2}
    assert study.sweeps(nodes=2).run() == "idle"
    assert {"cards/c.card", f"sums/{study.maker.plan}/0000/c.sum"} == study.inbox("a").keys()
    assert study.inbox("b") == {}
    assert 10 <= study.post.time < 20
    assert [line for line in study.said if "silent" in line] == [
        "site 2 is silent; the others go on"
    ]


def test_a_site_that_wakes_up_gets_everything(study):
    fill(study)
    study.post.silent = {2}
    sweeps = study.sweeps(nodes=3)
    for _ in range(5):
        sweeps.sweep()
    study.post.silent = set()
    assert sweeps.run() == "idle"
    assert study.complete()


def test_a_site_that_is_lost_for_a_request_is_asked_again(study):
    fill(study)
    sweeps = study.sweeps(nodes=3)
    receive = study.post.receive
    study.post.receive = lambda numbers: dict.fromkeys(numbers)  # Flower's errors
    assert sweeps.sweep() == (0, 0)
    study.post.receive = receive
    assert sweeps.run() == "idle"
    assert study.complete()


def test_a_new_run_goes_on_from_the_store(study):
    fill(study)
    study.post.sites.pop(3)
    study.sweeps(nodes=2).run()
    late = Study(study.root, study.maker)
    late.post.sites.pop(1)  # only its files are there
    late.sweeps(nodes=2).run()
    assert "cards/a.card" in late.inbox("c")


def test_a_conflict_is_said_once_and_nothing_is_overwritten(study):
    fill(study)
    study.sweeps(nodes=3).run()
    before = {site: study.inbox(site) for site in "abc"}
    study.write("b", "cards/a.card", study.maker.content("not a's"))
    study.write("c", "cards/c.card", study.maker.content("changed"))
    assert study.sweeps(nodes=3).run() == "idle"
    assert {site: study.inbox(site) for site in "abc"} == before
    assert [line for line in study.said if "conflict" in line] == [
        f"site 2: cards/a.card: conflict: {Code.CONFLICT.sentence}",
        f"site 3: cards/c.card: conflict: {Code.CONFLICT.sentence}",
    ]


def test_a_file_that_a_site_refuses_does_not_keep_the_run_busy(study):
    fill(study)
    study.post.sites[1].inbox = type(study.post.sites[1].inbox)(study.root / "a" / "in", files=2)
    assert study.sweeps(nodes=3).run() == "idle"
    assert len(study.inbox("a")) == 2
    assert any("full" in line for line in study.said)


def test_a_site_whose_files_the_store_refuses(study):
    fill(study)
    sweeps = study.sweeps(nodes=3)
    sweeps._store = type(sweeps._store)(study.root / "store", most=40)
    study.write("a", "cards/large.card", study.maker.content(size=60))
    assert sweeps.run() == "idle"
    assert "cards/large.card" not in study.inbox("b")


def test_limits_of_a_run(study):
    assert study.sweeps(idle=0, seconds=60).run() == "seconds"
    assert study.sweeps(nodes=4, seconds=60).run() == "seconds"  # four never answer
    (study.root / "store" / STOP).touch()
    assert study.sweeps().run() == "stop"


def test_a_bad_request_is_answered_with_a_code(study):
    site = study.post.sites[1]
    fill(study)
    for records in ({}, {"letter": {"version": 99}}, {"x": {"y": b"z"}}):
        answer = Letter.of(site.answer(records))
        assert answer == Letter(answer.have, codes={"": Code.BAD_REQUEST})
        assert answer.have.files == {}


def test_an_error_at_a_site_leaves_no_text(study, caplog):
    fill(study)
    site = study.post.sites[1]
    secret = "/secret/path of patient 12"

    def broken():
        raise OSError(5, "Input/output error", secret)

    site.inbox.files = broken
    study.sweeps(nodes=2).run()
    everything = json.dumps(study.said) + "".join(study.post.bytes)
    assert "secret" not in everything
    assert "Traceback" not in everything
    assert "Input/output" not in everything
    assert secret in caplog.text  # it stays at the site
    assert any(Code.FOLDER.sentence in line for line in study.said)


def test_a_hostile_site_cannot_write_elsewhere(study):
    fill(study)

    class Hostile:
        def answer(self, _):
            content = study.maker.content("evil")
            letter = Letter(letters.Have({}, {}), [study.maker.part("../../evil.card", content)])
            return letter.records()

    study.post.sites[3] = Hostile()
    study.sweeps(nodes=3, seconds=60).run()
    assert not list(study.root.rglob("*evil*"))
    assert any(Code.BAD_NAME.sentence in line for line in study.said)


def test_a_hostile_server_cannot_write_elsewhere_nor_read_more(study):
    fill(study)
    site, maker = study.post.sites[1], study.maker
    content = maker.content("evil")
    for name in ("../out/cards/x.card", "cards/a.card", "/tmp/x.card", ".courier/x"):
        answer = Letter.of(
            site.answer(Letter(letters.Have({}, {}), [maker.part(name, content)]).records())
        )
        assert answer.codes
    assert study.inbox("a") == {}
    # What it can make the site send are messages of the outbox.
    maker.write(study.root / "a" / "out", "cells.h5ad", b"\x89HDF")
    maker.write(study.root / "a" / "out", "cards/key.card", b"-----BEGIN PRIVATE KEY-----")
    answer = Letter.of(site.answer(Letter(letters.Have({}, {})).records()))
    sent = {part.name for part in answer.parts}
    assert sent == {"cards/a.card", f"sums/{maker.plan}/0000/a.sum"}


def test_couriers_do_not_change_what_a_site_agrees_to(tmp_path, maker):
    """A plan with other settings of its target arrives everywhere, and no site answers it unasked."""
    study, allowed = Study(tmp_path, maker), {"evidence": 0.01}
    sites = {
        name: federated.Site.create(
            tmp_path / name / "private",
            federated.MessageFolder(tmp_path / name / "in", tmp_path / name / "out"), "lung", name,
        )
        for name in study.names.values()
    }  # fmt: skip
    cards = tuple(site.keys.card for site in sites.values())
    assert study.sweeps(nodes=3).run() == "idle"
    for site in sites.values():
        for card in cards:
            site.trust(card.site, card.fingerprint)
    target = PopulationTarget(settings=PopulationSettings(**allowed))
    parameters = federated.refine_parameters(BatchProx(target=target), 3, "x")
    plan = federated.Plan("lung", "refine", cards, parameters)
    sites["a"].publish_plan(plan, accepted=True, settings=allowed)
    assert study.sweeps(nodes=3).run() == "idle"
    cells = federated.CellsFile(tmp_path / "none.npy", "donor")  # not read
    terms = {"confirmed": plan.fingerprint, "accepted": True}
    for name, site in sites.items():
        arrived = site.folder.plan()
        assert arrived == plan
        before = maker.found(tmp_path / name)
        with pytest.raises(
            BadValue, match=r"Expected evidence=1.3 in plan .*, found evidence=0.01"
        ):
            federated.contribute(site, arrived, cells, **terms)
        assert maker.found(tmp_path / name) == before
        with pytest.raises(BadFile, match="none.npy"):  # now it looks for cells
            federated.contribute(site, arrived, cells, **terms, settings=allowed)
