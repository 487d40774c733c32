"""Damaged files, found by ``make fuzz`` or made by hand, are refused in one sentence."""

import gzip
import io
import json
import shutil
import struct
import warnings
import zipfile
from collections import namedtuple

import h5py
import numpy as np
import pytest
import zarr
from numpy.lib import format as npy

from anndata_files import journal_of, make, write
from command_line import run
from model_files import edited
from scbatchprox import BatchProx, InputError, refine_file
from scbatchprox.atlas import Atlas
from scbatchprox.atlas.versions import checksum
from scbatchprox.io.formats import tables

pytestmark = [
    pytest.mark.filterwarnings("ignore:zarr v3 autosharding:UserWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
]
N = 60


def content(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def check_refused(path, message, key="batch", **options):
    """Refining raises one sentence that names the file, and changes or leaves nothing."""
    before = content(path.parent)
    with pytest.raises(InputError, match=message) as error:
        refine_file(path, key, out=path.with_name(f"out{path.suffix}"), **options)
    assert "\n" not in str(error.value)
    assert path.name in str(error.value)
    assert content(path.parent) == before


@pytest.fixture
def h5ad(rng, tmp_path):
    path = tmp_path / "cells.h5ad"
    make(rng, N).write_h5ad(path)
    return path


def header(shape, descr="<f8"):
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue()


def instead(file, name, **options):
    """Replace an HDF5 array; its attributes stay."""
    attributes = dict(file[name].attrs)
    del file[name]
    file.create_dataset(name, **options).attrs.update(attributes)


H5AD = {
    "rows that are not stored": (
        lambda f: instead(f, "obsm/X_pca", shape=(10**12, 6), dtype="f4"), "0 of .* bytes stored"
    ),
    "chunks that are not stored": (
        lambda f: instead(f, "obsm/X_pca", shape=(10**12, 6), dtype="f4", chunks=(10**6, 6)),
        "0 of 1,000,000 chunks stored",
    ),
    "labels that are not stored": (
        lambda f: instead(f, "obs/batch/codes", shape=(10**12,), dtype="i1"), "0 of .* bytes stored"
    ),
    "codes of no category": (
        lambda f: f["obs/batch/codes"].write_direct(np.full(N, 99, "i1")), "damaged .*codes"
    ),
    "no categories": (lambda f: f.__delitem__("obs/batch/categories"), "damaged .*categories"),
    "a link to itself": (
        lambda f: (f.__delitem__("obs/batch"), f.__setitem__("obs/batch", h5py.SoftLink("/obs/batch"))),
        "damaged",
    ),
    "a link to another file": (
        lambda f: (f.__delitem__("obs"), f.__setitem__("obs", h5py.ExternalLink("o.h5", "/obs"))),
        "'obs' stored in another|damaged",
    ),
    "values of another file": (
        lambda f: instead(f, "obsm/X_pca", shape=(N, 6), dtype="f4", external=[("o.bin", 0, N * 24)]),
        "'X_pca' stored in another",
    ),
    "a group that holds itself": (
        lambda f: f.__setitem__("obs/batch/more", f["obs/batch"]), "holds itself"
    ),
    "an unknown encoding": (
        lambda f: f["obs/batch"].attrs.__setitem__("encoding-type", "none"), "damaged"
    ),
    "an array without values": (
        lambda f: (f.__delitem__("obsm/X_pca"), f.__setitem__("obsm/X_pca", h5py.Empty("f4"))),
        "to be a matrix",
    ),
    "no embedding": (lambda f: f.__delitem__("obsm/X_pca"), "no 'X_pca'.* \\(in cells.h5ad\\)"),
    "a label that is no text": (
        lambda f: instead(f, "obs/site", data=np.array([b"\xff\xfe"] * N, h5py.string_dtype())),
        "damaged",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", H5AD)
def test_h5ad(h5ad, case):
    change, message = H5AD[case]
    with h5py.File(h5ad, "r+") as file:
        change(file)
    check_refused(h5ad, message, "site" if "no text" in case else "batch")


def test_links_are_not_followed_by_links(h5ad, tmp_path):
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = np.zeros((N, 6))
    with h5py.File(h5ad, "r+") as file:
        file["far"] = h5py.ExternalLink("other.h5", "/")
        del file["obsm/X_pca"]
        file["obsm/X_pca"] = h5py.SoftLink("/far/x")
    check_refused(h5ad, "'X_pca' stored in another")


def test_positions_in_a_sparse_embedding_are_checked(h5ad):
    with h5py.File(h5ad, "r+") as file:
        file["obsm/sparse/indices"][0] = 10**6
    check_refused(h5ad, "damaged", use_rep="sparse")


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_that_claims_too_much(rng, tmp_path, version):
    path = tmp_path / "cells.zarr"
    write(make(rng, N), path, f"zarr{version}")
    for name in ("obsm/X_pca", "obs/batch/codes"):
        where = path / name / ("zarr.json" if version == 3 else ".zarray")
        known = json.loads(where.read_text())
        known["shape"][0] = 10**13
        where.write_text(json.dumps(known))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.consolidate_metadata(path)
    check_refused(path, "to fit in memory")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("obsm/X_pca/c/0/0", b"\xff" * 40, "damaged"),
        ("obs/batch/zarr.json", b"3", "damaged|difference"),
        ("obs/zarr.json", None, "damaged|difference"),
    ],
)
def test_zarr_with_a_damaged_file(rng, tmp_path, name, damage, message):
    path = tmp_path / "cells.zarr"
    write(make(rng, N), path, "zarr3")
    if damage is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(damage)
    check_refused(path, message)
    before = content(path)
    with pytest.raises(InputError):
        refine_file(
            path, "batch", model=BatchProx(target="moment")
        )  # in place: the store and its index stay as they are
    assert content(path) == before


def npz(path, members, kind=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", kind) as file:
        for name, data in members.items():
            file.writestr(f"{name}.npy", data)


LABELS = header((N,), "<U1") + np.repeat(["a", "b"], N // 2).astype("<U1").tobytes()


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (
            header((10**12, 3)) + bytes(100),
            "needs 24,000,000,000,000 bytes, and there are 2[0-9]{2}",
        ),
        (header((2**62, 4)) + bytes(100), "damaged"),
        (header((-1, 3)) + bytes(100), "damaged"),
        (header((10**12,), "<U1") + bytes(100), "damaged"),
    ],
)
def test_npz_header_that_claims_too_much(tmp_path, matrix, message):
    npz(tmp_path / "cells.npz", {"X": matrix, "batch": LABELS})
    check_refused(tmp_path / "cells.npz", message, use_rep="X")


def test_npz_directory_that_claims_too_much(tmp_path):
    path = tmp_path / "cells.npz"
    npz(path, {"X": header((10**9,)) + bytes(100), "batch": LABELS})
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.find(b"PK\x01\x02") + 24, 2**32 - 2)
    path.write_bytes(data)
    check_refused(path, "'X.npy' claims 4,294,967,294 bytes, packed in", use_rep="X")


def test_npz_members_that_share_their_bytes(tmp_path):
    path = tmp_path / "cells.npz"
    npz(path, {name: header((N, 3)) + bytes(N * 24) for name in ("X", "Y")}, zipfile.ZIP_STORED)
    data = path.read_bytes()
    at, end = data.find(b"PK\x01\x02"), data.rfind(b"PK\x05\x06")
    entry = data[at : data.find(b"PK\x01\x02", at + 1)]
    many = entry * 100
    tail = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 100, 100, len(many), at, 0)
    assert end > at
    path.write_bytes(data[:at] + many + tail)
    check_refused(path, "members of .* bytes in a file of", use_rep="X")


def test_npz_that_does_not_fit(tmp_path, monkeypatch):
    """Honest, but packed a thousand times: refused by what the disk has, where it is unpacked."""
    usage = namedtuple("usage", "free")(10**8)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    npz(tmp_path / "cells.npz", {"X": header((5 * 10**6, 3)) + bytes(12 * 10**7), "batch": LABELS})
    check_refused(
        tmp_path / "cells.npz", "0.1 GB of free disk in .* to unpack cells.npz", use_rep="X"
    )


@pytest.mark.parametrize("shape", [(10**12, 3), (2**62, 4), (-1, 3), (True, 3)])
def test_npy_header_that_claims_too_much(tmp_path, shape):
    (tmp_path / "labels.txt").write_text("a\nb\n" * 30)
    (tmp_path / "cells.npy").write_bytes(header(shape) + bytes(N * 24))
    check_refused(tmp_path / "cells.npy", "damaged", labels=tmp_path / "labels.txt")


def test_labels_that_are_no_text(tmp_path):
    np.save(tmp_path / "cells.npy", np.zeros((2, 3)))
    (tmp_path / "labels.npy").write_bytes(header((2,), "<U1") + b"a\0\0\0\xff\xff\xff\x7f")
    with pytest.raises(InputError, match="labels.npy.*damaged"):
        refine_file(
            tmp_path / "cells.npy",
            "b",
            labels=tmp_path / "labels.npy",
            out=tmp_path / "o.npy",
            model=BatchProx(target="moment"),
        )


def test_text_that_unpacks_to_too_much(tmp_path, monkeypatch):
    path = tmp_path / "cells.csv.gz"
    monkeypatch.setattr(tables, "LINE_CHARS", 10**5)
    with gzip.open(path, "wb", 1) as file:
        file.write(b"batch,PC1,PC2\n" + b"0" * 10**6)
    with pytest.raises(
        InputError, match="fewer than 100,000 characters in cells.csv.gz, .* line 2"
    ):
        refine_file(path, "batch", out=tmp_path / "out.csv.gz", model=BatchProx(target="moment"))


@pytest.mark.parametrize("cut", [1, 5, 13, 100])
def test_journal_that_was_cut(h5ad, cut):
    """The page of a cut journal was written wherever its offset said, even behind the end of the file."""
    before = h5ad.read_bytes()
    entry = struct.pack("<QI", 2**40, 64) + b"x" * 128
    journal_of(h5ad).write_bytes((b"scbatchprox journal 1\n" + entry)[:-cut])
    check_refused(h5ad, "journal")
    assert h5ad.read_bytes() == before


MODELS = {
    "a target of another kind": lambda k, t: [
        k["params"][part].update(target="population", rounds=3) for part in ("params", "method")
    ],
    "numbers of few digits": lambda k, t: t.update(
        {"moments.mean": t["moments.mean"].astype("f2")}
    ),
    "a parameter of no type": lambda k, t: k["params"]["params"].update(mu="x"),
    "an unknown parameter": lambda k, t: k["params"]["params"].update(other=1),
    "parameters that are a list": lambda k, t: k.update(params=[1]),
    "batches that are text": lambda k, t: k.update(batches="ab"),
    "batches that are a number": lambda k, t: k.update(batches=3.5),
    "a tensor of another shape": lambda k, t: t.update({"moments.m2": t["moments.m2"][..., None]}),
    "no history": lambda k, t: t.pop("history.round"),
    "a key that is no name": lambda k, t: k["params"]["provenance"].update(batch_key=[1.5]),
    "a key twice": lambda k, t: k["params"]["provenance"].update(batch_key=["b", "b"]),
}

REGISTERED = {
    "no trace": lambda k, t: t.pop("history.matched"),
    "half of a trace": lambda k, t: t.pop("history.movement"),
    "evidence on another batch": lambda k, t: k["params"].update(evidence=["a", "x"]),
    "evidence on fewer batches": lambda k, t: k["params"].update(evidence=["a"]),
    "evidence in no order": lambda k, t: k["params"].update(evidence=["b", "a"]),
    "no evidence": lambda k, t: t.pop("evidence.removed"),
    "an unknown decision": lambda k, t: t.update({"evidence.decision": np.array([1, 9])}),
}


@pytest.mark.parametrize("case", REGISTERED)
def test_model_of_a_registration(rng, tmp_path, case):
    path = tmp_path / "model.safetensors"
    BatchProx().fit(rng.normal(size=(N, 3)), batch=np.repeat(["a", "b"], N // 2)).save(path)
    edited(path, REGISTERED[case])
    assert path.name in run("inspect", path, code=2).stderr


@pytest.mark.parametrize("case", MODELS)
def test_model(rng, tmp_path, case):
    path = tmp_path / "model.safetensors"
    BatchProx(target="moment").fit(
        rng.normal(size=(N, 3)), batch=np.repeat(["a", "b"], N // 2)
    ).save(path)
    edited(path, MODELS[case])
    result = run("inspect", path, code=2)
    assert result.stderr.count("\n") == 1
    assert path.name in result.stderr


ATLASES = {
    "an unknown field": lambda stored: stored["versions"][0].update(filex=1),
    "no field": lambda stored: stored["versions"][1].pop("number"),
    "a parent of another type": lambda stored: stored["versions"][1].update(parent="x"),
    "a parent that does not exist": lambda stored: stored["versions"][1].update(parent=7),
    "batches that are a number": lambda stored: stored["versions"][1].update(added=3),
    "a file elsewhere": lambda stored: stored["versions"][1].update(file="../../x.safetensors"),
    "a source without a name": lambda stored: stored["versions"][1].update(source={}),
    "a batch key twice": lambda stored: stored["versions"][1].update(
        source={"name": "cells.h5ad", "batch_key": ["batch", "batch"], "use_rep": "X_pca"}
    ),
    "no batch key": lambda stored: stored["versions"][1].update(
        source={"name": "cells.h5ad", "batch_key": [None], "use_rep": "X_pca"}
    ),
    "no versions": lambda stored: stored.update(versions=[]),
    "parameters of another type": lambda stored: stored["params"].update(mu="x"),
}


@pytest.mark.parametrize("case", ATLASES)
def test_atlas(rng, tmp_path, case):
    atlas = Atlas.create(tmp_path / "lung", target="moment")
    atlas.add(rng.normal(size=(N, 3)), np.repeat(["a", "b"], N // 2))
    where = tmp_path / "lung" / "atlas.json"
    stored = json.loads(where.read_text())
    del stored["sha256"]
    ATLASES[case](stored)
    where.write_text(json.dumps(stored | {"sha256": checksum(stored)}))
    result = run("atlas", "log", tmp_path / "lung", code=2)
    assert result.stderr.count("\n") == 1
    assert "atlas.json" in result.stderr


def test_npz_labels_that_are_no_text(tmp_path):
    """Found by make fuzz."""
    labels = header((N,), "<U1") + b"a\0\0\0\xff\xff\xff\x7f" + b"a\0\0\0" * (N - 2)
    npz(tmp_path / "cells.npz", {"X": header((N, 3)) + bytes(N * 24), "batch": labels})
    check_refused(tmp_path / "cells.npz", "damaged .*text with the character", use_rep="X")


def test_npz_labels_of_another_byte_order(tmp_path, rng):
    """Found by make fuzz; not damaged."""
    labels = np.repeat([1.0, 2.0], N // 2)
    np.savez(tmp_path / "cells.npz", X=rng.normal(size=(N, 3)), batch=labels.astype(">f8"))
    model = refine_file(
        tmp_path / "cells.npz",
        "batch",
        out=tmp_path / "out.npz",
        use_rep="X",
        model=BatchProx(target="moment"),
    )
    assert model.batches_.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0.0}, {"temperature": "x"}, {"copies": [8]}, {"cells": 2.5}, {"copies": 0}],
)
def test_settings_of_a_consensus(rng, tmp_path, wrong):
    """Found by make fuzz: they were used when a batch was added."""
    path = tmp_path / "model.safetensors"
    BatchProx(target="population").fit(
        rng.normal(size=(N, 3)), batch=np.repeat(["a", "b"], N // 2)
    ).save(path)
    edited(path, lambda known, _: known["params"]["consensus"]["settings"].update(wrong))
    with pytest.raises(InputError, match="Expected the setting .* model.safetensors"):
        BatchProx.load(path)


def test_bytes_after_the_content_stay_if_nothing_is_written(h5ad):
    """Found by make fuzz: a run in place that failed had cut them off."""
    with open(h5ad, "ab") as file:
        file.write(b"of another program")
    with h5py.File(h5ad, "r+") as file:
        del file["uns"]
        file["uns"] = 3  # so that the record cannot be written
    with open(h5ad, "ab") as file:
        file.write(b"of another program")
    before = h5ad.read_bytes()
    with pytest.raises(Exception):  # noqa: B017, PT011 - of h5py
        refine_file(h5ad, "batch", model=BatchProx(target="moment"))
    assert h5ad.read_bytes() == before
