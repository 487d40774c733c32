"""Records of plain values, as Flower sends them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["to_flower", "to_plain"]


def to_flower(records: Mapping[str, Mapping[str, Any]]) -> Any:
    """Return a RecordDict of ConfigRecords."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({name: ConfigRecord(dict(record)) for name, record in records.items()})


def to_plain(content: Any) -> dict[str, dict[str, Any]]:
    """Return the ConfigRecords of a RecordDict; others are left out."""
    return {name: dict(record) for name, record in content.config_records.items()}
