"""What arrives is checked field by field."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scbatchprox.federated.flower.letters import (
    PART,
    BadLetter,
    Code,
    Content,
    Have,
    Letter,
    wanted,
)


@pytest.fixture
def letter(maker):
    one, two = maker.content("one"), maker.content("two", 500)
    return Letter(
        Have({"cards/a.card": maker.entry(one)}, {maker.entry(two).hash: 30}),
        [maker.part("cards/b.card", two, 30, 100), maker.part("cards/c.card", one)],
        {"cards/d.card": Code.CONFLICT, "": Code.FOLDER},
    )


def test_a_letter_comes_back(letter):
    assert Letter.of(letter.records()) == letter


def damages():
    yield "letter", "version", 2
    yield "letter", "parts", 3
    yield "letter", "parts", -1
    yield "letter", "parts", True
    yield "letter", "parts", "2"
    yield "files", "names", ["../a.card"]
    yield "files", "names", ["cards/a.card", "cards/b.card"]
    yield "files", "names", 5
    yield "files", "hashes", ["abc"]
    yield "files", "sizes", [-1]
    yield "files", "sizes", [1.5]
    yield "begun", "hashes", ["../../etc/passwd"]
    yield "begun", "sizes", []
    yield "codes", "codes", ["conflict", "Traceback (most recent call last)"]
    yield "part-0000", "offset", -1
    yield "part-0000", "data", "text"
    yield "part-0000", "data", b""
    yield "part-0000", "size", "5"
    yield "part-0001", "hash", "x" * 64


@pytest.mark.parametrize(("record", "field", "value"), list(damages()))
def test_a_damaged_letter_is_refused(letter, record, field, value):
    records = copy.deepcopy(letter.records())
    records[record][field] = value
    with pytest.raises(BadLetter):
        Letter.of(records)


@pytest.mark.parametrize("name", ["letter", "files", "begun", "codes", "part-0001"])
def test_a_letter_without_a_record_is_refused(letter, name):
    records = letter.records()
    del records[name]
    with pytest.raises(BadLetter):
        Letter.of(records)
    with pytest.raises(BadLetter):
        Letter.of(records | {name: {}})


@given(
    sizes=st.lists(st.integers(24, 3 * PART), max_size=6),
    begun=st.lists(st.integers(0, PART), max_size=6),
    budget=st.integers(0, 4 * PART),
)
def test_what_is_sent_is_what_is_lacking_and_within_the_budget(sizes, begun, budget):
    own = {f"cards/{i}.card": Content(f"{i:064x}", size) for i, size in enumerate(sizes)}
    there = {f"{i:064x}": min(n, sizes[i]) for i, n in enumerate(begun) if i < len(sizes)}
    other = Have({"cards/0.card": Content("f" * 64, 1)}, there)
    sent = list(wanted(own, other, budget))
    lacking = sum(size - there.get(f"{i:064x}", 0) for i, size in enumerate(sizes) if i)
    assert sum(want.length for want in sent) == min(budget, lacking)
    assert all(0 < want.length <= PART and want.name != "cards/0.card" for want in sent)
    at = dict(there)
    for want in sent:  # without holes
        assert want.offset == at.get(want.entry.hash, 0)
        at[want.entry.hash] = want.offset + want.length
