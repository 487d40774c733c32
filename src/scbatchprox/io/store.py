"""Files of adapters and models: safetensors with a small header, never pickle.

Layout, version 2 (``docs/file-format.md``): float64 and int64 tensors, and these string entries in the
header: ``format`` = "scbatchprox", ``format_version``, ``kind``, ``scbatchprox_version``, ``batches``
(a JSON list of str, int, float or bool), ``params`` (a JSON object) and ``sha256``, a checksum of all else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save as to_bytes

from .._version import __version__
from ..core.checks import some_of
from ..core.labels import label_array
from ..errors import BadValue
from .atomic import check_file, replacing

__all__ = ["FORMAT_VERSION", "Stored", "load", "row_map", "save"]

FORMAT_VERSION = 2


@dataclass(frozen=True)
class Stored:
    """The content of a file."""

    tensors: dict[str, np.ndarray]
    batches: np.ndarray
    params: dict[str, Any]
    written_by: str


def save(
    path: str | Path,
    kind: str,
    tensors: Mapping[str, np.ndarray],
    batches: np.ndarray,
    params: Mapping[str, Any],
) -> None:
    """Write a file, completely or not at all."""
    header = {
        "format": "scbatchprox",
        "format_version": str(FORMAT_VERSION),
        "kind": kind,
        "scbatchprox_version": __version__,
        "batches": json.dumps(batches.tolist()),
        "params": json.dumps(dict(params)),
    }
    # safetensors writes memory in its own order: a transposed view would be read back wrong.
    flat = {
        name: np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        for name, value in tensors.items()
    }
    header["sha256"] = _checksum(header, flat)
    with replacing(path) as temporary:
        temporary.write_bytes(to_bytes(flat, header))


def load(path: str | Path, kinds: tuple[str, ...]) -> Stored:
    """Read a file of one of the given kinds."""
    check_file(path, f"a saved {' or '.join(kinds)}")
    try:
        with safe_open(path, framework="np") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # of several types: safetensors knows numbers that numpy does not
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the system
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadValue(
            f"Expected a saved {' or '.join(kinds)}, found {path}, which is damaged or of another "
            f"kind ({reason})."
        ) from error
    if header.get("format") != "scbatchprox":
        raise BadValue(
            f"Expected a file written by scbatchprox, found {path} with header entries "
            f"{some_of(header)}."
        )
    version = header.get("format_version", "")
    if not (version.isascii() and version.isdigit()) or int(version) > FORMAT_VERSION:
        raise BadValue(
            f"Expected file format {FORMAT_VERSION} or older, found {version!r} in {path}, written by "
            f"scbatchprox {header.get('scbatchprox_version')}: upgrade scbatchprox to read it."
        )
    if header.get("kind") not in kinds:
        raise BadValue(
            f"Expected a saved {' or '.join(kinds)}, found a saved {header.get('kind')!r} in {path}."
        )
    # Files that were written before there was a checksum have none.
    if "sha256" in header and header["sha256"] != _checksum(header, tensors):
        raise BadValue(
            f"Expected a saved {header['kind']} as it was written, found {path}, which is damaged or was "
            f"edited (its checksum does not match)."
        )
    try:
        batches, params = json.loads(header["batches"]), json.loads(header["params"])
        if not (isinstance(batches, list) and isinstance(params, dict)):
            raise TypeError(f"{type(batches).__name__} and {type(params).__name__}")
        batches = label_array(batches)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadValue(
            f"Expected batches and params in the header of {path}, found it damaged ({error})."
        ) from None
    return Stored(tensors, batches, params, header.get("scbatchprox_version", "?"))


def _checksum(header: Mapping[str, str], tensors: Mapping[str, np.ndarray]) -> str:
    """Checksum of the content, as ``docs/file-format.md`` defines it, not of the bytes of the file.

    Other writers of safetensors may order entries in another way.
    """
    entries = {name: value for name, value in header.items() if name != "sha256"}
    found = hashlib.sha256(json.dumps(entries, sort_keys=True).encode() + b"\n")
    for name in sorted(tensors):
        value = tensors[name]
        found.update(json.dumps([name, value.dtype.name, value.shape]).encode() + b"\n")
        found.update(np.ascontiguousarray(value).data)
    return found.hexdigest()


def row_map(tensors: Mapping[str, np.ndarray], part: str, n_batches: int) -> np.ndarray:
    """Return the batch of each row of a part (``"moments."``, or ``""`` for the adapter).

    Files of version 1 have it only if there is more than one row per batch.
    """
    for name in ("batch", "anchor_batch"):
        if f"{part}{name}" in tensors:
            return tensors[f"{part}{name}"]
    return np.arange(n_batches)
