"""What is neither a file nor a folder is refused before it is opened, wherever a file is read or written."""

import os
import signal
import socket

import numpy as np
import pytest

from anndata_files import make, write
from command_line import run
from scbatchprox import refine_file
from scbatchprox.errors import InputError
from scbatchprox.io.formats import SUFFIXES

pytestmark = [
    pytest.mark.filterwarnings("ignore:zarr v3 autosharding:UserWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names"),
]


@pytest.fixture(autouse=True)
def at_once():
    """Opening a pipe would wait for ever."""

    def late(*_):
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """Make a pipe, a socket, a device or a circle of links."""
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    pipes = []

    def place(what, path):
        if what == "pipe":
            os.mkfifo(path)
            pipes.append(path)
        elif what == "socket":
            with socket.socket(socket.AF_UNIX) as end:
                end.bind(os.path.relpath(path))
        elif what == "device":
            os.symlink("/dev/zero", path)
        else:
            os.symlink(path, f"{path}.link")
            os.symlink(f"{path}.link", path)
        return path

    yield place
    for path in pipes:  # a thread that still waits would keep Python from ending
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))


def check_refused(what, path, *arguments):
    done = run(*arguments, code=2)
    assert done.stderr.count("\n") == 1
    assert path.name in done.stderr
    assert what in done.stderr or what == "circle"


WHAT = ["pipe", "socket", "device", "circle"]


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_cells(odd, tmp_path, what, suffix):
    path = odd(what, tmp_path / f"cells{suffix}")
    check_refused(what, path, "refine", path, "--batch-key", "b", "--out", tmp_path / f"o{suffix}")


@pytest.mark.parametrize("what", WHAT)
@pytest.mark.parametrize("suffix", [".txt", ".npy", ".csv"])
def test_labels(odd, tmp_path, what, suffix):
    np.save(tmp_path / "cells.npy", np.zeros((3, 2)))
    path = odd(what, tmp_path / f"labels{suffix}")
    more = ("--batch-key", "b", "--labels", path, "--out", tmp_path / "o.npy")
    check_refused(what, path, "refine", tmp_path / "cells.npy", *more)


@pytest.mark.parametrize("what", WHAT)
def test_models_references_and_lists(odd, rng, tmp_path, what):
    make(rng, 30).write_h5ad(cells := tmp_path / "cells.h5ad")
    path = odd(what, tmp_path / "model.safetensors")
    out = ("--out", tmp_path / "o.h5ad")
    check_refused(what, path, "inspect", path)
    check_refused(what, path, "apply", cells, "--model", path, *out)
    check_refused(what, path, "embed", "apply", cells, "--upstream", path, *out)
    check_refused(what, path, "refine", cells, "--batch-key", "batch", *out, "--model", path)
    assert not (tmp_path / "o.h5ad").exists()
    (tmp_path / "all").mkdir()
    where = ("--private", tmp_path / "own", "--folder", tmp_path / "all")
    run("federated", "keys", "here", "--study", "s", *where)
    check_refused(what, path, "federated", "pca", "--genes", path, *where)
    (tmp_path / "own" / "keys.json").unlink()
    keys = odd(what, tmp_path / "own" / "keys.json")
    check_refused(what, keys, "federated", "genes", "--genes", path, *where)


@pytest.mark.parametrize("what", WHAT)
def test_results(odd, rng, tmp_path, what):
    for kind in ("h5ad", "zarr"):
        write(make(rng, 30), cells := tmp_path / f"cells.{kind}", kind + "3" * (kind == "zarr"))
        path = odd(what, tmp_path / f"out.{kind}")
        check_refused(what, path, "refine", cells, "--batch-key", "batch", "--out", path)
        assert os.path.lexists(path)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("what", ["pipe", "socket"])
@pytest.mark.parametrize("name", ["obsm/X_pca", "obs/batch/codes", "obs/batch", ""])
def test_in_a_store(odd, rng, tmp_path, version, what, name):
    """A chunk, and a document."""
    write(make(rng, 30), path := tmp_path / "cells.zarr", f"zarr{version}")
    document = "zarr.json" if version == 3 else ".zgroup"
    chunks = [p for p in (path / name).rglob("*") if p.is_file() and p.name[0].isdecimal()]
    place = path / name / document if name in ("", "obs/batch") else sorted(chunks)[0]
    place.unlink()
    (path / ".zmetadata").unlink(missing_ok=True)  # or it would be read instead of a document
    odd(what, place)
    check_refused(what, path, "refine", path, "--batch-key", "batch", "--out", tmp_path / "o.zarr")
    assert not (tmp_path / "o.zarr").exists()


@pytest.mark.parametrize("how", [{"out": "o.zarr"}, {}])
def test_a_circle_that_nothing_reads(odd, rng, tmp_path, how):
    """All files of an element are listed, to notice changes, and those of a store, to copy them."""
    write(make(rng, 30), path := tmp_path / "cells.zarr", "zarr3")
    odd("circle", path / "obsm" / "X_pca" / "other")
    with pytest.raises(InputError, match="a circle of links at .*other"):
        refine_file(path, "batch", **how)


def test_counts_in_a_store(odd, rng, tmp_path):
    write(make(rng, 30), path := tmp_path / "cells.zarr", "zarr3")
    place = next(
        p for p in sorted((path / "X" / "data").rglob("*")) if p.name[0].isdecimal() and p.is_file()
    )
    place.unlink()
    odd("pipe", place)
    check_refused("pipe", path, "embed", "fit", path, "--genes", "all", "--out", tmp_path / "p")


def test_journal(odd, rng, tmp_path):
    make(rng, 30).write_h5ad(path := tmp_path / "cells.h5ad")
    odd("pipe", tmp_path / ".cells.h5ad.journal")
    check_refused("journal", path, "refine", path, "--batch-key", "batch", "--in-place")


def test_a_link_in_the_place_of_a_journal(rng, tmp_path):
    """What a stranger's folder says does not choose where old content is saved."""
    make(rng, 30).write_h5ad(path := tmp_path / "cells.h5ad")
    before = path.read_bytes()
    (tmp_path / ".cells.h5ad.journal").symlink_to(tmp_path / "elsewhere")
    check_refused("journal", path, "refine", path, "--batch-key", "batch", "--in-place")
    assert not (tmp_path / "elsewhere").exists()
    assert path.read_bytes() == before


@pytest.mark.parametrize("what", ["pipe", "link"])
def test_in_the_place_of_a_result_that_waits(odd, rng, tmp_path, what):
    write(make(rng, 30), path := tmp_path / "cells.zarr", "zarr3")
    ready = tmp_path / ".cells.zarr.ready"
    if what == "pipe":
        odd("pipe", ready)
    else:
        (tmp_path / "other").mkdir()
        ready.symlink_to(tmp_path / "other")
    check_refused(what, path, "diagnose", path, "--batch-key", "batch")
    assert os.path.lexists(ready)


@pytest.mark.parametrize("suffix", ["h5ad", "zarr", "csv", "npy"])
def test_a_path_of_any_length(suffix):
    for path in ("x" * 100_000, "/".join(["x" * 100] * 1000)):
        for words in (
            ("refine", f"{path}.{suffix}", "--batch-key", "b", "--out", f"o.{suffix}"),
            ("inspect", path),
            ("atlas", "log", path),
        ):
            done = run(*words, code=2)
            assert done.stderr.count("\n") == 1
            assert "File name too long: xxx" in done.stderr
            assert len(done.stderr) < 5000
