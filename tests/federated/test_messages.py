"""Faulty and hostile messages in the shared folder: an error in a sentence, no hang, no partial result."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from federated_study import (
    NAMES,
    Study,
    finish,
    forged,
    run,
    within,
)
from scbatchprox import Pooled
from scbatchprox.errors import BadFile, BadValue, InputError
from scbatchprox.federated import WIDE, Card, Message, Waiting, status_of
from scbatchprox.federated.messages import MAGIC, MOST_HEADER

pytestmark = pytest.mark.usefixtures("no_power_failure")


def test_all_sites_find_the_same_sums(study, moments):
    plan = study.plan()
    found = study.answer(plan, moments)
    assert found["east"] == Waiting(0, ("north", "south"))
    assert found["north"] == Waiting(0, ("south",))
    again = [finish(study, plan, moments, name, confirmed=None) for name in NAMES]
    assert {pooled.n_cells for pooled in again} == {3 * 65}
    assert len({pooled.mean.tobytes() + pooled.m2.tobytes() for pooled in again}) == 1


def flips(raw):
    """Places in each part of a message: first line, header, body, signature."""
    end = raw.index(b"\n", len(MAGIC)) + 1
    parts = [(0, len(MAGIC)), (len(MAGIC), end), (end, len(raw) - 64), (len(raw) - 64, len(raw))]
    for lo, hi in parts:
        yield from sorted({lo, lo + 1, (lo + hi) // 2, hi - 2, hi - 1})
    yield from range(len(MAGIC), end, 7)
    yield from range(end, len(raw), 61)


def test_any_changed_byte_is_found(study, moments, answered):
    path = study.sum_path(answered, "south")
    raw = path.read_bytes()
    for at in flips(raw):
        for bit in (1, 0x80):
            path.write_bytes(raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :])
            with pytest.raises(BadValue, match="Expected"):
                finish(study, answered, moments)
    path.write_bytes(raw)
    assert isinstance(finish(study, answered, moments), Pooled)


def test_a_message_of_any_other_length_is_found(study, moments, answered):
    path = study.sum_path(answered, "south")
    raw = path.read_bytes()
    end = raw.index(b"\n", len(MAGIC)) + 1
    lengths = [0, 1, len(MAGIC) - 1, len(MAGIC), len(MAGIC) + 1, end - 1, end, end + 1, end + 63]
    lengths += [
        end + 64,
        end + 65,
        end + 72,
        len(raw) - 65,
        len(raw) - 64,
        len(raw) - 8,
        len(raw) - 1,
    ]
    for n in lengths:
        path.write_bytes(raw[:n])
        with pytest.raises(BadValue, match="Expected"):
            finish(study, answered, moments)
    for more in (b"\0", b"\n", bytes(64), raw):
        path.write_bytes(raw + more)
        with pytest.raises(BadValue, match="Expected"):
            finish(study, answered, moments)


@pytest.mark.parametrize("change", [b"", b"x" * 8, None], ids=["empty", "short", "long"])
def test_a_signed_body_of_another_size(study, moments, answered, change):
    path = study.sum_path(answered, "south")
    body = Message.read(path).body
    forged(study.sites["south"], path, body=body + bytes(8) if change is None else change)
    with pytest.raises(BadValue, match="south.sum"):
        finish(study, answered, moments)


@pytest.mark.parametrize(
    "change",
    [
        {"round": 1}, {"round": False}, {"round": "0"}, {"state": "00"}, {"site": "north"},
        {"type": "code"}, {"bits": 128}, {"fraction": 0}, {"count": 5}, {"plan": "0" * 64},
        {"count": 10**400}, {"state": "x" * 100_000},
    ],
    ids=lambda x: str(x)[:30],
)  # fmt: skip
def test_a_signed_header_that_says_something_else(study, moments, answered, change):
    forged(study.sites["south"], study.sum_path(answered, "south"), change)
    with pytest.raises(BadValue, match=f"Expected {next(iter(change))} ") as caught:
        finish(study, answered, moments)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("signer", ["another member", "a stranger"])
def test_a_foreign_signature(study, moments, answered, tmp_path, signer):
    other = study.sites["north"]
    if signer == "a stranger":
        other = Study.make(tmp_path / "other").sites["south"]
    forged(other, study.sum_path(answered, "south"))
    with pytest.raises(BadValue, match="south.sum signed by its site, found another signature"):
        finish(study, answered, moments)


def test_replayed_rounds(study, moments):
    """A message of round 0 put as one of round 1, and the reverse."""
    plan = study.plan()
    for _ in range(2):
        for name in NAMES:
            run(study.sites[name], plan, moments[name], rounds=2)
    first, second = (study.sum_path(plan, "south", number) for number in (0, 1))
    raw = first.read_bytes(), second.read_bytes()
    assert Message.read(first).body != Message.read(second).body
    second.write_bytes(raw[0])
    with pytest.raises(BadValue, match="Expected round 1 in south.sum, found 0"):
        finish(study, plan, moments, rounds=2)
    second.write_bytes(raw[1])
    first.write_bytes(raw[1])
    with pytest.raises(BadValue, match="Expected round 0 in south.sum, found 1"):
        finish(study, plan, moments, rounds=2)
    first.write_bytes(raw[0])
    assert isinstance(finish(study, plan, moments, rounds=2), Pooled)


def test_a_message_of_another_plan(study, moments, answered):
    other = study.plan(note="another")
    study.answer(other, moments)
    shutil.copy(study.sum_path(answered, "south"), study.sum_path(other, "south"))
    with pytest.raises(BadValue, match="Expected plan '.*' in south.sum, found"):
        finish(study, other, moments)


def test_a_site_that_shows_two_answers_is_found_in_the_next_round(study, moments):
    """South signs two answers for round 0, and the courier shows each site another one."""
    plan = study.plan()
    study.answer(plan, moments, rounds=2)
    path = study.sum_path(plan, "south")
    message = Message.read(path)
    run(study.sites["north"], plan, moments["north"], rounds=2)
    limbs = np.frombuffer(message.body, "<u8").reshape(-1, WIDE.n_limbs).copy()
    limbs[1, 3] += 1  # one more cell
    forged(study.sites["south"], path, body=limbs.tobytes())
    # East answers round 1 for the sums that it knows. They are not those of north.
    with pytest.raises(BadValue, match="Expected state '.*' in north.sum, found"):
        finish(study, plan, moments, "east", rounds=2)
    states = {Message.read(study.sum_path(plan, at, 1)).header["state"] for at in ("east", "north")}
    assert len(states) == 2
    # Whatever it is shown afterwards, it does not answer round 1 again.
    given = study.sum_path(plan, "east", 1).read_bytes()
    path.write_bytes(message.raw)
    with pytest.raises(BadValue, match="Expected the sums that round 1 was answered for"):
        finish(study, plan, moments, "east", rounds=2)
    assert study.sum_path(plan, "east", 1).read_bytes() == given


HEADERS = {
    "NaN": b'{"type":NaN}',
    "infinity": b'{"type":Infinity}',
    "a number beyond doubles": b'{"type":1e999}',
    "two entries": b'{"type":"card","type":"sum"}',
    "spaces": b'{"type": "sum"}',
    "order": b'{"type":"sum","a":1}',
    "a list": b'["sum"]',
    "many digits": b'{"type":' + b"9" * 5000 + b"}",
    "deep lists": b'{"type":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "very deep lists": b'{"type":' + b"[" * 500_000 + b"]" * 500_000 + b"}",
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "no JSON": b"sum",
    "no text": b'{"type":"\xff\xfe"}',
    "no header": b"",
    "oversized": b'{"type":"' + b"x" * MOST_HEADER + b'"}',
}


@pytest.mark.parametrize("what", HEADERS)
def test_wild_headers(study, moments, answered, what):
    path = study.sum_path(answered, "south")
    path.write_bytes(MAGIC + HEADERS[what] + b"\n" + bytes(100))
    # Python 3.13 can read some of the deep lists; then the signature is wrong.
    with pytest.raises(BadValue, match="which is damaged|found another signature"):
        finish(study, answered, moments)
    card = study.shared / "cards" / "south.card"
    shutil.copy(path, card)
    with pytest.raises(BadValue, match="which is damaged|Expected a card with"):
        study.sites["east"].folder.card("south")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.binary(max_size=200)
    | st.builds(lambda value: json.dumps(value).encode(), json_values)
    | st.builds(
        lambda value: json.dumps(value, sort_keys=True, separators=(",", ":")).encode(), json_values
    ),
    st.binary(max_size=100),
)
@settings(max_examples=300)
def test_any_bytes_are_one_message_or_none(line, rest):
    """Two different files never mean the same message; nothing else than one error is raised."""
    raw = MAGIC + line + b"\n" + rest
    try:
        message = Message.parsed(raw, Path("x"))
    except BadValue:
        return
    assert message.raw == raw


#: What a courier may put where a message belongs.
THINGS = ["pipe", "link to a pipe", "link to itself", "device", "folder", "huge", "dangling"]


def put(path, what):
    path.unlink(missing_ok=True)
    match what:
        case "pipe":
            os.mkfifo(path)
        case "link to a pipe":
            os.mkfifo(path.with_suffix(".pipe"))
            path.symlink_to(path.with_suffix(".pipe"))
        case "link to itself":
            path.symlink_to(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "huge":
            with open(path, "wb") as file:
                file.truncate(1 << 42)  # a sparse file
        case "dangling":
            path.symlink_to(path.with_suffix(".nothing"))


@pytest.mark.parametrize("what", THINGS)
@pytest.mark.parametrize("whose", ["own", "another site's"])
def test_things_in_the_place_of_a_message(study, moments, answered, what, whose):
    """No wait for a pipe's writer, no reading of terabytes, no write through a link."""
    path = study.sum_path(answered, "east" if whose == "own" else "south")
    raw = path.read_bytes()
    put(path, what)
    found = within(20, lambda: finish(study, answered, moments))
    if whose == "own" and what in ("link to itself", "dangling"):
        assert isinstance(found, Pooled)  # the link is replaced by the message
        assert not path.is_symlink()
        assert path.read_bytes() == raw
        assert not path.with_suffix(".nothing").exists()
    else:
        assert isinstance(found, InputError | Waiting), found
    within(20, lambda: status_of(study.sites["east"].folder))


@pytest.mark.parametrize("what", THINGS)
def test_things_in_the_place_of_cards_and_plans(study, answered, what):
    folder = study.sites["east"].folder
    put(study.shared / "cards" / "south.card", what)
    assert isinstance(within(20, lambda: folder.card("south")), BadFile | BadValue)
    put(study.shared / "plans" / f"{answered.id}.plan", what)
    assert isinstance(within(20, lambda: folder.plan(answered.id)), BadFile | BadValue)


def test_a_pipe_that_appears_after_the_look(study, moments, answered, monkeypatch):
    """Between the look at a file and its reading a courier can replace it."""
    path = study.sum_path(answered, "south")
    put(path, "pipe")
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    found = within(20, lambda: finish(study, answered, moments))
    assert isinstance(found, BadValue)
    assert "no regular file" in str(found)


@pytest.mark.parametrize(
    "name",
    ["..", "../x", "a/b", "/etc/passwd", "", ".hidden", "a\n", "a\x1b[2J", "é", "a" * 65, "a."],
)
def test_names_are_names_of_files(study, name):
    card = study.sites["east"].keys.card
    with pytest.raises(BadValue, match="Expected the name of a site"):
        Card("lung", name, card.signing, card.masking)
    with pytest.raises(BadValue, match="Expected the name of a site"):
        study.sites["east"].trust(name, "1")
    with pytest.raises(BadValue, match="Expected the name of a site"):
        study.sites["east"].folder.card(name)


def test_other_files_in_the_folder_are_left_out(study, answered):
    for name in ("a\x1b[2J", ".hidden", "a b", "é"):
        (study.shared / "cards" / f"{name}.card").write_bytes(b"junk")
        (study.shared / "plans" / f"{name}.plan").write_bytes(b"junk")
    found = status_of(study.sites["east"].folder)
    assert [card.site for card in found.cards] == list(NAMES)
    assert [status.plan.id for status in found.plans] == [answered.id]
    assert found.plans[0].missing == ()
