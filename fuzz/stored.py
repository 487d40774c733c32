"""What a file says, whatever its bytes are: to compare two of them."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import h5py
from safetensors import safe_open

__all__ = ["meaning"]

#: Entries that differ from run to run.
_TIMES = ("when", "sha256")
_CREATED = re.compile(r'"created": "[^"]*"')


def meaning(path: Path) -> dict[str, Any]:
    """The content of a file by names of its parts; nothing if there is no file."""
    if not path.exists():
        return {}
    if path.suffix == ".h5ad":
        return _hdf5(path)
    if path.suffix == ".safetensors":
        return _tensors(path)
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as file:
            return {name: file.read(name) for name in file.namelist()}
    if path.is_dir():
        files = sorted(item for item in path.rglob("*") if item.is_file() and item.name != "lock")
        if (path / "atlas.json").is_file():  # a version that is not in the list does not exist
            listed = (path / "atlas.json").read_text("utf-8")
            files = [item for item in files if item.name == "atlas.json" or item.name in listed]
        return {str(item.relative_to(path)): _part(item) for item in files}
    data = path.read_bytes()
    return {"": gzip.decompress(data) if path.suffix == ".gz" else data}


def _part(path: Path) -> Any:
    """A file of a folder: a version of an atlas, its list of versions, or anything else."""
    if path.suffix == ".safetensors":
        return _tensors(path)
    if path.name == "atlas.json":
        found = json.loads(path.read_bytes())
        versions = [
            {name: entry[name] for name in entry if name not in _TIMES}
            for entry in found["versions"]
        ]
        return _CREATED.sub("", json.dumps(versions, sort_keys=True))
    return path.read_bytes()


def _tensors(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="np") as file:
        found = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
        header = file.metadata().items()
    texts = {
        f"header {name}": _CREATED.sub("", text) for name, text in header if name not in _TIMES
    }
    return found | texts


def _hdf5(path: Path) -> dict[str, str]:
    """All objects of a file; links are not followed."""
    found: dict[str, str] = {}
    seen: set[Any] = set()

    def look(group: h5py.Group, where: str) -> None:
        found[where] = _attributes(group)
        for name in group:
            link = group.get(name, getlink=True)
            if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
                found[f"{where}/{name}"] = f"{type(link).__name__} {link.path}"
                continue
            item = group[name]
            address = h5py.h5o.get_info(item.id).addr
            if address in seen:
                found[f"{where}/{name}"] = "again"
            elif isinstance(item, h5py.Group):
                seen.add(address)
                look(item, f"{where}/{name}")
            else:
                seen.add(address)
                found[f"{where}/{name}"] = _attributes(item) + _values(item)

    with h5py.File(path, "r", locking=False) as file:
        seen.add(h5py.h5o.get_info(file.id).addr)
        look(file, "")
    return found


def _attributes(item: Any) -> str:
    return repr(sorted((name, repr(value)) for name, value in item.attrs.items()))


def _values(data: Any) -> str:
    head = f"{data.dtype} {data.shape}"
    if data.external or data.is_virtual or data.shape is None:
        return head
    values = data[()]
    raw = (
        values.tobytes() if data.dtype.kind not in "OV" else repr(getattr(values, "tolist", str)())
    )
    return head + hashlib.blake2b(raw if isinstance(raw, bytes) else raw.encode()).hexdigest()
