"""Processes that get a signal at any step of writing a .zarr store: the old one or the new one, complete."""

import itertools
import os
import shutil
import signal

import numpy as np
import pytest
import zarr

from anndata_files import contents, read
from scbatchprox.io.formats import open_cells
from zarr_signals import add, cells, in_two_steps, signalled

pytestmark = [
    pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:zarr v3 autosharding"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.usefixtures("ctrl_c"),
]
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(("kind", "earlier"), [("zarr2", True), ("zarr3", True), ("zarr2", False)])
def test_in_place(tmp_path, number, kind, earlier):
    made = cells(tmp_path / "made.zarr", kind=kind)
    if earlier:
        add(made, None, 1.0)
    else:
        shutil.rmtree(made / "uns", ignore_errors=True)
        zarr.consolidate_metadata(made)
    old = contents(made)
    path = tmp_path / "place" / "cells.zarr"
    shutil.copytree(made, path)
    add(path, None, 2.0)
    new = contents(path)
    assert old != new
    seen = []
    for step in itertools.count():
        shutil.rmtree(path)
        shutil.copytree(made, path)
        if not signalled(lambda: add(path, None, 2.0), number, step):
            break
        if number == signal.SIGINT:  # Ctrl-C waits for the end of the move
            assert contents(path) in (old, new)
        now = zarr.open_group(path, mode="r", use_consolidated=False)
        assert "X_pca" in now["obsm"]  # readable at any moment
        if "result" in now["obsm"]:  # and then with its own record
            assert now["obsm/result"][0, 0] == now["uns/result/value"][()]
        with open_cells(path):
            pass
        assert os.listdir(path.parent) == ["cells.zarr"]
        seen.append(contents(path) == new)
        assert seen[-1] or contents(path) == old
    assert seen == sorted(seen)  # once the result is complete it is never lost
    assert step > 5


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("moment", ["commit", "start"])
def test_copy_onto_a_store(tmp_path, number, moment):
    path, other = cells(tmp_path / "cells.zarr"), cells(tmp_path / "other.zarr", n=6, seed=1)
    old = contents(other)
    out = tmp_path / "place" / "out.zarr"
    shutil.copytree(other, out)
    add(path, out, 2.0)
    new = contents(out)
    steps = itertools.count() if moment == "commit" else range(0, 60, 12)
    for step in steps:
        shutil.rmtree(out)
        shutil.copytree(other, out)
        if not signalled(lambda: add(path, out, 2.0), number, step, moment):
            break
        assert contents(out) in (old, new)  # at any moment, not only after the next command
        with open_cells(out):
            pass
        assert contents(out) in (old, new)
        assert os.listdir(out.parent) == ["out.zarr"]
    assert step > 5


@pytest.mark.parametrize("number", SIGNALS)
def test_copy_where_a_store_is_replaced_in_two_steps(tmp_path, number, monkeypatch):
    in_two_steps(monkeypatch)
    path, other = cells(tmp_path / "cells.zarr"), cells(tmp_path / "other.zarr", n=6, seed=1)
    old = contents(other)
    out = tmp_path / "place" / "out.zarr"
    shutil.copytree(other, out)
    add(path, out, 2.0)
    new = contents(out)
    missing = 0
    for step in itertools.count():
        shutil.rmtree(out)
        shutil.copytree(other, out)
        if not signalled(lambda: add(path, out, 2.0), number, step):
            break
        missing += not out.exists()
        # What users may delete never has the only copy.
        for folder in out.parent.glob(".*.partial"):
            shutil.rmtree(folder)
        with open_cells(out):
            pass
        assert contents(out) in (old, new)
        assert os.listdir(out.parent) == ["out.zarr"]
    assert missing == (number == signal.SIGKILL)  # the other signals wait
    # Where it was missing, writing there again also works.
    if number == signal.SIGKILL:
        for step in itertools.count():
            signalled(lambda: add(path, out, 2.0), number, step)
            if not out.exists():
                break
        add(path, out, 2.0)
        assert contents(out) == new
        assert os.listdir(out.parent) == ["out.zarr"]


def test_a_removal_that_was_killed_by_an_earlier_version_is_finished(tmp_path):
    path = cells(tmp_path / "cells.zarr")
    add(path, None, 1.0)
    (tmp_path / ".cells.zarr.ready" / "new" / "obsm").mkdir(parents=True)  # new/uns is gone
    with open_cells(path):
        pass
    assert os.listdir(tmp_path) == ["cells.zarr"]
    assert read(path).uns["result"]["value"] == 1


def test_what_a_running_process_writes_is_not_swept(tmp_path):
    path, out = cells(tmp_path / "cells.zarr"), tmp_path / "out.zarr"
    with open_cells(path) as file, file.writer(out, "a", (12, 2), np.dtype("f4")) as writer:
        add(path, out, 1.0)  # a second process, which finishes first
        with open_cells(out):
            pass
        writer.finish({})
    assert set(read(out).obsm) == {"X_pca", "a"}
    assert sorted(os.listdir(tmp_path)) == ["cells.zarr", "out.zarr"]
