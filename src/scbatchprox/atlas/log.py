"""The log of an atlas: all versions, printed so that they fit a screen."""

from __future__ import annotations

import shutil
from typing import Any

import pandas as pd

from ..core.shown import one_line
from ..core.tables import html_table, narrow_table

__all__ = ["Log", "action"]

#: Characters for names of batches, and digits of a checksum: with these a log fits 80 columns.
WIDEST, DIGITS = 13, 8


class Log(pd.DataFrame):  # type: ignore[misc]
    """A data frame with a row per version; it prints what a person would ask of them."""

    @property
    def _constructor(self) -> Any:
        return pd.DataFrame  # what is selected from the log is a common data frame

    def shown(self) -> pd.DataFrame:
        """Return the columns that are printed."""
        entries = self.to_dict("records")
        return pd.DataFrame(
            {
                "action": [action(entry) for entry in entries],
                "change": [_change(entry["added"], entry["removed"]) for entry in entries],
                "batches": [entry["n_batches"] for entry in entries],
                "cells": [entry["n_cells"] for entry in entries],
                "date": [entry["when"][:10] for entry in entries],
                "sha256": [entry["sha256"] and entry["sha256"][:DIGITS] for entry in entries],
            },
            index=self.index,
        )

    def __repr__(self) -> str:
        return "\n".join(narrow_table(self.shown(), shutil.get_terminal_size().columns))

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return html_table(self.shown(), most=None)


def action(entry: dict[str, Any]) -> str:
    """Return the action of a version."""
    if entry["action"] == "rollback":
        return f"rollback to {entry['to']}"
    forced = ", forced" * entry["forced"]
    return str(entry["action"]) + (f" ({entry['policy']}{forced})" if entry["policy"] else "")


def _change(added: list[dict[str, Any]], removed: list[dict[str, Any]]) -> str | None:
    """Return the batches with a sign, or how many there are."""
    changes = [("+", added), ("-", removed)]
    signed = [f"{sign}{one_line(c['batch'])}" for sign, counts in changes for c in counts]
    text = ", ".join(signed)
    if len(text) <= WIDEST:
        return text or None
    if len(signed) == 1:
        return f"{text[: WIDEST - 1]}…"
    return ", ".join(f"{sign}{len(counts):,} batches" for sign, counts in changes if counts)
