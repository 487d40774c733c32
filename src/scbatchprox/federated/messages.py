"""Messages between sites: signed files, with plain names.

A file has a first line that names the format, a line of JSON, a body, and an Ed25519 signature (64 bytes)
over all that precedes it. Nothing in it is code, and every length is checked before the content is used.
Names of studies and sites are also names of files.
"""

from __future__ import annotations

import json
import os
import re
import reprlib
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadValue

__all__ = [
    "MAGIC",
    "MOST_BYTES",
    "MOST_HEADER",
    "NAME",
    "Message",
    "as_bytes",
    "check_name",
    "file_bytes",
    "grouped",
    "is_name",
    "shown",
]

#: A plain name of a study or a site, which can be the name of a file everywhere.
NAME = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,62}[A-Za-z0-9_-])?"


def is_name(name: object) -> bool:
    """Whether a name is plain: see :data:`NAME`."""
    return isinstance(name, str) and re.fullmatch(NAME, name) is not None


def check_name(what: str, name: object) -> str:
    """Return a name if it is plain."""
    if not isinstance(name, str) or not is_name(name):
        raise BadValue(
            f"Expected the name of a {what} of up to 64 letters, digits, '-', '_' and '.', found "
            f"{shown(name)}."
        )
    return name


def shown(value: object) -> str:
    """The start of what another site has sent, for a sentence: it may be a megabyte of anything."""
    return reprlib.repr(value)


def as_bytes(value: Any) -> bytes:
    """JSON in a form that all sites write alike, so that its hash is the same everywhere."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def grouped(digest: str) -> str:
    """The first 32 hexadecimal digits of a hash in groups of four, to be read aloud."""
    return "-".join(digest[at : at + 4] for at in range(0, 32, 4))


MAGIC = b"scbatchprox federated 1\n"
SIGNATURE = 64
#: Largest accepted header and file.
MOST_HEADER, MOST_BYTES = 1 << 20, 1 << 29


@dataclass(frozen=True)
class Message:
    """A message and its signature, which :meth:`check` verifies."""

    header: dict[str, Any]
    body: bytes
    signature: bytes

    @classmethod
    def signed(cls, key: Any, header: dict[str, Any], body: bytes = b"") -> Message:
        """A message signed with an Ed25519 private key."""
        return cls(header, body, key.sign(_content(header, body)))

    @classmethod
    def read(cls, path: Path, most_body: int = MOST_BYTES) -> Message:
        """Read a message; its signature is not yet verified."""
        return cls.parsed(file_bytes(path, len(MAGIC) + MOST_HEADER + most_body + SIGNATURE), path)

    @classmethod
    def parsed(cls, raw: bytes, path: Path) -> Message:
        """The message in the bytes of a file."""
        if not raw.startswith(MAGIC):
            raise _damaged(path, "its first line is another")
        end = raw.find(b"\n", len(MAGIC), len(MAGIC) + MOST_HEADER)
        if end < 0 or len(raw) < end + 1 + SIGNATURE:
            raise _damaged(path, "it is cut off")
        line = raw[len(MAGIC) : end]
        try:
            header = json.loads(line)
            again = as_bytes(header)  # NaN, or lists in lists in lists, may be read but not written
        except (ValueError, RecursionError):
            raise _damaged(path, "its header is no JSON") from None
        # One way to write a header: bytes that differ never mean the same message.
        if not isinstance(header, dict) or again != line:
            raise _damaged(path, "its header is written in another way")
        return cls(header, raw[end + 1 : -SIGNATURE], raw[-SIGNATURE:])

    @property
    def raw(self) -> bytes:
        """The bytes of the file."""
        return _content(self.header, self.body) + self.signature

    def check(self, public_key: bytes, path: Path, **expected: Any) -> Message:
        """Verify the signature of a site, and some entries of the header; return the message."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            key = Ed25519PublicKey.from_public_bytes(public_key)
            key.verify(self.signature, _content(self.header, self.body))
        except (InvalidSignature, ValueError):
            raise BadValue(
                f"Expected {path.name} signed by its site, found another signature: it was changed, or "
                f"made with other keys."
            ) from None
        for name, value in expected.items():
            # Compared as JSON, where 1 and True differ.
            if as_bytes(self.header.get(name)) != as_bytes(value):
                raise BadValue(
                    f"Expected {name} {value!r} in {path.name}, found {shown(self.header.get(name))}."
                )
        return self


def file_bytes(path: Path, most: int) -> bytes:
    """The content of a file that others may have put there: never a pipe or device, nor a larger file."""
    try:
        # Opening a pipe would wait for its writer.
        handle = os.open(
            path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        )
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise _damaged(path, "it is no regular file")
            # Not by its size alone, which may change.
            raw = b"" if found.st_size > most else file.read(most + 1)
            if found.st_size > most or len(raw) > most:
                raise _damaged(path, "it is too large")
            return raw
    except OSError as error:
        raise BadValue(
            f"Expected a message to read at {path}, found none ({error.strerror})."
        ) from None


def _content(header: dict[str, Any], body: bytes) -> bytes:
    return MAGIC + as_bytes(header) + b"\n" + body


def _damaged(path: Path, reason: str) -> BadValue:
    return BadValue(f"Expected a message of a study, found {path}, which is damaged ({reason}).")
