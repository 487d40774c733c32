"""Locks: one writer, none held by a killed process, and no writing on systems without locks."""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys

import anndata as ad
import filelock
import h5py
import numpy as np
import pandas as pd
import pytest

from research.experiments.journal import Journal
from scbatchprox import Atlas, BatchProx, refine_file
from scbatchprox.errors import InputError, InUse
from scbatchprox.io import locks

fcntl = pytest.importorskip("fcntl")


@pytest.fixture(params=["file", "folder"])
def path(request, tmp_path):
    path = tmp_path / "cells"
    path.write_text("content") if request.param == "file" else path.mkdir()
    return path


@pytest.fixture
def cells(tmp_path):
    """An .h5ad file and a .zarr store with two batches each."""
    rng = np.random.default_rng(0)
    obs = pd.DataFrame({"batch": ["a", "b"] * 50}, index=[str(i) for i in range(100)])
    adata = ad.AnnData(obs=obs, obsm={"X_pca": rng.normal(size=(100, 3)).astype(np.float32)})
    adata.write_h5ad(tmp_path / "cells.h5ad")
    adata.write_zarr(tmp_path / "cells.zarr")
    return tmp_path


def waiting(script, *arguments):
    """Start another process that runs a script and then waits."""
    script += "\nprint('ready', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", "import os, sys\n" + script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()


HOLD = "from pathlib import Path; from scbatchprox.io.locks import lock; lock(Path(sys.argv[1]))"


def test_one_writer(path):
    before = path.read_text() if path.is_file() else None
    with (
        locks.locked(path),
        pytest.raises(InUse, match="in use elsewhere; try again later"),
        locks.locked(path),
    ):
        pass
    with locks.locked(path):
        pass
    assert os.listdir(path.parent) == ["cells"]  # no file is left beside the user's
    assert before is None or path.read_text() == before


def test_a_killed_process_holds_no_lock(path):
    process = waiting(HOLD, path)
    try:
        with pytest.raises(InUse), locks.locked(path):
            pass
    finally:
        kill(process)
    with locks.locked(path):
        pass


def test_a_forked_process_does_not_keep_the_lock(path):
    go = multiprocessing.get_context("fork").Event()
    handle = locks.lock(path)
    child = multiprocessing.get_context("fork").Process(target=go.wait, args=(60,))
    child.start()
    try:
        locks.unlock(handle)
        with locks.locked(path):
            pass
    finally:
        go.set()
        child.join()


def test_locks_work_together_with_version_0_1_0(path):
    """It used ``flock`` on the same file or folder."""
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR
    handle = os.open(path, flags)
    try:
        with locks.locked(path), pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(InUse), locks.locked(path):
            pass
    finally:
        os.close(handle)


def test_a_file_that_another_program_has_open_is_not_written_to(cells):
    path = cells / "cells.h5ad"
    process = waiting("import h5py; file = h5py.File(sys.argv[1])", path)
    try:
        with pytest.raises(InUse):
            refine_file(path, "batch", model=BatchProx(target="moment"))
    finally:
        kill(process)
    refine_file(path, "batch", model=BatchProx(target="moment"))
    with h5py.File(path) as file:
        assert "X_pca_batchprox" in file["obsm"]


def changes(folder):
    return {
        "h5ad": lambda: refine_file(
            folder / "cells.h5ad", "batch", model=BatchProx(target="moment")
        ),
        "zarr": lambda: refine_file(
            folder / "cells.zarr", "batch", model=BatchProx(target="moment")
        ),
        "atlas": lambda: Atlas.create(folder / "atlas", target="moment"),
        "experiments": lambda: Journal.open(folder / "rows").__enter__(),
    }


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
@pytest.mark.parametrize("kind", ["h5ad", "zarr", "atlas", "experiments"])
def test_no_locks_no_writing(cells, monkeypatch, kind, number):
    def no_locks(*_):
        raise OSError(number, os.strerror(number))

    def content():
        return {
            p: p.read_bytes() for p in cells.rglob("*") if p.is_file() and p.parts[-2] != "atlas"
        }

    before = content()
    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(InputError) as caught:
        changes(cells)[kind]()
    message = str(caught.value)
    assert message.startswith("Expected a file system with locks to write to ")
    assert os.strerror(number) in message
    assert message.count(". ") == 0  # one sentence
    assert {p: b for p, b in content().items() if p.name != "rows"} == before
    refine_file(
        cells / "cells.h5ad", "batch", out=cells / "out.h5ad", model=BatchProx(target="moment")
    )  # needs no lock


def test_a_folder_on_nfs_has_a_lock_file(tmp_path, monkeypatch):
    """NFS can lock only what is open for writing, and a folder cannot be."""
    real = fcntl.flock

    def nfs_flock(handle, how):
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(handle, how)

    (tmp_path / "cells.zarr").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "cells.zarr")
    monkeypatch.setattr(fcntl, "flock", nfs_flock)
    with (
        locks.locked(tmp_path / "cells.zarr"),
        pytest.raises(InUse, match="link"),
        locks.locked(tmp_path / "link"),
    ):
        pass
    assert sorted(os.listdir(tmp_path)) == [".cells.zarr.lock", "cells.zarr", "link"]


def test_windows_uses_a_lock_file(path, monkeypatch):
    """Its locks exclude readers, so the data itself is never locked."""
    monkeypatch.setattr(locks, "_WINDOWS", True)
    with locks.locked(path), pytest.raises(InUse, match=str(path)), locks.locked(path):
        pass
    assert sorted(os.listdir(path.parent)) == [".cells.lock", "cells"]


def test_a_lock_file_is_not_emptied(tmp_path):
    (tmp_path / "lock").write_text("kept")
    with locks.locked_by(tmp_path / "lock", "the atlas"):
        with (
            pytest.raises(InUse, match="Expected the atlas"),
            locks.locked_by(tmp_path / "lock", "the atlas"),
        ):
            pass
        with pytest.raises(filelock.Timeout):  # in any version of filelock
            filelock.FileLock(tmp_path / "lock", timeout=0).acquire()
    assert (tmp_path / "lock").read_text() == "kept"


def test_a_system_without_fcntl(cells):
    """As on Windows: importing, reading and writing to another file work; in place is refused."""
    script = """
import sys
sys.modules["fcntl"] = None
import os
del os.preadv, os.copy_file_range
import scbatchprox, scbatchprox.io.locks, scbatchprox.atlas, scbatchprox.io.formats.journal
from scbatchprox.errors import InputError
scbatchprox.refine_file(sys.argv[1], "batch", out=sys.argv[2])
try:
    scbatchprox.refine_file(sys.argv[1], "batch")
except InputError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, cells / "cells.h5ad", cells / "out.h5ad"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Expected Linux or macOS to change")
    with h5py.File(cells / "out.h5ad") as file:
        assert "X_pca_batchprox" in file["obsm"]
