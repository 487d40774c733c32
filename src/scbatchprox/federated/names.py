"""Names of studies and sites, which are also names of files."""

from __future__ import annotations

import json
import re
import reprlib
from typing import Any

from ..errors import BadValue

__all__ = ["as_bytes", "check_name", "grouped", "is_name", "shown"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def is_name(name: object) -> bool:
    """Whether a name is plain, so that it can be the name of a file everywhere."""
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and not name.endswith(".")


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
