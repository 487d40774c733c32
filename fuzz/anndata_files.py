"""Damage to .h5ad and .zarr files that knows their elements."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .damage import VALUES, damaged_bytes, damaged_json_bytes, pick

__all__ = ["COUNTED", "damage_h5ad", "damage_zarr", "damaged_h5ad", "damaged_zarr"]

#: What the commands of the fuzz targets read.
_READ = (
    *("obs", "obsm", "obs/batch", "obs/batch/codes", "obs/batch/categories", "obs/site", "obs/old"),
    *("obs/whole", "obs/whole/values", "obs/whole/mask", "obs/__categories", "uns", "uns/X_pca"),
    *("obsm/X_pca", "obsm/sparse", "obsm/sparse/data", "obsm/sparse/indices", "obs/number"),
    *("obsm/sparse/indptr", "obsm/frame", "obsm/frame/PC0", "obsm/column", "obsm/column/indices"),
)
#: What those that embed counts read.
COUNTED = (
    *("X", "X/data", "X/indices", "X/indptr", "layers", "layers/column", "layers/column/data"),
    *("layers/column/indices", "layers/column/indptr", "layers/dense", "var", "var/_index", "obs"),
    *("var/highly_variable", "obs/_index", "obsm", "uns"),
)
_ENCODINGS = (
    *("array", "csr_matrix", "csc_matrix", "dataframe", "categorical", "string-array", "string"),
    *("nullable-integer", "nullable-boolean", "rec-array", "null", "dict", "awkward-array"),
    *("anndata", "raw", "numeric-scalar", "unknown", "", 3, b"\xff", ["array"]),
)


def damage_h5ad(rng: np.random.Generator, path: Path) -> None:
    """Change objects of an embedding and its labels by h5py, or any bytes."""
    damaged_h5ad(rng, path, _READ)


def damaged_h5ad(rng: np.random.Generator, path: Path, places: tuple[str, ...]) -> None:
    """Change some of these objects by h5py, or any bytes."""
    if rng.random() < 0.4:
        path.write_bytes(damaged_bytes(rng, path.read_bytes()))
        return
    with h5py.File(path, "r+") as file:
        for _ in range(int(rng.geometric(0.6))):
            name = pick(rng, places)
            try:
                if name in file:
                    pick(rng, _CHANGES)(rng, file, name)
            except (TypeError, ValueError, KeyError, OSError, RuntimeError):
                continue  # a change that HDF5 refuses


def _attribute(rng: np.random.Generator, file: h5py.File, name: str) -> None:
    attributes = file[name].attrs
    key = pick(rng, [*attributes, "encoding-type", "column-order", "categories", "shape"])
    what = rng.random()
    if what < 0.2:
        del attributes[key]
    elif key == "encoding-type" and what < 0.8:
        attributes[key] = pick(rng, _ENCODINGS)
    elif what < 0.9:
        value = pick(
            rng, (*VALUES[:-2], np.arange(5), np.array([10**12, 3]), [b"\xff\xfe"], "batch")
        )
        attributes[key] = h5py.Empty("f8") if value is None else value
    else:
        attributes[key] = pick(rng, (file.ref, h5py.Reference(), h5py.Empty("f8")))


def _delete(rng: np.random.Generator, file: h5py.File, name: str) -> None:
    del file[name]


def _replace(rng: np.random.Generator, file: h5py.File, name: str) -> None:
    """Put something else in the place of an object, with its attributes."""
    attributes = dict(file[name].attrs) if rng.random() < 0.8 else {}
    old = file[name][()] if isinstance(file[name], h5py.Dataset) else np.zeros((60, 3))
    del file[name]
    match int(rng.integers(16)):
        case 0:
            file.create_group(name)
        case 1:
            file[name] = h5py.Empty("f8")
        case 2:
            file[name] = 3.5
        case 3:  # no storage: all values are the fill value
            shape = pick(rng, ((10**12,), (10**12, 3), (60, 10**9), (60,), (60, 3)))
            file.create_dataset(name, shape, pick(rng, ("f4", "f8", "i1", "i4")))
        case 4:
            chunks = pick(rng, ((1000, 3), (10**6, 3)))
            data = file.create_dataset(name, (10**11, 3), "f4", chunks=chunks, compression="gzip")
            data[0:1] = 1.0
        case 5:
            other = np.zeros((60, 3)).tobytes()
            Path(file.filename).with_name("other.bin").write_bytes(other)
            file.create_dataset(name, (60, 3), "f8", external=[("other.bin", 0, len(other))])
        case 6:
            file[name] = h5py.ExternalLink("other.h5", "/x")
        case 7:
            file[name] = h5py.SoftLink(pick(rng, (f"/{name}", "/nowhere", "/obs", "/obsm/X_pca")))
        case 8:
            layout = h5py.VirtualLayout((60, 3), "f8")
            layout[:] = h5py.VirtualSource("other.h5", "x", (60, 3))
            file.create_virtual_dataset(name, layout)
        case 9:
            file[name] = np.array([(1, 2.0)] * 60, [("a", "i4"), ("b", "f8")])
        case 10:
            file[name] = np.array([b"\xff\xfe", b"b"] * 30, pick(rng, ("S2", h5py.string_dtype())))
        case 11:
            values = [file.ref] * 60 if rng.random() < 0.5 else [h5py.Reference()] * 60
            file.create_dataset(name, (60,), h5py.ref_dtype, data=values)
        case 12:
            file.create_dataset(
                name, data=old, dtype=pick(rng, ("f2", "c16", "u8", "i1", "f8", "S3"))
            )
        case 13:
            n = pick(rng, (0, 1, 59, 61, 1000))
            file[name] = np.resize(old, (n, *np.shape(old)[1:]))
        case 14:
            value = pick(rng, (-1, -2, 127, 10**6, -(10**12), np.nan, np.inf, 1e308))
            changed = np.array(old)
            changed.reshape(-1)[int(rng.integers(changed.size))] = value
            file[name] = changed
        case _:
            file[name] = np.array(["a", "", "\x00", "é" * 1000, "e\nf"] * 12, h5py.string_dtype())
    if not isinstance(file.get(name, getlink=True), h5py.ExternalLink):
        file[name].attrs.update(attributes)


def _move(rng: np.random.Generator, file: h5py.File, name: str) -> None:
    other = pick(rng, _READ)
    if other in file:
        kept = file[other]
        del file[name]
        file[name] = kept  # a hard link: perhaps of a group to one inside itself


_CHANGES = (_attribute, _attribute, _delete, _replace, _replace, _replace, _replace, _move)


def damage_zarr(rng: np.random.Generator, path: Path) -> None:
    """Change a document, a chunk, or which files there are, of an embedding and its labels."""
    damaged_zarr(rng, path, _READ)


def damaged_zarr(rng: np.random.Generator, path: Path, places: tuple[str, ...]) -> None:
    """Change a document, a chunk, or which files there are, of some elements."""
    wanted = tuple(os.path.join(path, name) for name in (*places, "zarr.json", ".z"))
    for _ in range(int(rng.geometric(0.6))):
        files = sorted(item for item in path.rglob("*") if item.is_file())
        near = [item for item in files if str(item).startswith(wanted)]
        if not near:
            return
        file: Any = pick(rng, near)
        what = rng.random()
        if what < 0.1:
            file.unlink()
        elif what < 0.15:
            shutil.rmtree(file.parent)
            if file.parent == path:
                return
        elif what < 0.2:
            file.unlink()
            file.mkdir()
        elif file.name.startswith((".z", "zarr.json")) and what < 0.9:
            if rng.random() < 0.5:
                # Or an index of all documents would be read instead.
                (path / ".zmetadata").unlink(missing_ok=True)
            if file.exists():
                file.write_bytes(damaged_json_bytes(rng, file.read_bytes()))
        else:
            file.write_bytes(damaged_bytes(rng, file.read_bytes()))
