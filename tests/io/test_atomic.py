"""Outputs replace regular files only; a device, a pipe or a folder stays what it is."""

import os
import socket
import stat
import sys

import numpy as np
import pytest

import command_line
from scbatchprox import Adapter, BatchProx
from scbatchprox.errors import BadValue
from scbatchprox.io.atomic import check_place, replacing

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs pipes and /dev")


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def refused(what, path):
    return pytest.raises(
        BadValue, match=f"Expected a place for a regular file, found a {what} at {path}"
    )


class TestPlaces:
    def test_savers(self, pipe, rng):
        model = BatchProx(target="moment").fit(rng.normal(size=(20, 3)), batch=list("ab") * 10)
        (pipe.parent / "link").symlink_to(pipe)
        for save in (Adapter.identity(["a"], 3).save, model.save):
            for path in (pipe, pipe.parent / "link"):
                with refused("pipe", path):
                    save(path)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert sorted(os.listdir(pipe.parent)) == ["link", "pipe"]

    def test_folder_and_socket(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)  # names of sockets must be short
        (tmp_path / "folder").mkdir()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket")
            for what in ("folder", "socket"):
                with refused(what, what), replacing(what):
                    pytest.fail("nothing should be written")
        assert sorted(os.listdir()) == ["folder", "socket"]

    def test_device(self):
        """The check alone, never a save: if it were missing, root would lose the device."""
        with refused("device", "/dev/null"):
            check_place("/dev/null")

    def test_commands(self, pipe, rng):
        np.savez(pipe.parent / "cells.npz", Z=rng.normal(size=(40, 3)), sample=list("ab") * 20)
        refine = ["refine", pipe.parent / "cells.npz", "--batch-key", "sample"]
        done = command_line.command(
            *refine, "--out", pipe.parent / "out.npz", "--model", "/dev/stdout"
        )
        assert done.returncode == 2
        assert done.stderr.endswith(
            "Error: Expected a place for a regular file, found a pipe at /dev/stdout.\n"
        )
        pipe.rename(pipe.parent / "pipe.npy")
        done = command_line.run(*refine, "--out", pipe.parent / "pipe.npy", code=2)
        assert "Expected a place for a regular file, found a pipe at" in done.stderr
        assert stat.S_ISFIFO((pipe.parent / "pipe.npy").stat().st_mode)

    def test_links_and_files_are_still_replaced(self, tmp_path):
        (tmp_path / "file").write_text("old")
        (tmp_path / "link").symlink_to("file")
        (tmp_path / "dangling").symlink_to("new")
        for name, target in (("link", "file"), ("dangling", "new")):
            with replacing(tmp_path / name) as temporary:
                temporary.write_text(name)
            assert (tmp_path / target).read_text() == name
            assert (tmp_path / name).is_symlink()

    def test_modes(self, tmp_path):
        """A new file is like any other, a replaced one keeps its mode, and one that is asked for is kept."""
        before = os.umask(0o027)
        try:
            for wanted, expected in ((None, 0o640), (0o600, 0o600), (None, 0o600)):
                with replacing(tmp_path / "file", mode=wanted) as temporary:
                    temporary.write_text("new")
                    during = stat.S_IMODE(temporary.stat().st_mode)
                assert during == (0o640 if wanted is None else wanted)
                assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == expected
        finally:
            os.umask(before)
