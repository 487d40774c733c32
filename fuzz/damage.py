"""Damage to bytes and to JSON that knows nothing of the format."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np

__all__ = ["damaged_bytes", "damaged_json", "pick"]

#: Numbers at which sizes, counts and offsets go wrong.
NUMBERS = (
    *(0, 1, 2, 127, 128, 255, 256, 32_767, 32_768, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1),
    *(2**32, 2**40, 10**12, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
#: Values that a JSON document may have where another is expected.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 10**6, 10**12, 2**63, 10**30, 1.5, -0.0, 1e308),
    *(float("nan"), float("inf"), "", "x", "\x00", "é", "../x", [], [[]], [0], {}, {"a": 1}),
)


def pick(rng: np.random.Generator, items: Any) -> Any:
    """Return one item; unlike ``rng.choice`` it never turns items into an array."""
    items = list(items)
    return items[int(rng.integers(len(items)))]


def damaged_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """Return the bytes with one to four kinds of damage."""
    found = bytearray(data)
    for _ in range(1 + int(rng.geometric(0.7)) % 4):
        if not found:
            break
        pick(rng, _DAMAGE)(rng, found)
    return bytes(found)


def _flip(rng: np.random.Generator, data: bytearray) -> None:
    for at in rng.integers(len(data), size=int(rng.geometric(0.4))):
        data[at] ^= 1 << int(rng.integers(8))


def _fill(rng: np.random.Generator, data: bytearray) -> None:
    at, n = _range(rng, data, 64)
    data[at : at + n] = bytes([pick(rng, (0, 0xFF, 0x20, 0x7F))]) * n


def _number(rng: np.random.Generator, data: bytearray) -> None:
    size = pick(rng, (1, 2, 4, 8))
    value = pick(rng, NUMBERS) % (1 << 8 * size)
    at = int(rng.integers(len(data)))
    at -= at % size if rng.random() < 0.5 else 0  # numbers of most formats are aligned
    data[at : at + size] = value.to_bytes(size, pick(rng, ("little", "big")))


def _truncate(rng: np.random.Generator, data: bytearray) -> None:
    del data[int(rng.integers(len(data))) :]


def _remove(rng: np.random.Generator, data: bytearray) -> None:
    at, n = _range(rng, data, 256)
    del data[at : at + n]


def _repeat(rng: np.random.Generator, data: bytearray) -> None:
    at, n = _range(rng, data, 256)
    data[at:at] = data[at : at + n] * int(rng.integers(1, 4))


def _swap(rng: np.random.Generator, data: bytearray) -> None:
    a, n = _range(rng, data, 64)
    b = int(rng.integers(max(1, len(data) - n)))
    one, two = data[a : a + n], data[b : b + n]
    if len(one) == len(two):
        data[a : a + n], data[b : b + n] = two, one


def _noise(rng: np.random.Generator, data: bytearray) -> None:
    at, n = _range(rng, data, 32)
    data[at : at + n] = rng.bytes(n)


_DAMAGE = (_flip, _flip, _fill, _number, _number, _truncate, _remove, _repeat, _swap, _noise)


def _range(rng: np.random.Generator, data: bytearray, most: int) -> tuple[int, int]:
    at = int(rng.integers(len(data)))
    return at, min(len(data) - at, int(rng.integers(1, most + 1)))


def damaged_json(rng: np.random.Generator, document: Any) -> Any:
    """Return a document of which one to three values were replaced, removed or added."""
    found = {"": copy.deepcopy(document)}
    for _ in range(1 + int(rng.geometric(0.7)) % 3):
        parents = _containers(found)
        parent = pick(rng, parents)
        keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
        if not keys:
            continue
        key = pick(rng, keys)
        what = rng.random()
        if what < 0.15 and parent is not found:
            del parent[key]
        elif what < 0.25 and isinstance(parent, list):
            parent.insert(0, parent[key])
        elif what < 0.35 and isinstance(parent, dict) and parent is not found:
            parent[f"{key}x"] = parent.pop(key)
        else:
            parent[key] = pick(rng, VALUES)
    return found[""]


def _containers(value: Any) -> list[Any]:
    """All lists and objects of a document, that is all places where a value can change."""
    if isinstance(value, dict):
        return [value, *(c for item in value.values() for c in _containers(item))]
    if isinstance(value, list):
        return [value, *(c for item in value for c in _containers(item))]
    return []


def damaged_json_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    """The same for the bytes of a document; bytes that are no JSON get damage to bytes."""
    try:
        return json.dumps(damaged_json(rng, json.loads(data))).encode()
    except ValueError:
        return damaged_bytes(rng, data)
