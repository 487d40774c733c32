"""Readers of .h5ad files share a lock: no file changes in place while it is read, in any process."""

import errno
import gc
import os
import shutil
import subprocess
import sys

import anndata as ad
import h5py
import numpy as np
import pytest

from anndata_files import make, read, write
from command_line import warm_command as command
from scbatchprox import BatchProx, InputError, refine_file
from scbatchprox.errors import InUse
from scbatchprox.io.formats import h5ad, open_cells
from warm_processes import WarmProcess

fcntl = pytest.importorskip("fcntl")

# Runs `refine` and stops at a moment until a line arrives: between two blocks that it reads, before or
# after the first block that it writes, during the commit, or while it copies.
PAUSED = """
import os, sys
from scbatchprox.cells import file as stream
from scbatchprox.cells.reading import LocalCells
from scbatchprox.io.formats import h5ad
from pathlib import Path
stream.CHUNK_BYTES = 6 * 4 * 100
moment, path, *words = sys.argv[1:]
stopped = []
def pause():
    if not stopped:
        stopped.append(True)
        print("paused", flush=True)
        sys.stdin.readline()
def around(owner, name, after=False, when=lambda: True):
    real = getattr(owner, name)
    def hooked(*arguments):
        if when() and not after:
            pause()
        found = real(*arguments)
        if when() and after:
            pause()
        return found
    setattr(owner, name, hooked)
if moment == "reading":
    part = LocalCells._part
    LocalCells._part = staticmethod(lambda labels, lo, block: (lo and pause(), part(labels, lo, block))[1])
elif moment == "writing":
    around(h5ad._H5adWriter, "write", after=True)
elif moment == "commit":
    journal = Path(path).with_name(f".{Path(path).name}.journal")
    around(os, "pwrite", when=journal.exists)
elif moment == "copying":
    around(os, "copy_file_range")
from scbatchprox.cli.app import app
app(["refine", path, "--batch-key", "batch", "--no-diagnose", *words])
"""


class Paused:
    """A `refine` in another process, stopped at a moment."""

    def __init__(self, moment, path, *words):
        self.process = WarmProcess(PAUSED, moment, path, *words)
        if self.process.stdout.readline() != "paused\n":
            raise AssertionError(self.process.communicate()[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def resume(self):
        """Let it end; return its exit code and what it said."""
        _, stderr = self.process.communicate("\n", timeout=120)
        return self.process.returncode, " ".join(stderr.split())


@pytest.fixture
def path(rng, tmp_path):
    path = tmp_path / "cells.h5ad"
    write(make(rng), path, "h5ad")
    return path


def replace_input(path):
    """Write other values to the embedding that is read, as a run with --key-added would in place."""
    with h5ad.changing(path) as file:
        file["obsm/X_pca"][:] = np.float32(4e35)


def check_refused(path):
    """A command that would write in place ends with one sentence and changes nothing."""
    before = path.read_bytes()
    done = command("refine", path, "--batch-key", "batch", "--in-place", "--no-diagnose")
    words = " ".join(done.stderr.split())
    assert done.returncode == 2, words
    assert "in use elsewhere" in words
    assert "try again later" in words
    assert "Traceback" not in words
    assert path.read_bytes() == before


@pytest.mark.parametrize("moment", ["reading", "copying"])
def test_no_change_in_place_while_it_is_read_or_copied(path, tmp_path, moment):
    expected = make_result(path, tmp_path)
    out = tmp_path / "out.h5ad"
    with Paused(moment, path, "--out", out) as reader:
        with pytest.raises(InUse):
            replace_input(path)
        check_refused(path)
        code, words = reader.resume()
    assert code == 0, words
    np.testing.assert_array_equal(read(out).obsm["X_pca_batchprox"], expected)
    replace_input(path)  # its lock is gone


def make_result(path, folder):
    refine_file(path, "batch", out=folder / "expected.h5ad")
    return read(folder / "expected.h5ad").obsm["X_pca_batchprox"]


@pytest.mark.parametrize("moment", ["writing", "commit"])
def test_no_reading_while_it_is_changed_in_place(path, tmp_path, moment):
    out = tmp_path / "out.h5ad"
    with Paused(moment, path, "--in-place") as writer:
        for place in ("--out", out), ("--in-place",):
            done = command("refine", path, "--batch-key", "batch", *place)
            words = " ".join(done.stderr.split())
            assert done.returncode == 2, words
            assert "to be free to read, found it in use elsewhere" in words
            assert "Traceback" not in words
        with pytest.raises(InUse):
            open_cells(path)
        code, words = writer.resume()
    assert code == 0, words
    assert not out.exists()
    assert "X_pca_batchprox" in read(path).obsm
    open_cells(path).close()


def test_of_two_runs_in_place_one_is_refused(path):
    """Both read; the first that wants to write is refused, the other one ends."""
    with (
        Paused("reading", path, "--in-place") as one,
        Paused("reading", path, "--in-place", "--key-added", "other") as two,
    ):
        code, words = one.resume()
        assert code == 2
        assert "found it in use elsewhere" in words
        code, words = two.resume()
    assert code == 0, words
    assert "other" in read(path).obsm
    assert "X_pca_batchprox" not in read(path).obsm


@pytest.mark.parametrize("change", ["in place", "replaced"])
def test_a_change_between_reading_and_writing(path, rng, monkeypatch, change):
    """The shared lock is given up before the exclusive one is taken: another process may be faster."""
    other, real, after = path.with_name("other.h5ad"), os.open, []
    write(make(rng), other, "h5ad")

    def opening(name, flags, *mode):
        if str(name) == str(path) and flags & os.O_RDWR and not after:
            after.append(None)
            if change == "replaced":
                os.replace(other, path)
            else:
                replace_input(path)
            after.append(path.read_bytes())
        return real(name, flags, *mode)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", opening)
        with pytest.raises(InputError, match="as it was when it was read.*changed since"):
            refine_file(path, "batch", model=BatchProx(target="moment"))
    assert path.read_bytes() == after[1]


def test_readers_share(path):
    with Paused("reading", path, "--out", path.with_name("out.h5ad")) as reader:
        with open_cells(path) as file, open_cells(path) as second:
            np.testing.assert_array_equal(file.embedding(None)[:], second.embedding(None)[:])
        adata = ad.read_h5ad(path, backed="r")  # another program
        adata.file.close()
        assert reader.resume()[0] == 0


def test_a_killed_reader_holds_no_lock(path):
    with Paused("reading", path, "--in-place"):
        check_refused(path)
    refine_file(path, "batch", model=BatchProx(target="moment"))


def test_a_reader_that_fails_or_is_forgotten_holds_no_lock(path):
    with pytest.raises(InputError, match="found no 'absent'"):
        refine_file(path, "batch", use_rep="absent", model=BatchProx(target="moment"))
    changing_works(path)
    file = open_cells(path)
    with pytest.raises(InUse):
        changing_works(path)
    del file
    gc.collect()
    changing_works(path)
    other = path.with_name("other.h5ad")
    with h5py.File(other, "w") as file:
        file["spam"] = 1
    with pytest.raises(InputError) as caught:
        open_cells(other)
    changing_works(other)
    assert "without obs" in str(caught.value)


def changing_works(path):
    with h5ad.changing(path) as file:
        file.attrs["changed"] = 1


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_reading_without_locks(path, monkeypatch, number):
    def no_locks(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with open_cells(path) as file:
        assert file.embedding(None).shape == (900, 6)
    refine_file(path, "batch", out=path.with_name("out.h5ad"), model=BatchProx(target="moment"))
    with pytest.raises(InputError, match="Expected a file system with locks"):
        refine_file(path, "batch", model=BatchProx(target="moment"))


NO_LOCKS = """
#include <errno.h>
#include <stdlib.h>
int flock(int handle, int how) { errno = atoi(getenv("NO_LOCKS")); return -1; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A library that takes the place of the system's locks in every part of a process: HDF5 has its own."""
    if shutil.which("cc") is None or sys.platform != "linux":
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("library") / "no_locks.so"
    words = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(words, input=NO_LOCKS, text=True, check=True)
    return library


WITHOUT_LOCKS = """
import sys
from pathlib import Path
from scbatchprox import BatchProx, InputError, refine_file
from scbatchprox.upstream.on_disk import open_counts
path = Path(sys.argv[1])
refine_file(path, "batch", out=path.with_name("out.h5ad"), model=BatchProx(target="moment"))
with open_counts(path) as counts:
    print(counts.n_cells)
def refused():
    try:
        refine_file(path, "batch", model=BatchProx(target="moment"))
    except InputError as error:
        print(error)
refused()
path.write_bytes(path.read_bytes()[:5000])
refused()
"""


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_hdf5_without_locks(path, library, number):
    """Files are read and copied, and only in place nothing is written; a damaged file is still one."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOCKS, str(path)],
        env=os.environ | {"LD_PRELOAD": str(library), "NO_LOCKS": str(number)},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    n_cells, in_place, cut = done.stdout.splitlines()
    assert n_cells == "900"
    assert "X_pca_batchprox" in read(path.with_name("out.h5ad")).obsm
    assert "Expected a file system with locks" in in_place
    assert "damaged or of another kind" in cut
    assert "truncated file" in cut


def test_a_reader_never_opens_the_file_for_writing(path, monkeypatch):
    """It may be read-only, or on a disk that is."""
    path.chmod(0o444)
    real = os.open

    def opening(name, flags, *mode):
        if str(name) == str(path) and flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(name, flags, *mode)

    monkeypatch.setattr(os, "open", opening)
    refine_file(path, "batch", out=path.with_name("out.h5ad"), model=BatchProx(target="moment"))
    assert "X_pca_batchprox" in read(path.with_name("out.h5ad")).obsm


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_open_in_backed_mode_in_the_same_process(path, mode):
    adata = ad.read_h5ad(path, backed=mode)
    refine_file(path, "batch", out=path.with_name("out.h5ad"), model=BatchProx(target="moment"))
    with pytest.raises(InputError, match="in use elsewhere"):
        refine_file(path, "batch", model=BatchProx(target="moment"))
    adata.file.close()
    refine_file(path, "batch", model=BatchProx(target="moment"))


@pytest.mark.parametrize("place", ["in place", "out"])
def test_workers_of_a_cluster_need_no_lock(path, place):
    pytest.importorskip("distributed")
    refine_file(path, "batch", out=path.with_name("memory.h5ad"), model=BatchProx(target="moment"))
    out = None if place == "in place" else path.with_name("out.h5ad")
    refine_file(path, "batch", out=out, cluster="local", model=BatchProx(target="moment"))
    np.testing.assert_allclose(
        read(out or path).obsm["X_pca_batchprox"],
        read(path.with_name("memory.h5ad")).obsm["X_pca_batchprox"],
        rtol=1e-5,
        atol=1e-6,
    )
