"""A .zarr store as a place: links, other kinds of files, other stores of the same name, other processes."""

import errno
import json
import os
import shutil
import signal
import stat
import threading
import time

import numpy as np
import pytest
import zarr

from anndata_files import contents, make, read, write
from scbatchprox import BatchProx, InputError, refine_file
from scbatchprox.errors import InUse
from scbatchprox.io.formats import open_cells
from zarr_signals import add, cells, in_two_steps, signalled

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:zarr v3 autosharding"),
    pytest.mark.usefixtures("ctrl_c"),
]


@pytest.fixture
def interrupted(tmp_path):
    """A store whose process was killed when its result was complete, but not yet moved in."""
    return interrupt(cells(tmp_path / "cells.zarr"))


def interrupt(path):
    for step in range(30):
        signalled(lambda: add(path, None, 2.0), signal.SIGKILL, step)
        if path.with_name(".cells.zarr.ready").exists():
            return path
    raise AssertionError("no step at which a result is ready")


def only_sentence(caught):
    message = str(caught.value)
    assert message.startswith("Expected ")
    assert message.count(". ") == 0
    return message


class TestStoreOfTheSameName:
    @pytest.mark.parametrize("other", [dict(n=6), dict(seed=1)], ids=["fewer cells", "other cells"])
    def test_gets_no_result_of_another(self, interrupted, other):
        shutil.rmtree(interrupted)
        cells(interrupted, **other)
        before = contents(interrupted)
        for use in (open_cells, lambda path: add(path, None, 3.0)):
            with pytest.raises(InputError) as caught:
                use(interrupted)
            assert "delete " in only_sentence(caught)
            assert ".cells.zarr.ready" in str(caught.value)
            assert contents(interrupted) == before
        shutil.rmtree(interrupted.parent / ".cells.zarr.ready")  # as the message says
        add(interrupted, None, 3.0)
        assert read(interrupted).uns["result"]["value"] == 3

    def test_same_cells_with_another_embedding(self, interrupted):
        shutil.rmtree(interrupted)
        cells(interrupted)
        zarr.open_group(interrupted, mode="r+")["obsm/X_pca"][3, 1] = 7
        with pytest.raises(InputError, match="obsm/X_pca"):
            open_cells(interrupted)

    def test_same_cells_with_some_other_rows(self, tmp_path):
        """In the middle of a large file, which keeps its size."""
        n = 40_000
        path = cells(tmp_path / "cells.zarr", n=n)
        obsm = zarr.open_group(path, mode="r+")["obsm"]
        rows, attributes = obsm["X_pca"][:], dict(obsm["X_pca"].attrs)
        how = dict(chunks=(n // 4, 2), shards=(n, 2), compressors=None, overwrite=True)
        obsm.create_array("X_pca", data=rows, attributes=attributes, **how)
        zarr.consolidate_metadata(path)
        interrupt(path)
        sizes = {p: p.stat().st_size for p in path.rglob("*")}
        zarr.open_group(path, mode="r+")["obsm/X_pca"][n // 2 - 100 : n // 2 + 100] += 1
        assert {p: p.stat().st_size for p in path.rglob("*")} == sizes
        with pytest.raises(InputError, match="obsm/X_pca may be of other cells"):
            open_cells(path)
        assert "result" not in read(path).obsm

    def test_same_cells_with_other_batches(self, interrupted):
        column = zarr.open_group(interrupted, mode="r+")["obs/batch"]
        # Newer versions of anndata store texts that may be missing, in a group.
        values = column["values"] if isinstance(column, zarr.Group) else column
        values[0] = "b"
        with pytest.raises(InputError, match="obs/batch"):
            open_cells(interrupted)

    def test_a_copy_gets_its_result(self, interrupted, tmp_path):
        shutil.copytree(interrupted.parent, tmp_path / "copy")
        with open_cells(tmp_path / "copy" / "cells.zarr"):
            pass
        assert read(tmp_path / "copy" / "cells.zarr").uns["result"]["value"] == 2

    def test_other_elements_may_change(self, interrupted):
        group = zarr.open_group(interrupted, mode="r+")
        group.create_array("obsm/other", data=np.ones((12, 1))).attrs.update(
            {"encoding-type": "array", "encoding-version": "0.2.0"}
        )
        with open_cells(interrupted):
            pass
        assert set(read(interrupted).obsm) == {"X_pca", "result", "other"}

    @pytest.mark.parametrize("removed", [True, False])
    def test_a_copy_written_to_this_name_gets_no_older_result(self, interrupted, removed):
        """Although it is of the same cells."""
        source = interrupted.with_name("source.zarr")
        shutil.copytree(interrupted, source)
        if removed:
            shutil.rmtree(interrupted)
        with (
            open_cells(source) as file,
            file.writer(interrupted, "new", (12, 2), np.dtype("f4")) as writer,
        ):
            writer.finish({})
        with open_cells(interrupted):
            pass
        assert set(read(interrupted).obsm) == {"X_pca", "new"}
        assert sorted(os.listdir(interrupted.parent)) == ["cells.zarr", "source.zarr"]

    def test_a_result_without_a_record_is_refused(self, interrupted):
        (interrupted.parent / ".cells.zarr.ready" / "source.json").unlink()
        with pytest.raises(InputError, match="no record") as caught:
            open_cells(interrupted)
        only_sentence(caught)


@pytest.mark.parametrize("out", [None, "out.zarr"])
def test_a_store_that_is_replaced_while_it_is_read(tmp_path, out):
    path = cells(tmp_path / "cells.zarr")
    place = out and tmp_path / out
    with open_cells(path) as file:
        file.embedding("X_pca")
        shutil.rmtree(path)
        cells(path, seed=1)
        before = contents(path)
        with pytest.raises(InputError, match="changed since; run again"):  # noqa: SIM117
            with file.writer(place, "a", (12, 2), np.dtype("f4")) as writer:
                writer.finish({})
    assert contents(path) == before
    assert os.listdir(tmp_path) == ["cells.zarr"]


class TestLinks:
    def test_folders_behind_links_are_copied(self, tmp_path, rng):
        path, out = tmp_path / "cells.zarr", tmp_path / "out.zarr"
        write(make(rng), path, "zarr3")
        (path / "layers").rename(tmp_path / "elsewhere")
        (path / "layers").symlink_to(tmp_path / "elsewhere")
        chunk = path / "obsm" / "X_pca" / "c"
        chunk.rename(tmp_path / "chunks")
        chunk.symlink_to(tmp_path / "chunks")
        refine_file(path, "batch", out=out, model=BatchProx(target="moment"))
        shutil.rmtree(tmp_path / "elsewhere")
        result = read(out)
        assert "raw" in result.layers
        assert np.abs(result.obsm["X_pca"]).max() > 0
        assert not any(p.is_symlink() for p in out.rglob("*"))

    @pytest.mark.parametrize("target", ["cells.zarr", "cells.zarr/obsm", "."])
    def test_a_circle_is_refused(self, tmp_path, target):
        path = cells(tmp_path / "cells.zarr")
        (path / "uns" / "circle").symlink_to(tmp_path / target)
        (path / "obsm" / "circle").symlink_to(tmp_path / target)
        with pytest.raises(InputError, match="found a circle at") as caught:
            add(path, tmp_path / "out.zarr", 1.0)
        only_sentence(caught)
        assert os.listdir(tmp_path) == ["cells.zarr"]

    def test_a_link_to_the_folder_of_the_copy_is_refused(self, tmp_path):
        (tmp_path / "in").mkdir()
        (tmp_path / "out").mkdir()
        path = cells(tmp_path / "in" / "cells.zarr")
        (path / "uns" / "link").symlink_to(tmp_path / "out")
        with pytest.raises(InputError, match="found a circle at"):
            add(path, tmp_path / "out" / "out.zarr", 1.0)
        assert not os.listdir(tmp_path / "out")

    def test_a_link_to_nothing_is_refused(self, tmp_path):
        path = cells(tmp_path / "cells.zarr")
        (path / "uns" / "link").symlink_to(tmp_path / "nothing")
        with pytest.raises(InputError, match="found a link to nothing at"):
            add(path, tmp_path / "out.zarr", 1.0)

    @pytest.mark.parametrize("name", ["obsm", "uns"])
    def test_nothing_is_written_through_a_link(self, tmp_path, name):
        path, other = cells(tmp_path / "cells.zarr"), cells(tmp_path / "other.zarr", seed=1)
        shutil.rmtree(path / name)
        (path / name).symlink_to(other / name)
        zarr.consolidate_metadata(path)
        before = contents(other), contents(path)
        with pytest.raises(InputError, match="found a link to another place") as caught:
            add(path, None, 1.0)
        assert str(path / name) in only_sentence(caught)
        assert (contents(other), contents(path)) == before
        assert sorted(os.listdir(tmp_path)) == ["cells.zarr", "other.zarr"]

    @pytest.mark.parametrize("index", ["../../..", "..", "../../secret.zarr/obs/_index", "/etc"])
    def test_names_in_a_store_do_not_lead_out_of_it(self, tmp_path, index):
        """Not even to note what is there: that takes hours, or never ends at a pipe."""
        path = cells(tmp_path / "cells.zarr")
        zarr.open_group(path, mode="r+")["obs"].attrs["_index"] = index
        zarr.consolidate_metadata(path)
        with pytest.raises(InputError, match="a path to another place") as caught:
            open_cells(path)
        assert "cells.zarr" in only_sentence(caught)

    def test_an_output_that_is_a_link_stays_one(self, tmp_path):
        path, link = cells(tmp_path / "cells.zarr"), tmp_path / "link.zarr"
        link.symlink_to(cells(tmp_path / "real.zarr", seed=1))
        add(path, link, 1.0)
        assert link.is_symlink()
        assert "result" in read(tmp_path / "real.zarr").obsm


class TestPlace:
    def make(self, kind, path):
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "file":
            path.write_text("mine")
        elif kind == "device":
            # Never a device of the system: if the check were missing, root would lose it.
            try:
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
            except (OSError, AttributeError):
                pytest.skip("only root can make a device")
        else:
            path.mkdir()
            (path / "mine.txt").write_text("mine")

    @pytest.mark.parametrize("kind", ["pipe", "file", "device", "folder of another kind"])
    def test_anything_but_a_store_is_refused(self, tmp_path, kind):
        path, out = cells(tmp_path / "cells.zarr"), tmp_path / "out.zarr"
        self.make(kind, out)
        with pytest.raises(InputError, match=f"or nothing, at .*, found a {kind}") as caught:
            add(path, out, 1.0)
        only_sentence(caught)
        assert sorted(os.listdir(tmp_path)) == ["cells.zarr", "out.zarr"]
        assert kind != "file" or out.read_text() == "mine"

    def test_an_empty_folder_is_taken(self, tmp_path):
        path, out = cells(tmp_path / "cells.zarr"), tmp_path / "out.zarr"
        out.mkdir()
        add(path, out, 1.0)
        assert "result" in read(out).obsm

    def test_no_folder(self, tmp_path):
        with pytest.raises(InputError, match="a folder to write to, found none"):
            add(cells(tmp_path / "cells.zarr"), tmp_path / "none" / "out.zarr", 1.0)

    def test_a_store_on_another_file_system_is_refused_before_the_work(self, tmp_path, monkeypatch):
        path, real = cells(tmp_path / "cells.zarr"), os.stat

        def elsewhere(place, *arguments, **options):
            found = list(real(place, *arguments, **options))
            if str(place).endswith("cells.zarr/obsm"):
                found[2] += 1
            return os.stat_result(found)

        with open_cells(path) as file:
            file.embedding("X_pca")
            monkeypatch.setattr("os.stat", elsewhere)
            with (
                pytest.raises(InputError, match="found it on another"),
                file.writer(None, "a", (12, 2), np.dtype("f4")),
            ):
                raise AssertionError("the work began")


class TestOtherProcesses:
    @pytest.mark.parametrize("steps", [False, True])
    def test_a_store_that_is_being_written_is_not_replaced(self, tmp_path, monkeypatch, steps):
        if steps:
            in_two_steps(monkeypatch)
        path, out = cells(tmp_path / "cells.zarr"), cells(tmp_path / "out.zarr", seed=1)
        with open_cells(out) as file, file.writer(None, "a", (12, 2), np.dtype("f4")) as writer:
            with pytest.raises(InUse):
                add(path, out, 1.0)
            writer.finish({})
        assert "a" in read(out).obsm
        assert sorted(os.listdir(tmp_path)) == ["cells.zarr", "out.zarr"]

    def test_a_copy_needs_no_locks(self, tmp_path, monkeypatch):
        fcntl = pytest.importorskip("fcntl")

        def no_locks(*_):
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        path, out = cells(tmp_path / "cells.zarr"), cells(tmp_path / "out.zarr", seed=1)
        monkeypatch.setattr(fcntl, "flock", no_locks)
        add(path, out, 1.0)
        assert "result" in read(out).obsm
        assert sorted(os.listdir(tmp_path)) == ["cells.zarr", "out.zarr"]

    def test_a_reader_waits_for_a_result_that_is_being_moved_in(self, tmp_path, monkeypatch):
        """Else the index could describe other arrays than there are."""
        path = cells(tmp_path / "cells.zarr")
        ready, real, found = tmp_path / ".cells.zarr.ready", os.rename, []

        def read_now():
            with open_cells(path) as file:
                found.append(file.embedding("result")[:])

        reader = threading.Thread(target=read_now)

        def slow(source, target, **options):
            if ready.exists() and not reader.is_alive() and not found:
                reader.start()
                time.sleep(0.3)
            real(source, target, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", slow)
            add(path, None, 2.0)
        reader.join()
        np.testing.assert_array_equal(found[0], np.full((12, 2), 2, "f4"))

    def test_a_reader_does_not_wait_forever(self, interrupted, monkeypatch):
        from scbatchprox.io.locks import locked

        monkeypatch.setattr("scbatchprox.io.formats.zarr_folder.PATIENCE", 0.05)
        with locked(interrupted), pytest.raises(InUse, match="try again later"):
            open_cells(interrupted)

    def test_who_may_only_read_reads(self, interrupted, monkeypatch):
        def refuse(*_, **__):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr("scbatchprox.io.formats.zarr_folder.move_in", refuse)
        with open_cells(interrupted) as file:
            assert file.embedding("X_pca").shape == (12, 2)


def test_groups_are_made_as_anndata_makes_them(tmp_path):
    for kind, document in (("zarr2", ".zattrs"), ("zarr3", "zarr.json")):
        path = cells(tmp_path / f"{kind}.zarr", kind=kind)
        shutil.rmtree(path / "uns")
        zarr.consolidate_metadata(path)
        add(path, None, 1.0)
        described = json.loads((path / "uns" / document).read_text())
        assert described.get("attributes", described)["encoding-type"] == "dict"
        assert read(path).uns["result"]["value"] == 1
