"""Folders of messages: hostile names, links, damaged and changed files."""

import os

import pytest

from scbatchprox.federated.flower.folder import CourierFolder
from scbatchprox.federated.flower.letters import Code, Part, is_name

GOOD = [
    "cards/site-1.card",
    "cards/a.card",
    "cards/St.Mary_2.card",
    "plans/0123456789abcdef.plan",
    "sums/0123456789abcdef/0000/site-1.sum",
    "codes/0123456789abcdef/site-1.code",
]
BAD = [
    "",
    "cards/../../etc/passwd",
    "cards/..card",
    "cards/.hidden.card",
    "/cards/a.card",
    "cards//a.card",
    "cards/a.card/",
    "cards/a.card\n",
    "cards/a\x00.card",
    "cards/é.card",
    "cards/" + "a" * 65 + ".card",
    "cards/a.sum",
    "keys/a.card",
    "cells.h5ad",
    "plans/0123456789ABCDEF.plan",
    "plans/0123.plan",
    "sums/0123456789abcdef/0/a.sum",
    "sums/0123456789abcdef/٠٠٠٠/a.sum",
    "sums/../0000/a.sum",
    ".courier/x",
    None,
    7,
    b"cards/a.card",
]


@pytest.mark.parametrize("name", GOOD)
def test_names_of_messages(name):
    assert is_name(name)


@pytest.mark.parametrize("name", BAD)
def test_other_names_are_refused_and_nothing_is_written(name, tmp_path, maker):
    assert not is_name(name)
    root = tmp_path / "inside" / "inbox"
    root.mkdir(parents=True)
    code = CourierFolder(root).accept(maker.part(name, maker.content()), {})
    assert code is Code.BAD_NAME
    assert maker.found(tmp_path) == {}


def test_a_file_arrives_in_parts(tmp_path, maker):
    content, folder, files = maker.content(size=10_000), CourierFolder(tmp_path), {}
    for offset in range(0, 10_000, 3_000):
        assert maker.found(tmp_path).get("cards/a.card") is None
        part = maker.part("cards/a.card", content, offset, 3_000)
        assert folder.accept(part, files) is Code.OK
    assert maker.found(tmp_path) == {"cards/a.card": content}
    assert files == folder.files() == {"cards/a.card": maker.entry(content)}
    assert folder.begun() == {}


def test_a_part_that_does_not_fit_is_left_out(tmp_path, maker):
    content, folder, files = maker.content(size=1_000), CourierFolder(tmp_path), {}
    folder.accept(maker.part("cards/a.card", content, 0, 400), files)
    for offset, length in ((0, 400), (500, 500), (400, 600 + 1)):
        data = (content + b"more")[offset : offset + length]
        folder.accept(Part("cards/a.card", maker.entry(content), offset, data), files)
        assert folder.begun() == {maker.entry(content).hash: 400}
    assert folder.accept(maker.part("cards/a.card", content, 400), files) is Code.OK
    assert maker.found(tmp_path) == {"cards/a.card": content}


def test_a_restart_goes_on_where_it_was(tmp_path, maker):
    content = maker.content(size=1_000)
    CourierFolder(tmp_path).accept(maker.part("cards/a.card", content, 0, 400), {})
    again = CourierFolder(tmp_path)
    assert again.begun() == {maker.entry(content).hash: 400}
    assert again.accept(maker.part("cards/a.card", content, 400), {}) is Code.OK
    assert maker.found(tmp_path) == {"cards/a.card": content}


def test_content_that_differs_from_its_hash_is_refused(tmp_path, maker):
    content = maker.content("one")
    part = Part("cards/a.card", maker.entry(maker.content("two")), 0, content)
    assert CourierFolder(tmp_path).accept(part, {}) is Code.BAD_FILE
    assert maker.found(tmp_path) == {}


@pytest.mark.parametrize("content", [b"\x89HDF\r\n" * 100, b"-----BEGIN PRIVATE KEY-----", b"x"])
def test_files_without_the_first_line_neither_arrive_nor_leave(content, tmp_path, maker):
    folder = CourierFolder(tmp_path)
    assert folder.accept(maker.part("cards/a.card", content), {}) is Code.BAD_FILE
    assert maker.found(tmp_path) == {}
    maker.write(tmp_path, "cards/b.card", content)
    assert folder.files() == {}
    assert folder.strangers() == ["cards/b.card"]


def test_a_file_is_written_once(tmp_path, maker):
    folder = CourierFolder(tmp_path)
    maker.write(tmp_path, "cards/a.card", maker.content("first"))
    second = maker.part("cards/a.card", maker.content("second"))
    assert folder.accept(second, folder.files()) is Code.CONFLICT
    # Also if the file appeared after the folder was looked at.
    assert folder.accept(second, {}) is Code.CONFLICT
    assert maker.found(tmp_path) == {"cards/a.card": maker.content("first")}
    same = maker.part("cards/a.card", maker.content("first"))
    assert folder.accept(same, folder.files()) is Code.OK


def test_folders_without_links_to_files_keep_the_rule(tmp_path, maker, monkeypatch):
    def no_links(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    folder = CourierFolder(tmp_path)
    assert folder.accept(maker.part("cards/a.card", maker.content("first")), {}) is Code.OK
    assert folder.accept(maker.part("cards/a.card", maker.content("other")), {}) is Code.CONFLICT
    assert maker.found(tmp_path) == {"cards/a.card": maker.content("first")}


def test_limits(tmp_path, maker):
    small = CourierFolder(tmp_path, most=100)
    assert small.accept(maker.part("cards/a.card", maker.content(size=101)), {}) is Code.TOO_LARGE
    few = CourierFolder(tmp_path, files=1)
    files = {}
    assert few.accept(maker.part("cards/a.card", maker.content("a")), files) is Code.OK
    assert few.accept(maker.part("cards/b.card", maker.content("b")), files) is Code.FULL
    narrow = CourierFolder(tmp_path, total=150)
    assert narrow.accept(maker.part("cards/c.card", maker.content(size=140)), files) is Code.FULL
    assert list(maker.found(tmp_path)) == ["cards/a.card"]


def test_links_are_neither_read_nor_followed(tmp_path, maker):
    secret = maker.write(tmp_path / "private", "cards/secret.card")
    root = tmp_path / "outbox"
    (root / "cards").mkdir(parents=True)
    (root / "cards" / "a.card").symlink_to(secret)
    (root / "plans").symlink_to(tmp_path / "private")
    folder = CourierFolder(root)
    assert folder.files() == {}
    assert folder.strangers() == ["cards/a.card", "plans"]
    with pytest.raises(OSError, match="symbolic link|Not a directory"):
        folder.read("cards/a.card", 0, 10)


def test_nothing_is_written_through_a_link(tmp_path, maker):
    outside, root = tmp_path / "outside", tmp_path / "inbox"
    outside.mkdir()
    root.mkdir()
    (root / "cards").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic link|Not a directory"):
        CourierFolder(root).accept(maker.part("cards/a.card", maker.content()), {})
    (root / "plans").mkdir()
    (root / "plans" / f"{maker.plan}.plan").symlink_to(outside / "new")
    part = maker.part(f"plans/{maker.plan}.plan", maker.content())
    assert CourierFolder(root).accept(part, {}) is Code.CONFLICT
    assert list(outside.iterdir()) == []


def test_a_staging_folder_that_is_a_link_is_refused(tmp_path, maker):
    outside, root = tmp_path / "outside", tmp_path / "inbox"
    outside.mkdir()
    root.mkdir()
    (root / ".courier").symlink_to(outside)
    with pytest.raises(OSError, match="symbolic link|Not a directory"):
        CourierFolder(root).accept(maker.part("cards/a.card", maker.content()), {})
    assert list(outside.iterdir()) == []


def test_a_pipe_does_not_block(tmp_path, maker):
    (tmp_path / "cards").mkdir()
    os.mkfifo(tmp_path / "cards" / "a.card")
    folder = CourierFolder(tmp_path)
    assert folder.files() == {}
    assert folder.strangers() == ["cards/a.card"]


def test_strangers_are_all_but_messages(tmp_path, maker):
    for name in ("cells.h5ad", "cards/notes.txt", "keys/site.key", "a/b/c/d/e/f/deep"):
        maker.write(tmp_path, name, b"anything")
    maker.write(tmp_path, "cards/a.card")
    maker.write(tmp_path, "cards/.b.card.0123456789ab.partial", b"scbat")  # being written
    maker.write(tmp_path, "cards/.key.partial", b"secret")
    CourierFolder(tmp_path).accept(maker.part("cards/c.card", maker.content(size=99), 0, 50), {})
    found = CourierFolder(tmp_path).strangers()
    hidden = "cards/.key.partial"
    assert found == ["a/b/c/d/e", hidden, "cards/notes.txt", "cells.h5ad", "keys/site.key"]


def test_a_changed_file_is_hashed_again(tmp_path, maker):
    folder = CourierFolder(tmp_path)
    path = maker.write(tmp_path, "cards/a.card", maker.content("one"))
    assert folder.files()["cards/a.card"] == maker.entry(maker.content("one"))
    path.write_bytes(maker.content("two"))
    assert folder.files()["cards/a.card"] == maker.entry(maker.content("two"))
