"""Damage to tables as text, also gzipped, and to lists of labels."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

from .damage import damaged_bytes, pick

__all__ = ["damage_text"]

_FIELDS = (
    *(
        b"",
        b'"',
        b'""',
        b'"a',
        b"nan",
        b"inf",
        b"-inf",
        b"1e999",
        b"1e-999",
        b"0x10",
        b"1_0",
        b"\x00",
    ),
    *(
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\r",
        b"\n",
        b"\r\n",
        b"\t",
        b",",
        b",,",
        b"NA",
        b" ",
        b"\xc2\xa0",
    ),
    *("١".encode(), b"9" * 400, b"a" * 200_000, b"1" * 200_000, b"True", b"'", b"\\", b"\x1a"),
)


def damage_text(rng: np.random.Generator, path: Path) -> None:
    """Change fields, lines or any bytes; in a gzipped file before or after packing."""
    data = path.read_bytes()
    packed = path.name.endswith(".gz")
    if packed and rng.random() < 0.4:
        path.write_bytes(damaged_bytes(rng, data))
        return
    if packed and rng.random() < 0.02:  # 300 MB in one line, or in many
        with gzip.open(path, "wb", 1) as file:
            file.write(data[:0])
            piece = pick(rng, (b"0" * (1 << 20), b"0,0,0,0\n" * (1 << 17)))
            for _ in range(300):
                file.write(piece)
        return
    text = gzip.decompress(data) if packed else data
    if rng.random() < 0.3:
        text = damaged_bytes(rng, text)
    else:
        lines = text.split(b"\n")
        for _ in range(int(rng.geometric(0.5))):
            _damage_line(rng, lines)
        text = b"\n".join(lines)
    path.write_bytes(gzip.compress(text, 1, mtime=0) if packed else text)


def _damage_line(rng: np.random.Generator, lines: list[bytes]) -> None:
    at = int(rng.integers(len(lines))) if rng.random() < 0.7 else 0
    separator = b"\t" if b"\t" in lines[at] else b","
    fields = lines[at].split(separator)
    j = int(rng.integers(len(fields)))
    match int(rng.integers(6)):
        case 0:
            del fields[j]
        case 1:
            fields.insert(j, fields[j])
        case 2:
            lines.insert(at, lines[at])
        case _:
            fields[j] = pick(rng, _FIELDS) + (fields[j] if rng.random() < 0.3 else b"")
    lines[at] = separator.join(fields)
