"""A site's key for the server, which knows the site by it. It signs no message of a study."""

from __future__ import annotations

import os
from pathlib import Path

from ...errors import BadValue

__all__ = ["make"]


def make(path: Path) -> Path:
    """Write a new P-384 key, which only its owner can read, and its public half beside it."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    public = path.with_name(path.name + ".pub")
    for taken in (path, public):
        if os.path.lexists(taken):
            raise BadValue(
                f"Expected a new file at {taken}, found one; a key is never overwritten."
            )
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(private)
    half = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public.write_bytes(half + b"\n")
    return public
