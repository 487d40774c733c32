"""Letters: what a server and a courier send each other, and which files they carry.

Both directions have one form: what the sender has, parts of files, and codes on files that it refused. They
are records of plain values, in the form in which Flower sends them. Whatever arrives is checked here, field
by field: names, first line, size and parts of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from ..messages import MAGIC, MOST_BYTES, NAME

__all__ = [
    "BUDGET",
    "FIRST_LINE",
    "MAX_BYTES",
    "MAX_FILES",
    "MAX_TOTAL",
    "PART",
    "BadLetter",
    "Code",
    "Content",
    "Have",
    "Letter",
    "Part",
    "Want",
    "is_name",
    "wanted",
]

#: What every message of a study begins with, and its size at most. The rest is opaque to a courier.
FIRST_LINE, MAX_BYTES = MAGIC, MOST_BYTES
#: Limits of a folder, so that nobody can fill another's disk.
MAX_FILES, MAX_TOTAL = 20_000, 64 * 2**30
#: Bytes of a part; Flower sends each as one HTTP body, which proxies limit.
PART = 4 * 2**20
#: Bytes of files in one letter.
BUDGET = 32 * 2**20

_PLAN = r"[0-9a-f]{16}"
_NAME = re.compile(
    rf"cards/{NAME}\.card|plans/{_PLAN}\.plan|sums/{_PLAN}/[0-9]{{4}}/{NAME}\.sum|codes/{_PLAN}/{NAME}\.code"
    rf"|results/{_PLAN}/{NAME}\.result"
)
_HASH = re.compile(r"[0-9a-f]{64}")


class Code(StrEnum):
    """What a courier says about a file, or about a request. The sentences never quote anything."""

    sentence: str

    OK = "ok", "Done."
    OUT_OF_STEP = "out-of-step", "Other bytes come first; the next request tells which."
    CONFLICT = "conflict", "A file of this name with other content exists; it was kept."
    BAD_NAME = "bad-name", "Not the name of a message."
    BAD_FILE = "bad-file", "Not a message: its first line or its hash is wrong."
    TOO_LARGE = "too-large", "Larger than a message may be."
    FULL = "full", "The folder holds as much as it may."
    BAD_REQUEST = "bad-request", "Not a request of a courier."
    FOLDER = "folder", "A folder cannot be read or written; the site's log says why."

    def __new__(cls, value: str, sentence: str = "") -> Code:
        """Make a code with its sentence."""
        code = str.__new__(cls, value)
        code._value_, code.sentence = value, sentence
        return code


def is_name(name: object) -> bool:
    """Whether this is the name of a message, relative to its folder."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class Content:
    """Content of a file: its SHA-256 and its size."""

    hash: str
    size: int


#: Files by name, and the number of bytes that have arrived of files by hash.
Files = Mapping[str, Content]


@dataclass(frozen=True)
class Have:
    """What one side has: complete files, and the first bytes of others by their hash."""

    files: Files
    begun: Mapping[str, int]


@dataclass(frozen=True)
class Part:
    """Bytes of a file from an offset on."""

    name: str
    entry: Content
    offset: int
    data: bytes


@dataclass(frozen=True)
class Want:
    """A stretch of a file that the other side lacks."""

    name: str
    entry: Content
    offset: int
    length: int


def wanted(own: Files, other: Have, budget: int) -> Iterator[Want]:
    """Yield what to send to the other side: small files first, at most ``budget`` bytes.

    A file whose name the other side knows is never sent, whatever its content is there.
    """
    for name, entry in sorted(own.items(), key=lambda item: (item[1].size, item[0])):
        if name in other.files:
            continue
        offset = other.begun.get(entry.hash, 0)
        while offset < entry.size:
            length = min(PART, entry.size - offset, budget)
            if length <= 0:
                return
            yield Want(name, entry, offset, length)
            offset += length
            budget -= length


Records = dict[str, dict[str, Any]]
_VERSION = 1


class BadLetter(Exception):
    """Records that are not a letter."""


@dataclass
class Letter:
    """One message: what its sender has, parts of files, and codes by name (or '' for all)."""

    have: Have
    parts: list[Part] = field(default_factory=list)
    codes: dict[str, Code] = field(default_factory=dict)

    def records(self) -> Records:
        """Return this letter as records."""
        files, begun, codes = self.have.files, self.have.begun, self.codes
        result: Records = {
            "letter": {"version": _VERSION, "parts": len(self.parts)},
            "files": {
                "names": list(files),
                "hashes": [entry.hash for entry in files.values()],
                "sizes": [entry.size for entry in files.values()],
            },
            "begun": {"hashes": list(begun), "sizes": list(begun.values())},
            "codes": {"names": list(codes), "codes": [code.value for code in codes.values()]},
        }
        for i, part in enumerate(self.parts):
            result[f"part-{i:04d}"] = {
                "name": part.name,
                "hash": part.entry.hash,
                "size": part.entry.size,
                "offset": part.offset,
                "data": part.data,
            }
        return result

    @classmethod
    def of(cls, records: Mapping[str, Mapping[str, Any]]) -> Letter:
        """Return the letter in these records; raise BadLetter if there is none."""
        try:
            count = records["letter"]["parts"]
            if records["letter"]["version"] != _VERSION or not _whole(count):
                raise BadLetter
            files, begun, codes = records["files"], records["begun"], records["codes"]
            named = zip(files["names"], files["hashes"], files["sizes"], strict=True)
            return cls(
                Have(
                    {_name(name): _entry(digest, size) for name, digest, size in named},
                    {
                        _entry(digest, size).hash: size
                        for digest, size in zip(begun["hashes"], begun["sizes"], strict=True)
                    },
                ),
                [_part(records[f"part-{i:04d}"]) for i in range(min(count, len(records)))],
                {
                    _name(name, empty=True): Code(code)
                    for name, code in zip(codes["names"], codes["codes"], strict=True)
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise BadLetter from None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _name(name: Any, *, empty: bool = False) -> str:
    if not (is_name(name) or (empty and name == "")):
        raise BadLetter
    return str(name)


def _entry(digest: Any, size: Any) -> Content:
    if not isinstance(digest, str) or not _HASH.fullmatch(digest) or not _whole(size):
        raise BadLetter
    return Content(digest, size)


def _part(record: Mapping[str, Any]) -> Part:
    data, offset = record["data"], record["offset"]
    if not isinstance(data, bytes) or not data or not _whole(offset):
        raise BadLetter
    # A bad name is refused with a code of its own, by the folder.
    return Part(str(record["name"]), _entry(record["hash"], record["size"]), offset, data)
