"""A verdict as data: a level and reasons, and the columns of a table that hold them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .levels import Level

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["COLUMNS", "N_BATCHES", "Reason", "Verdict", "verdict_columns", "verdicts_of"]

#: Columns of a diagnosis that are texts: the level, the names of the reasons, and the sentence.
COLUMNS = ("level", "reasons", "verdict")
#: The number of batches is no column of a diagnosis.
N_BATCHES = "n_batches"


@dataclass(frozen=True)
class Reason:
    """A number that is beyond its limit, or NaN where that it is unknown is the reason.

    ``name`` is its column in the table, or ``n_batches``.
    """

    name: str
    value: float
    limit: float


@dataclass(frozen=True)
class Verdict:
    """What to do with a batch, and why."""

    level: Level
    reasons: tuple[Reason, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the numbers that are reasons."""
        return [reason.name for reason in self.reasons]


def verdict_columns(verdicts: Sequence[Verdict]) -> dict[str, list[str]]:
    """Return verdicts as columns of texts, which files can store."""
    return {
        "level": [str(verdict.level) for verdict in verdicts],
        "reasons": [", ".join(verdict.names) for verdict in verdicts],
    }


def verdicts_of(table: pd.DataFrame) -> list[Verdict | None]:
    """Return the verdict on each batch of a table, or ``None`` where it has none.

    A table does not hold limits, which are NaN. One of an earlier version has no reasons either.
    """
    found: list[Verdict | None] = []
    # The longest first: the name of a column to keep may have a comma, and end like that of another.
    names = {*map(str, table.columns), N_BATCHES}.difference(COLUMNS)
    longest = sorted(names, key=len, reverse=True)
    name = re.compile(f"({'|'.join(map(re.escape, longest))})(?:, |$)")
    for row in table.to_dict("records"):
        level = _level(row.get("level"), row.get("verdict"))
        named = name.findall(str(row.get("reasons", "")))
        reasons = tuple(Reason(of, row.get(of, np.nan), np.nan) for of in named)
        found.append(None if level is None else Verdict(level, reasons))
    return found


def _level(stored: Any, sentence: Any) -> Level | None:
    if stored in tuple(Level):
        return Level(stored)
    # A diagnosis that an earlier version wrote has only sentences. No other code reads one.
    return next((level for level in Level if str(sentence).startswith(level)), None)
