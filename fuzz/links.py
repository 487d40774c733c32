"""Files that point elsewhere: links and foreign storage in HDF5, symbolic links and paths as names in zarr.

Beside the file lies a sentinel that the user has not named. Its bytes must not change, its texts must not be
printed or stored, and no result may depend on what it holds.
"""

from __future__ import annotations

import copy
import json
import shutil
from functools import wraps
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from scbatchprox import BatchProx
from scbatchprox.api.files import refine_file

from .damage import pick
from .doors import check_result
from .stored import meaning
from .target import Door, Wrong, run

__all__ = [
    "LINK_CHANGING", "LINK_DOORS", "SYMLINK_CHANGING", "SYMLINK_DOORS", "damage_links", "damage_names",
    "damage_symlinks", "embed_apply", "embed_apply_in_place", "embed_fit",
]  # fmt: skip

#: Where a file of counts can hold a link; what is nested comes after what holds it.
_PLACES = (
    *("uns", "obsm", "obs", "var", "X", "layers", "layers/column", "layers/dense"),
    *("obsm/X_pca", "obsm/frame", "obsm/frame/a", "obsm/X_pca_batchprox", "obsm/done", "uns/done"),
    *("uns/X_pca_batchprox", "uns/X_pca", "uns/deep", "uns/deep/er", "uns/deep/er/text"),
    *("obs/batch", "obs/batch/codes", "obs/batch/categories", "obs/site", "obs/type", "obs/_index"),
    *("obs/old", "obs/__categories", "obs/__categories/old", "var/_index", "var/highly_variable"),
    *("X/data", "X/indices", "X/indptr", "layers/column/data", "raw", "obsp"),
)
#: Where a link does most harm.
_FIRST = (
    "uns",
    "uns",
    "obsm",
    "X",
    "var",
    "layers/dense",
    "obs/__categories",
    "uns/X_pca_batchprox",
)
_GROUPS = ("/", "/uns", "/obs", "/obsm", "/var", "/uns/deep", "/obs/batch")


def damage_links(rng: np.random.Generator, path: Path) -> None:
    """Put links, or arrays whose values are elsewhere, in the place of one to three objects."""
    with h5py.File(path, "r+") as file:
        for _ in range(1 + int(rng.geometric(0.7)) % 3):
            name = pick(rng, _FIRST if rng.random() < 0.5 else _PLACES)
            try:
                if rng.random() < 0.15:
                    _path_in_attribute(rng, file)
                else:
                    _link(rng, file, name)
            except (TypeError, ValueError, KeyError, OSError, RuntimeError):
                continue  # a change that HDF5 refuses


def _link(rng: np.random.Generator, file: h5py.File, name: str) -> None:
    here = Path(file.filename)
    other = pick(rng, ("sentinel.h5ad", "./sentinel.h5ad", str(here.with_name("sentinel.h5ad"))))
    there = pick(rng, (f"/{name}",) * 4 + _GROUPS)
    old = file.get(name)
    shape, dtype = getattr(old, "shape", (60, 3)), getattr(old, "dtype", np.dtype("f8"))
    attributes = dict(old.attrs) if old is not None else {}
    if name in file:
        del file[name]
    match int(rng.integers(12)):
        case 0 | 1 | 2 | 3:
            file[name] = h5py.ExternalLink(other, there)
        case 4:  # a link to a link
            file.require_group("far")
            file["far/away"] = h5py.ExternalLink(other, "/")
            file[name] = h5py.SoftLink(f"/far/away{there}".rstrip("/"))
        case 5:  # the same file, by another name or through itself
            file[name] = h5py.ExternalLink(here.name, there)
        case 6:
            file[name] = h5py.SoftLink(pick(rng, (*_GROUPS, f"/{name}", "/nowhere", ".", "obs")))
        case 7:
            file["there"] = h5py.SoftLink(f"/{name}")
            file[name] = h5py.SoftLink("/there")
        case 8:
            file[name] = file[pick(rng, _GROUPS)]  # a hard link, perhaps in a circle
        case 9 | 10:
            layout = h5py.VirtualLayout(shape, dtype)
            layout[...] = h5py.VirtualSource(other, there, shape, dtype)
            file.create_virtual_dataset(name, layout).attrs.update(attributes)
        case _:
            size = int(np.prod(shape)) * dtype.itemsize
            data = file.create_dataset(name, shape, dtype, external=[(other, 2048, size)])
            data.attrs.update(attributes)


def _path_in_attribute(rng: np.random.Generator, file: h5py.File) -> None:
    """Name a column or categories by a path that leads through an external link."""
    if "far" not in file:
        file["far"] = h5py.ExternalLink("sentinel.h5ad", "/")
    table = file[pick(rng, ("obs", "var"))]
    kind = pick(rng, ("_index", "column-order", "categories"))
    there = pick(rng, ("/far/obs/site", "/far/obs/_index", "/far/obs/batch/categories", "/far/obs"))
    if kind == "_index":
        table.attrs["_index"] = there
    elif kind == "column-order":
        table.attrs["column-order"] = [*table.attrs["column-order"], there]
    else:
        file["obs/old"].attrs["categories"] = there


def damage_names(rng: np.random.Generator, path: Path) -> None:
    """Let attributes of a zarr store name an array by a path that leads out of it."""
    up = "../" * int(rng.integers(1, 5))
    other = "sentinel2.zarr" if path.name.endswith("2.zarr") else "sentinel3.zarr"
    column = pick(rng, ("obs/site", "obs/_index", "obs/type", "var/_index", "obs/batch/categories"))
    there = pick(rng, (f"{up}{other}/{column}", f"../{up}{other}/{column}",
                       str(path.with_name(other) / column), f"/{up}{other}/{column}"))  # fmt: skip
    table = pick(rng, ("obs", "obs", "var"))
    match int(rng.integers(4)):
        case 0:
            _attributes(path / table, {"_index": there})
        case 1:
            _attributes(path / table, {"column-order": [there, "batch"]})
        case 2:
            _attributes(path / "obs" / "site", {"categories": there})
        case _:
            _attributes(path / "obs" / "batch", {"categories": there})


def _attributes(where: Path, more: dict[str, Any]) -> None:
    """Set attributes of a group or array of a zarr store, of version 2 or 3."""
    if (where / "zarr.json").exists():
        document = json.loads((where / "zarr.json").read_text())
        document["attributes"] |= more
        (where / "zarr.json").write_text(json.dumps(document))
    else:
        document = json.loads((where / ".zattrs").read_text())
        (where / ".zattrs").write_text(json.dumps(document | more))


def damage_symlinks(rng: np.random.Generator, path: Path) -> None:
    """Put symbolic links in the place of folders and files of a zarr store.

    Reading through them is allowed, writing is not.
    """
    other = path.with_name(path.name.replace("counts", "sentinel-plain"))
    for _ in range(1 + int(rng.geometric(0.7)) % 3):
        if rng.random() < 0.6:
            place = path / pick(rng, ("uns", "uns", "obsm", "obs", "var", "X", "layers", "obs/batch",
                                      "obsm/X_pca", "obs/site", "uns/deep"))  # fmt: skip
        else:
            place = pick(rng, sorted(item for item in path.rglob("*") if item.is_file()))
        same = other / place.relative_to(path)
        there = pick(
            rng, (same, same, same, other, path, place, place.parent, path.with_name("no"), "/")
        )
        if place.parent.is_symlink() or not place.parent.is_dir():
            continue
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.symlink_to(there)


def _key(rng: np.random.Generator) -> str:
    return str(pick(rng, ("batch", "batch", "batch", "site", "old")))


def _out(path: Path) -> Path:
    return path.with_name(f"out{path.suffix}")


def refine_out(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox refine --out``."""
    more = pick(
        rng, ([], [], ["--key-added", "done"], ["--keep", "kept"], ["--target", "population"])
    )
    more = ["--batch-key", _key(rng), "--out", _out(path), "--target", "moment", *more]
    run("refine", "refine", path, *more)


def apply_out(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox apply --out``."""
    model = valid / "model.safetensors"
    more = ["--batch-key", "batch", "--model", model, "--use-rep", "X_pca"]
    run("apply", "apply", path, *more, "--key-added", "done", "--out", _out(path))


def embed_fit(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox embed fit``."""
    genes = ["--genes", pick(rng, ("all", "all", "flagged", "scanpy"))]
    where = ["--out", path.with_name("out.safetensors"), *_layer(rng)]
    run("fit", "embed", "fit", path, *genes, "--coordinates", 2, *where)


def embed_apply(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox embed apply --out``."""
    more = ["--upstream", valid / "pca.safetensors", "--key-added", "done", *_layer(rng)]
    run("embed", "embed", "apply", path, *more, "--out", _out(path))


def embed_apply_in_place(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox embed apply --in-place``."""
    more = ["--upstream", valid / "pca.safetensors", "--key-added", "done", *_layer(rng)]
    run("embed", "embed", "apply", path, *more, "--in-place")


def _layer(rng: np.random.Generator) -> list[str]:
    return list(pick(rng, ([], [], ["--layer", "column"], ["--layer", "dense"])))


def refine_within(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """Refine in place; all that was there stays, and the result can be read."""
    before = _without_result(path)
    key = pick(rng, (None, "done"))
    refine_file(path, _key(rng), model=BatchProx("moment"), key_added=key, diagnose=False)
    after = _without_result(path)
    lost = [name for name in before if after.get(name) != before[name]]
    if lost:
        raise Wrong(f"changed {lost[:5]}")
    check_result(path, key or "X_pca_batchprox")


def _without_result(path: Path) -> dict[str, Any]:
    ours = tuple(f"{slash}{name}/{key}" for slash in ("/", "") for name in ("obsm", "uns")
                 for key in ("done", "X_pca_batchprox"))  # fmt: skip
    return {name: part for name, part in meaning(path).items() if not name.startswith(ours)}


def scores(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox evaluate``."""
    more = ["--label-key", "type", "--reps", "X_pca", "--profile", "fast", "--runs", "1"]
    run("evaluate", "evaluate", path, "--batch-key", _key(rng), *more)


def diagnose(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox diagnose``."""
    run(
        "diagnose",
        "diagnose",
        path,
        "--batch-key",
        _key(rng),
        "--keep",
        "kept",
        "--target",
        "moment",
    )


def report(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox report``."""
    more = ["--view", "pca", "--label-key", "type", "--out", path.with_name("out.html")]
    run("report", "report", path, "--batch-key", _key(rng), *more)


def mark_cells(rng: np.random.Generator, path: Path, valid: Path) -> None:
    """``scbatchprox atlas add --mark``, or ``--scores``."""
    more = [["--mark"], ["--scores", path.with_name("out.csv")]]
    where = [valid / "atlas", path, "--batch-key", "site", "--use-rep", "X_pca", "--dry-run"]
    run("add", "atlas", "add", *where, *pick(rng, more))


def apart(door: Door) -> Door:
    """The same door, which must do the same if the sentinel is another."""

    @wraps(door)
    def twice(rng: np.random.Generator, path: Path, valid: Path) -> None:
        folder, first = path.parent, copy.deepcopy(rng)
        kept = folder.with_name("kept")
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept, symlinks=True)
        door(rng, path, valid)
        found = _results(folder)
        foreign = [item for item in kept.iterdir() if item.name.startswith("sentinel")]
        # The same folder, since links may have its full name.
        changed = folder.with_name("changed")
        shutil.rmtree(changed, ignore_errors=True)
        folder.rename(changed)
        shutil.copytree(kept, folder, symlinks=True)
        for item in foreign:
            _copy(valid / item.name.replace("sentinel", "other"), folder / item.name)
        try:
            door(first, path, valid)
            other = _results(folder)
        except Exception as error:
            other = {"": {"error": repr(error)}}
        finally:
            shutil.rmtree(folder)
            changed.rename(folder)
        different = [name for name in found if found[name] != other.get(name)]
        if different or set(other) - set(found):
            raise Wrong(f"a result that depends on another file: {different[:3]} {other.get('')}")

    return twice


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.rmtree(target)
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def _results(folder: Path) -> dict[str, Any]:
    """What was written, or may have been; a page has its date in it."""
    names = sorted(item for item in folder.iterdir() if not item.name.startswith("sentinel"))
    return {item.name: meaning(item) for item in names if item.suffix != ".html"}


_WRITING = (refine_out, refine_out, apply_out, embed_fit, embed_apply)
_READING = (scores, diagnose, report)
SYMLINK_DOORS = (*_WRITING, *_WRITING, *_READING)  # which take longer
SYMLINK_CHANGING = (refine_within, refine_within, embed_apply_in_place)
LINK_DOORS = (*map(apart, (*_WRITING, *_WRITING)), *_READING)
LINK_CHANGING = tuple(map(apart, (*SYMLINK_CHANGING, mark_cells)))
