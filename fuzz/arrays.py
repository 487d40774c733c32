"""Damage to .npy and .npz files that knows their headers and directories."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from .damage import damaged_bytes, pick

__all__ = ["damage_npy", "damage_npz"]

_SHAPES: tuple[Any, ...] = (
    *((), (0,), (60,), (60, 3), (3, 60), (0, 3), (60, 0), (61, 3), (59, 3), (60, 3, 1), (180,)),
    *((10**12, 3), (60, 10**12), (10**12,), (2**62, 4), (2**64, 3), (-1, 3), (60, -3)),
    *((60.0, 3), ("60", 3), (None, 3), (True, 3), 60, "x", None, [60, 3]),
)
_TYPES = (
    *("<f8", ">f8", "<f4", "<f2", "<f16", "<i8", "|u1", "|b1", "<c16", "|O", "|V24", "|S8"),
    *("<U3", "<U1000000000", "<M8[ns]", "<m8[s]", "|S0", "<U0", "|V0", "", "x", 8, None, "f8,i4"),
    *([("a", "<f8"), ("b", "<i4")], [["a", "<f8"]], ("<f8", (2,)), "<f8;import"),
)


def damage_npy(rng: np.random.Generator, path: Path) -> None:
    """Damage the header, or any bytes."""
    path.write_bytes(_npy(rng, path.read_bytes()))


def _npy(rng: np.random.Generator, data: bytes) -> bytes:
    if rng.random() < 0.5:
        return damaged_bytes(rng, data)
    file = io.BytesIO(data)
    npy.read_magic(file)
    shape, fortran, dtype = npy.read_array_header_1_0(file)
    head = {"descr": npy.dtype_to_descr(dtype), "fortran_order": fortran, "shape": shape}
    for _ in range(int(rng.integers(1, 3))):
        match rng.integers(6):
            case 0 | 1:
                head["shape"] = pick(rng, _SHAPES)
            case 2 | 3:
                head["descr"] = pick(rng, _TYPES)
            case 4:
                head["fortran_order"] = pick(rng, (True, 1, None, "x"))
            case _:
                head.pop(pick(rng, list(head)), None)
    text = repr(head).encode("utf-8") + b"\n"
    version = pick(rng, ((1, 0),) * 6 + ((2, 0), (3, 0), (4, 0), (0, 0)))
    n = pick(rng, (len(text),) * 8 + (0, 65_535, len(text) - 5))
    size = struct.pack("<H" if version[0] < 2 else "<I", max(0, n))
    return b"\x93NUMPY" + bytes(version) + size + text + data[file.tell() :]


def damage_npz(rng: np.random.Generator, path: Path) -> None:
    """Damage a member, the directory of the members, or any bytes."""
    what = rng.random()
    if what < 0.35:
        path.write_bytes(damaged_bytes(rng, path.read_bytes()))
        return
    with zipfile.ZipFile(path) as file:
        members = {info.filename: file.read(info) for info in file.infolist()}
    name = pick(rng, list(members))
    bomb = what > 0.93
    if bomb:  # 64 MB of zeros, in 64 kB
        claimed = pick(rng, ((8_000_000, 1), (10**12, 3), (60, 3), (8_000_000,)))
        members[name] = _header(claimed) + bytes(1 << 26)
    elif what < 0.8:
        members[name] = _npy(rng, members[name])
    elif what < 0.85:
        members[f"{pick(rng, ('x', '', '../x', 'a/b'))}.npy"] = members.pop(name)
    kind = zipfile.ZIP_DEFLATED if bomb else pick(rng, (0, 8, 8, 8, 12, 14))
    with zipfile.ZipFile(path, "w", kind, compresslevel=1) as file:
        for member, data in members.items():
            file.writestr(member, data)
    if 0.85 <= what <= 0.93 or (bomb and rng.random() < 0.5):
        _damage_directory(rng, path)


def _damage_directory(rng: np.random.Generator, path: Path) -> None:
    """Change a field of a member in the directory at the end, perhaps also in front of the member."""
    data = bytearray(path.read_bytes())
    field, size = pick(rng, ((10, 2), (16, 4), (20, 4), (24, 4), (24, 4), (42, 4)))
    value = pick(rng, (0, 1, 8, 99, 1000, 2**16 - 1, 2**31, 2**32 - 2)) % (1 << 8 * size)
    at = data.find(b"PK\x01\x02")
    for _ in range(int(rng.integers(3))):
        at = max(data.find(b"PK\x01\x02", at + 1), at)
    data[at + field : at + field + size] = value.to_bytes(size, "little")
    path.write_bytes(data)


def _header(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue()
