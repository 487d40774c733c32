"""Damaged counts are refused in one sentence that names the file, and nothing is written."""

import json

import h5py
import numpy as np
import pytest

from anndata_files import contents, make, write
from command_line import run

pytestmark = [
    pytest.mark.filterwarnings("ignore:zarr v3 autosharding:UserWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
]


def instead(file, name, value):
    """Replace an array; its attributes stay."""
    attributes = dict(file[name].attrs)
    del file[name]
    file[name] = value
    file[name].attrs.update(attributes)


def encoded(file, name, kind):
    file[name].attrs["encoding-type"] = kind


DAMAGE = {
    "no var": lambda f: f.__delitem__("var"),
    "var of another kind": lambda f: instead(f, "var", np.arange(7)),
    "an unknown encoding of var": lambda f: encoded(f, "var", "none"),
    "no names of genes": lambda f: f.__delitem__("var/_index"),
    "names that are no text": lambda f: instead(
        f, "var/_index", np.array([b"\xff\xfe"] * 7, h5py.string_dtype())
    ),
    "too few names": lambda f: instead(f, "var/_index", np.array(["a"] * 3, h5py.string_dtype())),
    "too many genes": lambda f: f["X"].attrs.__setitem__("shape", [40, 9]),
    "no indices": lambda f: f.__delitem__("X/indices"),
    "indices outside": lambda f: f["X/indices"].write_direct(
        np.full(f["X/indices"].shape, 99, f["X/indices"].dtype)
    ),
    "indptr of another length": lambda f: instead(f, "X/indptr", np.arange(3)),
    "text as counts": lambda f: instead(f, "X/data", np.array(["a"] * 9, h5py.string_dtype())),
    "an unknown encoding of X": lambda f: encoded(f, "X", "none"),
    "X of three dimensions": lambda f: (f.__delitem__("X"), f.__setitem__("X", np.ones((40, 7, 2)))),
    "a scalar": lambda f: (f.__delitem__("X"), f.__setitem__("X", 3.5)),
    "not a count": lambda f: f["X/data"].__setitem__(0, np.inf),
    "a link to itself": lambda f: (
        f.__delitem__("X"), f.__setitem__("X", h5py.SoftLink("/X"))
    ),
    "obsm of another kind": lambda f: (f.__delitem__("obsm"), f.__setitem__("obsm", np.ones(3))),
    "layers of another kind": lambda f: (f.__delitem__("layers"), f.__setitem__("layers", 3.5)),
}  # fmt: skip


@pytest.fixture
def reference(rng, tmp_path):
    make(rng, 40).write_h5ad(tmp_path / "valid.h5ad")
    out = tmp_path / "reference"
    words = ("--genes", "all", "--coordinates", "2", "--out", out)
    run("embed", "fit", tmp_path / "valid.h5ad", *words)
    return out


def check_refused(path, *words):
    before = contents(path) if path.suffix == ".zarr" else path.read_bytes()
    done = run("embed", *words, code=2)
    sentences = [line for line in done.stderr.splitlines() if not line.startswith("Warning")]
    assert len(sentences) == 1
    assert path.name in sentences[0]
    assert (contents(path) if path.suffix == ".zarr" else path.read_bytes()) == before


@pytest.mark.parametrize("case", DAMAGE)
def test_h5ad(rng, tmp_path, reference, case):
    make(rng, 40).write_h5ad(path := tmp_path / "cells.h5ad")
    with h5py.File(path, "r+") as file:
        DAMAGE[case](file)
    layer = ("--layer", "raw") if case.startswith("layers") else ()
    words = ("--upstream", reference, "--key-added", "e", *layer)
    check_refused(path, "apply", path, *words, "--in-place")
    check_refused(path, "apply", path, *words, "--out", tmp_path / "out.h5ad")
    assert not (tmp_path / "out.h5ad").exists()
    if not case.startswith("obsm"):  # which is not read
        check_refused(path, "fit", path, "--genes", "all", "--out", tmp_path / "o", *layer)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", ["X/data", "X", "var", "var/_index", "varm"])
def test_zarr(rng, tmp_path, reference, version, name):
    """A chunk, or a document: the last is of something that is not read, but an index is made of it."""
    write(make(rng, 40), path := tmp_path / "cells.zarr", f"zarr{version}")
    chunks = [p for p in (path / name).rglob("*") if p.is_file() and p.name[0].isdecimal()]
    if name == "X/data":
        chunks[0].write_bytes(b"no chunk")
    else:
        document = next(
            p
            for p in ((path / name) / n for n in ("zarr.json", ".zarray", ".zgroup"))
            if p.exists()
        )
        document.write_text("{")
        if name != "varm":
            (path / ".zmetadata").unlink(missing_ok=True)
            root = json.loads((path / "zarr.json").read_text()) if version == 3 else {}
            if root.pop("consolidated_metadata", None):
                (path / "zarr.json").write_text(json.dumps(root))
    words = ("--upstream", reference, "--key-added", "e")
    check_refused(path, "apply", path, *words, "--out", tmp_path / "out.zarr")
    check_refused(path, "apply", path, *words, "--in-place")
    assert not (tmp_path / "out.zarr").exists()
