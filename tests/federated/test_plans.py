"""Cards and plans that are forged, invented or not confirmed, and the files of keys."""

import hashlib
import json
import os
import re
import shutil
import stat
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from federated_study import (
    NAMES,
    D,
    Study,
    finish,
    forged,
    run,
)
from scbatchprox import BatchProx, MomentTarget, PopulationSettings, PopulationTarget
from scbatchprox.errors import BadValue
from scbatchprox.federated import (
    Card,
    CellsFile,
    Message,
    MessageFolder,
    Plan,
    Site,
    Waiting,
    contribute,
    counts_parameters,
    refine_parameters,
    status_of,
)
from scbatchprox.federated.fit import _model
from scbatchprox.federated.keys import SiteKeys

pytestmark = pytest.mark.usefixtures("no_power_failure")


def test_a_forged_card_under_a_known_name(study, tmp_path):
    forger = Study.make(tmp_path / "forger").sites["south"]
    path = study.shared / "cards" / "south.card"
    real = study.sites["south"].keys.card.fingerprint
    path.write_bytes(forger.keys.card_message().raw)
    with pytest.raises(BadValue, match="the card in the folder is forged") as caught:
        study.sites["east"].trust("south", real)
    # The sentence does not offer the forged one.
    assert forger.keys.card.fingerprint not in str(caught.value)
    with pytest.raises(BadValue, match="keys of south that this site trusts already"):
        study.sites["east"].trust("south", forger.keys.card.fingerprint)
    plan = Plan(
        "lung",
        "refine",
        (study.sites["east"].keys.card, study.sites["north"].keys.card, forger.keys.card),
    )
    with pytest.raises(BadValue, match="found south with other keys"):
        study.sites["east"].check(plan, plan.fingerprint)


def test_a_card_that_is_replaced_while_it_is_trusted(study, tmp_path, monkeypatch):
    """The card that is kept is the one whose fingerprint was compared."""
    sites = study.sites
    path = study.shared / "cards" / "south.card"
    real = sites["south"].keys.card
    (sites["east"].private / "trusted" / "south.card").unlink()
    forger = Study.make(tmp_path / "forger").sites["south"].keys.card_message().raw
    check = Message.check

    def swapped(self, *args, **kwargs):
        path.write_bytes(forger)
        return check(self, *args, **kwargs)

    monkeypatch.setattr(Message, "check", swapped)
    sites["east"].trust("south", real.fingerprint)
    assert Card.read(sites["east"].private / "trusted" / "south.card") == real


def test_a_card_at_the_place_of_another(study):
    shutil.copy(study.shared / "cards" / "north.card", study.shared / "cards" / "west.card")
    with pytest.raises(BadValue, match="Expected the card of west at .*, found that of north"):
        study.sites["east"].folder.card("west")


def test_invented_members(study, moments, tmp_path):
    """A coordinator makes two sites of its own, so that the sum minus its own is one site's."""
    folder = study.sites["east"].folder
    fakes = [Site.create(tmp_path / name, folder, "lung", name) for name in ("ulm", "wien")]
    cards = (study.sites["east"].keys.card, *(fake.keys.card for fake in fakes))
    plan = Plan(
        "lung", "refine", cards, refine_parameters(BatchProx(target="moment"), 3, "an embedding")
    )
    fakes[0].publish_plan(plan)
    with pytest.raises(BadValue, match="Expected only sites that this site trusts, found ulm"):
        finish(study, plan, moments)
    assert not (study.shared / "sums").exists()


def test_plans_that_are_not_confirmed(study, moments):
    plan, other = study.plan(), study.plan(note="another")
    wrong = [None, "", " ", "-", other.fingerprint, plan.fingerprint[:-1], plan.hash, plan.id]
    for confirmed in wrong:
        with pytest.raises(BadValue, match="Expected the fingerprint of plan") as caught:
            finish(study, plan, moments, confirmed=confirmed)
        assert plan.fingerprint not in str(caught.value)
    assert not (study.shared / "sums").exists()
    assert isinstance(
        finish(study, plan, moments, confirmed=f" {plan.fingerprint.upper()} "), Waiting
    )
    # Confirmed once; a wrong one is still refused.
    assert isinstance(finish(study, plan, moments, confirmed=None), Waiting)
    with pytest.raises(BadValue, match="Expected the fingerprint of plan"):
        finish(study, plan, moments, confirmed=other.fingerprint)


def test_a_plan_of_two(study):
    cards = tuple(study.sites[name].keys.card for name in ("east", "north"))
    with pytest.raises(BadValue, match="Expected at least 3 sites, found 2"):
        Plan("lung", "refine", cards)


def test_a_plan_without_the_own_keys(study, moments, tmp_path):
    others = Study.make(tmp_path / "other", ("east", "ulm", "wien"))
    plan = others.plan()
    with pytest.raises(BadValue, match="Expected the keys of this site in the plan"):
        finish(study, plan, moments)
    with pytest.raises(BadValue, match="Expected the keys of this site in the plan"):
        study.sites["east"].publish_plan(plan)
    absent = Study.make(tmp_path / "absent", ("north", "ulm", "wien")).plan()
    with pytest.raises(BadValue, match="Expected a site of the plan, found 'east'"):
        finish(study, absent, moments)


def test_new_keys_of_this_site(study, moments, answered, tmp_path):
    """A site that has lost its keys cannot answer, or repeat, a plan with its old ones."""
    east = study.sites["east"]
    (east.private / "keys.json").unlink()
    SiteKeys.create(east.private, "lung", "east")
    again = Site.open(east.private, east.folder)
    with pytest.raises(BadValue, match="Expected the keys of this site in the plan"):
        run(again, answered, moments["east"])


def cards_with(change):
    """Cards of three sites, the last of which has an entry changed."""
    cards = [
        {"study": "lung", "site": name, "signing": f"{2 * i:064x}", "masking": f"{2 * i + 1:064x}"}
        for i, name in enumerate(NAMES)
    ]
    cards[-1] |= change
    return cards


@pytest.mark.parametrize(
    "members",
    [
        None, "east", [], [1, 2, 3], [{}] * 3, {"a": 1},
        cards_with({"site": "north"}), cards_with({"site": "a"}), cards_with({"site": "../x"}),
        cards_with({"study": "heart"}), cards_with({"signing": f"{0:064x}"}),
        cards_with({"masking": f"{4:064x}"}), cards_with({"signing": "A" * 64}),
        cards_with({"signing": 5}), cards_with({"signing": "0" * 10**5}), cards_with({"more": 1}),
        cards_with({"site": ["south"]}), cards_with({"site": "North"}),
    ],
    ids=lambda x: str(x)[-40:],
)  # fmt: skip
def test_plans_with_wild_members(members):
    stored = {"study": "lung", "kind": "refine", "members": members, "parameters": {}, "note": ""}
    with pytest.raises(BadValue, match="Expected") as caught:
        Plan.from_json(stored)
    assert len(str(caught.value)) < 1000


def test_names_that_differ_in_capitals_only():
    """They would be one file on many systems."""
    cards = sorted(cards_with({"site": "North"}), key=lambda card: card["site"])
    stored = {"study": "lung", "kind": "refine", "members": cards, "parameters": {}, "note": ""}
    with pytest.raises(BadValue, match="not only in capitals"):
        Plan.from_json(stored)


@pytest.mark.parametrize(
    "change",
    [
        {"note": 1}, {"note": None}, {"note": "a\nb"}, {"note": "\x1b[2K\rfingerprint 0000"},
        {"note": "\u202e0000"}, {"note": "x" * 1001}, {"parameters": []}, {"parameters": None},
        {"kind": "steal"}, {"kind": ["refine"]}, {"kind": "x" * 10**5}, {"study": ".."}, {"more": 1},
    ],
    ids=lambda x: str(x)[:40],
)  # fmt: skip
def test_wild_plans(change):
    stored = {
        "study": "lung", "kind": "refine", "members": cards_with({}), "parameters": {}, "note": "",
    }  # fmt: skip
    Plan.from_json(stored)
    with pytest.raises(BadValue, match="Expected") as caught:
        Plan.from_json(stored | change)
    assert len(str(caught.value)) < 1000
    assert str(caught.value).isprintable()


WILD = [None, True, -1, 0, 2.5, 1e308, 10**4000, "x", "", [], {}, [[]], {"name": "x"}, {"name": []}]


def parameters_with(name, value):
    given = refine_parameters(BatchProx(target="moment"), 3, "an embedding")
    if name in given:
        return given | {name: value}
    return given | {"model": given["model"] | {name: value}}


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "n_dims",
        "embedding",
        "min_cells",
        "more",
        *sorted(BatchProx(target="moment").get_params(deep=False)),
    ],
)
def test_wild_parameters(study, name):
    """Refused in one sentence, or a model that can be fitted."""
    cards = tuple(site.keys.card for site in study.sites.values())
    for value in WILD:
        plan = Plan("lung", "refine", cards, parameters_with(name, value))
        try:
            model = _model(plan)
        except BadValue as error:
            assert len(str(error)) < 1000  # noqa: PT017
            continue
        Z = np.random.default_rng(0).normal(size=(60, 3))
        model.fit(Z, batch=np.repeat([0, 1], 30))


def test_settings_of_populations(study):
    """A plan has all of them, whether they were given or not; others are refused in one sentence."""
    cards = tuple(site.keys.card for site in study.sites.values())
    given = refine_parameters(BatchProx(target="population"), 3, "an embedding")
    target = given["model"]["target"]
    assert target["settings"] == PopulationSettings().to_json()
    assert _model(Plan("lung", "refine", cards, given)).target == PopulationTarget()
    own = PopulationTarget(force=True, settings=PopulationSettings(evidence=2.0))
    plan = Plan("lung", "refine", cards, refine_parameters(BatchProx(target=own), 3, "x"))
    assert _model(plan).target == own
    changes = [{"more": 1}, {"seedings": 5}, *({name: "x"} for name in target["settings"])]
    for change in [*changes, *({name: -1} for name in target["settings"])]:
        wild = target | {"settings": target["settings"] | change}
        parameters = given | {"model": given["model"] | {"target": wild}}
        with pytest.raises(BadValue, match="Expected") as caught:
            _model(Plan("lung", "refine", cards, parameters))
        assert len(str(caught.value)) < 1000
    named = given | {"model": given["model"] | {"target": "population"}}  # what its defaults are
    with pytest.raises(BadValue, match="Expected parameters that this version knows"):
        _model(Plan("lung", "refine", cards, named))


def with_settings(study, **settings):
    """A plan with the population target, which nobody has published."""
    target = PopulationTarget(settings=PopulationSettings(**settings))
    cards = tuple(site.keys.card for site in study.sites.values())
    return Plan("lung", "refine", cards, refine_parameters(BatchProx(target=target), D, "x"))


def contents(*folders):
    """Names and bytes of all files."""
    return {
        path: path.read_bytes()
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }


def written_by(study, plan):
    """Publish a plan as a site with a changed program would."""
    east = study.sites["east"]
    header = {"type": "plan", "site": "east", "plan": plan.to_json()}
    east.folder.publish(f"plans/{plan.id}.plan", Message.signed(east.keys.signing, header))
    return plan


ALLOWED = {"evidence": 0.01, "copies": 500}
BOTH = r"^Expected evidence=1.3, copies=32 in plan {}, .* found evidence=0.01, copies=500: .*allow-setting"
REFUSALS = [
    ({}, BOTH),
    ({"prior": 0.2}, BOTH),
    ({"evidence": 0.01}, r"^Expected copies=32 in plan {}, .* found copies=500: "),
    (ALLOWED | {"evidence": 0.02}, r"^Expected evidence=1.3 in plan {}, .* found evidence=0.01: "),
    (
        ALLOWED | {"prior": 0.2},
        r"^Expected to allow settings of plan {} .* found prior=0.2; available: ",
    ),
]


@pytest.mark.parametrize("boxes", ["one folder", "inbox and outbox"])
def test_a_site_refuses_settings_that_it_has_not_allowed(study, moments, tmp_path, boxes):
    """Before it reads a cell (there is no such file), and nothing is written or published."""
    plan = written_by(study, with_settings(study, **ALLOWED))
    outbox = tmp_path / "outbox"
    outbox.mkdir()
    terms = {"confirmed": plan.fingerprint, "accepted": True}
    for site in study.sites.values():
        if boxes == "inbox and outbox":
            site = Site(site.private, MessageFolder(study.shared, outbox), site.keys)
        before = contents(site.private, study.shared, outbox)
        for allowed, sentence in REFUSALS:
            with pytest.raises(BadValue, match=sentence.format(plan.id)):
                contribute(site, plan, CellsFile(tmp_path / "none", "b"), **terms, settings=allowed)
            with pytest.raises(BadValue, match=sentence.format(plan.id)):
                run(site, plan, moments[site.name], accepted=True, settings=allowed)
        assert contents(site.private, study.shared, outbox) == before
        assert not site.ledger.has(plan)
    east = study.sites["east"]
    found = run(east, plan, moments["east"], accepted=True, settings=ALLOWED)
    assert isinstance(found, Waiting)
    assert isinstance(run(east, plan, moments["east"]), Waiting)  # asked once
    with pytest.raises(BadValue, match="Expected evidence=1.3"):  # the other sites, as before
        run(study.sites["north"], plan, moments["north"], accepted=True)


@pytest.mark.parametrize("name", list(PopulationSettings().to_json()))
def test_every_setting_is_looked_at(study, name):
    known = PopulationSettings().to_json()
    plan = with_settings(study, **{name: known[name] * 2})
    site = study.sites["east"]
    sentence = (
        rf"^Expected {name}={known[name]} in plan {plan.id}, .* found {name}={known[name] * 2}: "
    )
    with pytest.raises(BadValue, match=sentence):
        site.check(plan, plan.fingerprint, accepted=True)
    with pytest.raises(BadValue, match=sentence):  # nor does who writes a plan publish it
        site.publish_plan(plan, accepted=True)
    assert not (study.shared / "plans").exists()
    site.check(plan, plan.fingerprint, accepted=True, settings={name: known[name] * 2})
    site.publish_plan(plan, accepted=True, settings={name: known[name] * 2})


def test_settings_of_this_version_need_no_word(study):
    for target in ("moment", MomentTarget(eps=1.0), "population"):
        cards = tuple(site.keys.card for site in study.sites.values())
        given = refine_parameters(BatchProx(target=target), D, "x")
        plan = Plan("lung", "refine", cards, given)
        study.sites["east"].check(plan, plan.fingerprint, accepted=True)
        with pytest.raises(BadValue, match=r"found evidence=1.0; available: none\.$"):
            study.sites["east"].check(
                plan, plan.fingerprint, accepted=True, settings={"evidence": 1.0}
            )


@pytest.mark.parametrize("value", WILD)
def test_wild_settings(study, moments, value):
    """Refused in one sentence, whatever is allowed."""
    plan = with_settings(study)
    for wild in (value, PopulationSettings().to_json() | {"evidence": value}):
        model = plan.parameters["model"]
        target = model["target"] | {"settings": wild}
        parameters = plan.parameters | {"model": model | {"target": target}}
        other = replace(plan, parameters=parameters)
        for allowed in ({}, {"evidence": 1.0}):
            file = CellsFile(study.shared / "none", "b")
            terms = {"confirmed": other.fingerprint, "accepted": True, "settings": allowed}
            with pytest.raises(BadValue, match="Expected") as caught:
                contribute(study.sites["east"], other, file, **terms)
            assert len(str(caught.value)) < 1000
    assert not list(study.shared.glob("sums/*"))


def test_a_plan_at_the_place_of_another(study, answered):
    plans = study.shared / "plans"
    shutil.copy(plans / f"{answered.id}.plan", plans / f"{'0' * 16}.plan")
    with pytest.raises(BadValue, match="Expected the plan 0000000000000000 at .*, found the plan"):
        study.sites["east"].folder.plan("0000")


def test_a_changed_plan_is_another_plan(study, answered):
    path = study.shared / "plans" / f"{answered.id}.plan"
    message = Message.read(path)
    changed = message.header["plan"] | {"note": "a better one"}
    forged(study.sites["east"], path, {"plan": changed})
    with pytest.raises(BadValue, match="found the plan"):
        study.sites["east"].folder.plan(answered.id)
    stranger = Ed25519PrivateKey.generate()
    path.write_bytes(Message.signed(stranger, message.header).raw)
    with pytest.raises(BadValue, match="found another signature"):
        study.sites["east"].folder.plan(answered.id)
    # Nor a card, or anything else that a site has signed, in its place.
    forged(study.sites["east"], path, {"type": "card"})
    with pytest.raises(BadValue, match="Expected type 'plan'"):
        study.sites["east"].folder.plan(answered.id)


@pytest.mark.parametrize("kind", ["moment", "population", "genes", "pca"])
def test_status_shows_every_parameter(study, kind):
    """In words and as JSON, as the site has read it."""
    names = [f"gene{i:04}" for i in range(2_000)]
    given = {
        "genes": lambda: counts_parameters(names, n_hvgs=77),
        "pca": lambda: counts_parameters(names[:9], n_hvgs=8, n_components=4, min_cells=30),
    }.get(
        kind, lambda: refine_parameters(BatchProx(target=kind, mu=0.125, rounds=7), 3, "a text")
    )()
    cards = tuple(site.keys.card for site in study.sites.values())
    kind_of_plan = kind if kind in ("genes", "pca") else "refine"
    plan = Plan("lung", kind_of_plan, cards, given, "a note")
    study.sites["east"].publish_plan(plan, accepted=True)
    (found,) = status_of(study.sites["north"].folder).plans
    stored = json.loads(json.dumps(found.to_json()))
    assert stored["parameters"] == plan.parameters == given
    assert (stored["fingerprint"], stored["note"]) == (plan.fingerprint, "a note")
    assert stored["members"] == {card.site: card.fingerprint for card in cards}
    assert "differs" not in stored
    sentences = found.sentences()
    assert plan.fingerprint in sentences[0]
    shown = dict(line.strip().split(": ", 1) for line in sentences if line.startswith("    "))
    left = dict(given)
    for path, text in shown.items():
        *outer, last = path.split(".")
        place = left
        for name in outer:
            place = place[name]
        value = place.pop(last)
        if last == "genes" and len(value) > 100:
            assert "2,000 entries" in text
            digest = hashlib.sha256(json.dumps(value, separators=(",", ":")).encode()).hexdigest()
            assert digest[:4] in text
            assert digest[28:32] in text
        else:
            assert json.loads(text) == value
    rest = left if kind != "population" else left.pop("model")["target"] | left
    assert not [value for value in rest.values() if value not in ({}, {"settings": {}})]


def test_status_of_wild_parameters(study):
    """Whatever a stranger wrote, it is short, on its own lines, and no command to a terminal."""
    east = study.sites["east"]
    cards = tuple(site.keys.card for site in study.sites.values())
    deep = {}
    for i in range(200):
        deep = {f"{i}": deep}
    for wild in (
        {"a\nfingerprint 0000": "b\x1b[2J\x7f\u202e"}, {"": {"": {"": []}}}, {"x" * 10**5: "y" * 10**5},
        {f"{i}": i for i in range(5_000)}, {"deep": deep}, {"list": [[]] * 10**5}, {"n": 10**300},
        {"model": {"target": {"settings": {"evidence": "\x1b"}}}}, {"model": []},
    ):  # fmt: skip
        plan = Plan("lung", "refine", cards, wild)
        header = {"type": "plan", "site": "east", "plan": plan.to_json()}
        east.folder.publish(f"plans/{plan.id}.plan", Message.signed(east.keys.signing, header))
        (found,) = status_of(study.sites["north"].folder, plan.id).plans
        sentences = found.sentences()
        assert len(sentences) < 110
        assert all(line.isascii() and line.isprintable() for line in sentences)
        assert max(map(len, sentences)) < 2_000
        assert found.to_json()["parameters"] == wild


def test_a_code_by_someone_else(study, answered):
    study.sites["south"].refuse(answered, "refused")
    study.sum_path(answered, "south").unlink()
    folder = study.sites["east"].folder
    assert status_of(folder).plans[0].codes == {"south": "refused"}
    path = study.shared / "codes" / answered.id / "south.code"
    forged(study.sites["south"], path, {"code": "\x1b[2J"})
    with pytest.raises(BadValue, match="Expected a code of cells, refused") as caught:
        status_of(folder)
    assert "\x1b" not in str(caught.value)
    forged(study.sites["north"], path, {"code": "cells"})
    with pytest.raises(BadValue, match="found another signature"):
        status_of(folder)


def test_a_site_with_another_secret_spoils_the_sum(study, moments):
    """The masks of a site that uses another plan or key do not cancel, and nobody finishes."""
    plan = study.plan()
    study.answer(plan, moments)
    path = study.sum_path(plan, "south")
    forged(study.sites["south"], path, body=bytes(len(Message.read(path).body)))
    with pytest.raises(BadValue, match="Expected masks that cancel in round 0"):
        finish(study, plan, moments)
    assert not (study.shared / "codes").exists()  # the cells of this site are not the cause


# --- private files ---------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
def test_keys_are_for_their_owner_alone(study, moments, answered):
    private = study.sites["east"].private
    assert stat.S_IMODE((private / "keys.json").stat().st_mode) == 0o600
    for folder in (private, private / "ledger", private / "trusted"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    os.chmod(private / "keys.json", 0o640)
    with pytest.raises(BadValue, match="Expected keys that only their owner can read"):
        SiteKeys.load(private)
    assert re.search("[0-9a-f]{64}", repr(study.sites["east"])) is None


@pytest.fixture
def no_umask():
    """New files and folders have exactly the mode that the program asks for."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.usefixtures("no_umask")
def test_private_files_are_never_open_to_others(tmp_path, moments, monkeypatch):
    """Who opens a file before its mode is changed can read all that is written to it later."""
    made, makes = {}, os.open

    def watched(path, flags, *args, **kwargs):
        handle = makes(path, flags, *args, **kwargs)
        if flags & os.O_CREAT:
            place = os.path.basename(path)
            made[place] = (flags & os.O_EXCL, stat.S_IMODE(os.fstat(handle).st_mode))
        return handle

    monkeypatch.setattr(os, "open", watched)
    study = Study.make(tmp_path)
    study.answer(study.plan(), moments)
    for name, least in (("keys.json", 3), ("answer.json", 3)):
        found = [known for place, known in made.items() if place.startswith(f".{name}.")]
        assert len(found) == least
        assert set(found) == {(os.O_EXCL, 0o600)}
    for site in study.sites.values():
        (entry,) = site.private.glob("ledger/*/answer.json")
        for path in (site.private / "keys.json", entry):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        for folder in (site.private, entry.parent.parent, entry.parent, site.private / "trusted"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
@pytest.mark.parametrize("mode", [0o755, 0o750, 0o710, 0o701, 0o702, 0o720, 0o777, 0o1777])
def test_a_private_folder_that_others_can_use(study, moments, tmp_path, mode):
    """They could put another ledger there, or wait for a file that they can read."""
    folder = study.sites["east"].folder
    sentence = (
        f"Expected a private folder that only its owner can use, found mode {mode:04o} of .*; "
        f"chmod 700 it."
    )
    private = tmp_path / "open"
    private.mkdir()
    private.chmod(mode)
    with pytest.raises(BadValue, match=sentence):
        Site.create(private, folder, "lung", "west")
    assert not list(private.iterdir())
    assert not (study.shared / "cards" / "west.card").exists()
    private.chmod(0o700)
    assert Site.create(private, folder, "lung", "west").name == "west"
    east = study.sites["east"].private
    east.chmod(mode)
    with pytest.raises(BadValue, match=sentence):
        Site.open(east, folder)
    east.chmod(0o700)
    assert isinstance(run(Site.open(east, folder), study.plan(), moments["east"]), Waiting)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"null", b'{"study":"a","site":"b","signing":"00"}']
)
def test_damaged_keys(study, content):
    private = study.sites["east"].private
    (private / "keys.json").write_bytes(content)
    with pytest.raises(BadValue, match="found a damaged file"):
        SiteKeys.load(private)


def test_keys_are_never_replaced(study):
    east = study.sites["east"]
    before = (east.private / "keys.json").read_bytes()
    with pytest.raises(BadValue, match="Expected no keys in"):
        SiteKeys.create(east.private, "lung", "east")
    with pytest.raises(BadValue, match="Expected a new name for the site"):
        Site.create(east.private, east.folder, "lung", "east")
    with pytest.raises(BadValue, match="Expected no keys in"):
        Site.create(east.private, east.folder, "lung", "west")
    # A process that was killed before it published its card goes on.
    (study.shared / "cards" / "east.card").unlink()
    assert Site.create(east.private, east.folder, "lung", "east").keys.card == east.keys.card
    assert (east.private / "keys.json").read_bytes() == before


def test_keys_are_never_in_the_shared_folder(study, tmp_path):
    folder = study.sites["east"].folder
    (study.shared / "mine").mkdir()
    for private in (study.shared, study.shared / "mine", study.shared / "cards" / ".." / "x"):
        with pytest.raises(BadValue, match="private folder outside of the folder of messages"):
            Site.create(private, folder, "lung", "west")
    (tmp_path / "link").symlink_to(study.shared / "mine")
    with pytest.raises(BadValue, match="private folder outside of the folder of messages"):
        Site.create(tmp_path / "link", folder, "lung", "west")
    assert not list(study.shared.rglob("keys.json"))
