"""Where a courier refuses to start."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from scbatchprox.errors import BadFile, BadValue
from scbatchprox.federated.flower import folder

# Tried as another account, if the tests run as root, who can read everything.
AS_COURIER = """
import json, os, sys
from pathlib import Path
from scbatchprox.federated.flower.folder import check_private
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
found = {}
for path in sys.argv[1:]:
    try:
        check_private([Path(path)])
        found[path] = "unreadable"
    except Exception as error:
        found[path] = type(error).__name__
print(json.dumps(found))
"""


@pytest.fixture
def place():
    """A folder that every account can search."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_what_the_account_can_read_is_refused(place):
    def make(name, mode, folder=False):
        path = place / name
        if folder:
            path.mkdir()
            (path / "inside").write_text("cells")
        else:
            path.write_text("cells")
        return path, mode

    made = {
        "closed": make("closed", 0o000),
        "open": make("open", 0o444),
        "closed-folder": make("closed-folder", 0o000, folder=True),
        "open-folder": make("open-folder", 0o755, folder=True),
        "searchable-folder": make("searchable-folder", 0o111, folder=True),
    }
    link = place / "link"
    link.symlink_to(made["open"][0])
    for path, mode in made.values():
        path.chmod(mode)
    paths = [*(path for path, _ in made.values()), link, place / "closed-folder" / "inside"]
    try:
        done = subprocess.run(
            [sys.executable, "-c", AS_COURIER, *map(str, paths), str(place / "missing")],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    finally:
        for path, _ in made.values():
            path.chmod(0o755)
    found = {Path(path).name: answer for path, answer in json.loads(done.stdout).items()}
    assert found == {
        "closed": "unreadable",
        "open": "BadValue",
        "closed-folder": "unreadable",
        "inside": "unreadable",
        "open-folder": "BadValue",
        "searchable-folder": "BadValue",
        "link": "BadValue",
        "missing": "BadFile",
    }


def test_root_carries_nothing_over_a_network(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(
        BadValue, match="Expected an account of its own for the courier, found root"
    ):
        folder.check_account(insecure=False)
    folder.check_account(insecure=True)  # loopback only, as the addresses are checked
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    folder.check_account(insecure=False)


def test_boxes_hold_messages_only(tmp_path, maker):
    outbox, inbox = tmp_path / "out", tmp_path / "in"
    with pytest.raises(BadFile, match="Expected a folder as --outbox, found none"):
        folder.check_boxes(outbox, inbox)
    outbox.mkdir()
    inbox.mkdir()
    maker.write(outbox, "cards/a.card")
    folder.check_boxes(outbox, inbox)
    with pytest.raises(BadValue, match="Expected two folders"):
        folder.check_boxes(outbox, outbox)
    maker.write(inbox, "cells.h5ad", b"\x89HDF")
    with pytest.raises(BadValue, match=r"found 'cells.h5ad'\."):
        folder.check_boxes(outbox, inbox)
    (inbox / "cells.h5ad").unlink()
    maker.write(outbox, "site.key", b"-----BEGIN PRIVATE KEY-----")
    maker.write(outbox, "other.key", b"-----BEGIN PRIVATE KEY-----")
    with pytest.raises(BadValue, match=r"found 'other.key' and 1 more\."):
        folder.check_boxes(outbox, inbox)
