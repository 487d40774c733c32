"""Which files a courier carries: their names, their first line, their size, and their parts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["FIRST_LINE", "MAX_BYTES", "Code", "Entry", "Have", "Part", "Want", "is_name", "wanted"]

#: What every message of a study begins with. The rest is opaque to a courier.
FIRST_LINE = b"scbatchprox federated 1\n"
MAX_BYTES = 512 * 2**20
#: Limits of a folder, so that nobody can fill another's disk.
MAX_FILES, MAX_TOTAL = 20_000, 64 * 2**30
#: Bytes of a part; Flower sends each as one HTTP body, which proxies limit.
PART = 4 * 2**20

_SITE = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_-])?"
_PLAN = r"[0-9a-f]{16}"
_NAME = re.compile(
    rf"cards/{_SITE}\.card|plans/{_PLAN}\.plan|sums/{_PLAN}/[0-9]{{4}}/{_SITE}\.sum|codes/{_PLAN}/{_SITE}\.code"
    rf"|results/{_PLAN}/{_SITE}\.result"
)
_HASH = re.compile(r"[0-9a-f]{64}")


class Code(StrEnum):
    """What a courier says about a file, or about a request. The sentences never quote anything."""

    OK = "ok"
    OUT_OF_STEP = "out-of-step"
    CONFLICT = "conflict"
    BAD_NAME = "bad-name"
    BAD_FILE = "bad-file"
    TOO_LARGE = "too-large"
    FULL = "full"
    BAD_REQUEST = "bad-request"
    FOLDER = "folder"

    @property
    def sentence(self) -> str:
        """The fixed sentence of this code."""
        return _SENTENCES[self]


_SENTENCES = {
    Code.OK: "Done.",
    Code.OUT_OF_STEP: "Other bytes come first; the next request tells which.",
    Code.CONFLICT: "A file of this name with other content exists; it was kept.",
    Code.BAD_NAME: "Not the name of a message.",
    Code.BAD_FILE: "Not a message: its first line or its hash is wrong.",
    Code.TOO_LARGE: "Larger than a message may be.",
    Code.FULL: "The folder holds as much as it may.",
    Code.BAD_REQUEST: "Not a request of a courier.",
    Code.FOLDER: "A folder cannot be read or written; the site's log says why.",
}


def is_name(name: object) -> bool:
    """Whether this is the name of a message, relative to its folder."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def is_hash(value: object) -> bool:
    """Whether this is a SHA-256 hash in hexadecimal digits."""
    return isinstance(value, str) and _HASH.fullmatch(value) is not None


@dataclass(frozen=True)
class Entry:
    """Content of a file: its SHA-256 and its size."""

    hash: str
    size: int


#: Files by name, and the number of bytes that have arrived of files by hash.
Files = Mapping[str, Entry]


@dataclass(frozen=True)
class Have:
    """What one side has: complete files, and the first bytes of others by their hash."""

    files: Files
    begun: Mapping[str, int]


@dataclass(frozen=True)
class Part:
    """Bytes of a file from an offset on."""

    name: str
    entry: Entry
    offset: int
    data: bytes


@dataclass(frozen=True)
class Want:
    """A stretch of a file that the other side lacks."""

    name: str
    entry: Entry
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


def conflicts(own: Files, other: Files) -> Iterable[str]:
    """Return names that both sides have, with different content."""
    return sorted(name for name in own.keys() & other.keys() if own[name] != other[name])
