"""The bytes of a journal: old and new content of the pages that a commit changes.

A journal is a first line, the length of the file, the number of pages, the pages, and a SHA-256 over all
of this. A page is its offset, its size, its old bytes and its new bytes.

Journals of version 1, which release 0.1.0 left beside files, have neither the two numbers nor the checksum.
A page of the file that is already new could be compared with its new bytes, but not with the old ones that
would be written: a wrong bit in these goes unnoticed, as do pages that are missing at the end. So they are
not believed.
"""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

__all__ = ["PAGE", "Damaged", "Journal", "NotAJournal", "Page", "Unverified", "pack", "unpack"]

PAGE = 4096
MAGIC = b"scbatchprox journal 2\n"
MAGIC_1 = b"scbatchprox journal 1\n"

_HEAD = struct.Struct("<QQ")
_ENTRY = struct.Struct("<QI")


class NotAJournal(ValueError):
    """Bytes that do not begin as a journal does."""


class Damaged(ValueError):
    """A journal that is not as it was written."""


class Unverified(ValueError):
    """A journal of version 1: whether it is as it was written cannot be known."""


class Page(NamedTuple):
    """A page of a file, before and after a commit."""

    offset: int
    old: bytes
    new: bytes

    def fits(self, found: bytes) -> bool:
        """Whether a page of the file can be what an interrupted commit left, perhaps partly written."""
        return len(found) == len(self.old) and all(
            byte in pair for byte, *pair in zip(found, self.old, self.new, strict=True)
        )


class Journal(NamedTuple):
    """The pages of a commit, and the length of the file."""

    pages: list[Page]
    length: int


def pack(pages: list[Page], length: int) -> bytes:
    """Return the bytes of a journal."""
    entries = (_ENTRY.pack(at, len(old)) + old + new for at, old, new in pages)
    body = MAGIC + _HEAD.pack(length, len(pages)) + b"".join(entries)
    return body + hashlib.sha256(body).digest()


def unpack(raw: bytes) -> Journal:
    """Return the journal; raise unless all of it is as it was written."""
    if raw.startswith(MAGIC_1):
        raise Unverified
    if not raw.startswith(MAGIC):
        # A cut within the first line, or nothing at all, is damage and not another kind of file.
        raise Damaged if MAGIC.startswith(raw) else NotAJournal
    body, digest = raw[:-32], raw[-32:]
    if len(body) < len(MAGIC) + _HEAD.size or hashlib.sha256(body).digest() != digest:
        raise Damaged
    length, n_pages = _HEAD.unpack_from(body, len(MAGIC))
    pages = _pages(body, len(MAGIC) + _HEAD.size)
    if len(pages) != n_pages or any(page.offset + len(page.old) > length for page in pages):
        raise Damaged
    return Journal(pages, length)


def _pages(raw: bytes, at: int) -> list[Page]:
    """Read pages up to the end of the bytes."""
    pages: list[Page] = []
    after = 0
    while at < len(raw):
        if at + _ENTRY.size > len(raw):
            raise Damaged
        offset, size = _ENTRY.unpack_from(raw, at)
        at += _ENTRY.size
        # As written: whole pages in increasing order.
        if not 0 < size <= PAGE or offset % PAGE or offset < after or at + 2 * size > len(raw):
            raise Damaged
        pages.append(Page(offset, raw[at : at + size], raw[at + size : at + 2 * size]))
        at += 2 * size
        after = offset + PAGE
    return pages
