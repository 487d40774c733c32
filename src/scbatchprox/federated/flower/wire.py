"""What a server and a courier send each other, as records of plain values.

Both directions have one form: what the sender has, parts of files, and codes on files that it refused.
Whatever arrives is checked here, field by field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .letters import Code, Entry, Have, Part, is_hash, is_name

__all__ = ["BadLetter", "Letter"]

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


def _entry(digest: Any, size: Any) -> Entry:
    if not is_hash(digest) or not _whole(size):
        raise BadLetter
    return Entry(digest, size)


def _part(record: Mapping[str, Any]) -> Part:
    data, offset = record["data"], record["offset"]
    if not isinstance(data, bytes) or not data or not _whole(offset):
        raise BadLetter
    # A bad name is refused with a code of its own, by the folder.
    return Part(str(record["name"]), _entry(record["hash"], record["size"]), offset, data)
