"""Damage to saved models and atlases; often with a checksum that is right, as of another writer."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save

from .damage import NUMBERS, damaged_bytes, damaged_json, pick

__all__ = ["damage_atlas", "damage_model"]


def damage_model(rng: np.random.Generator, path: Path) -> None:
    """Damage the entries of the header, the tensors, the header of safetensors, or any bytes."""
    what = rng.random()
    data = path.read_bytes()
    if what < 0.3:
        path.write_bytes(damaged_bytes(rng, data))
        return
    if what < 0.4:
        n = int.from_bytes(data[:8], "little")
        head = json.dumps(damaged_json(rng, json.loads(data[8 : 8 + n]))).encode()
        size = pick(rng, (len(head),) * 8 + NUMBERS)
        path.write_bytes((size % 2**64).to_bytes(8, "little") + head + data[8 + n :])
        return
    with safe_open(path, framework="np") as file:
        header = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if what < 0.75:
        name = pick(rng, ("params", "params", "params", "batches"))
        header[name] = json.dumps(damaged_json(rng, json.loads(header[name])))
    elif what < 0.8:
        header[pick(rng, list(header))] = pick(rng, ("", "x", "null", "[]", "1e9", "-1", "²", "{"))
    else:
        name = pick(rng, list(tensors))
        tensors[name] = _tensor(rng, tensors[name])
        if rng.random() < 0.2:
            del tensors[name]
    header["sha256"] = _checksum(header, tensors)
    if rng.random() < 0.1:
        del header["sha256"]
    path.write_bytes(save(tensors, header))


def _tensor(rng: np.random.Generator, value: np.ndarray) -> np.ndarray:
    match int(rng.integers(6)):
        case 0:
            return np.ascontiguousarray(value[:-1])
        case 1:
            return np.ascontiguousarray(value[..., None])
        case 2:
            return value.astype(pick(rng, ("f4", "i4", "u1", "b1", "f2", "i8", "f8")))
        case 3:
            return np.zeros(pick(rng, ((0,), (), (1, 1), (5, 7))))
        case 4:
            return np.ascontiguousarray(value[::-1])
    changed = value.copy()
    if changed.size:
        number = pick(rng, (-1, 0, 10**6, 2**62, -(2**63), np.nan, np.inf, -1e300, 1e300))
        with np.errstate(invalid="ignore"):
            changed.reshape(-1)[int(rng.integers(changed.size))] = np.array(number).astype(
                value.dtype
            )
    return changed


def _checksum(header: dict[str, str], tensors: dict[str, np.ndarray]) -> str:
    """As ``docs/file-format.md`` defines it."""
    entries = {name: value for name, value in header.items() if name != "sha256"}
    found = hashlib.sha256(json.dumps(entries, sort_keys=True).encode() + b"\n")
    for name in sorted(tensors):
        value = tensors[name]
        found.update(json.dumps([name, value.dtype.name, value.shape]).encode() + b"\n")
        found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()


def damage_atlas(rng: np.random.Generator, path: Path) -> None:
    """Damage the list of versions, or the file of a version."""
    where = path / "atlas.json"
    what = rng.random()
    if what < 0.25:
        where.write_bytes(damaged_bytes(rng, where.read_bytes()))
        return
    stored = json.loads(where.read_text("utf-8"))
    del stored["sha256"]
    if what < 0.7:
        stored = damaged_json(rng, stored)
    else:
        version = pick(rng, sorted((path / "versions").iterdir()))
        damage_model(rng, version)
        if rng.random() < 0.1:
            version.unlink()
        elif rng.random() < 0.8:
            for entry in stored["versions"]:
                if entry["file"] == version.name:
                    entry["sha256"] = hashlib.sha256(version.read_bytes()).hexdigest()
    if isinstance(stored, dict) and rng.random() < 0.95:
        text = json.dumps(stored, sort_keys=True)
        stored["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    where.write_text(json.dumps(stored, indent=1), "utf-8")
