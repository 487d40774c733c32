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

__all__ = [
    "COLUMNS", "N_BATCHES", "Reason", "Verdict", "level_of", "verdict_columns", "verdicts_of", "why",
]  # fmt: skip

#: Columns of a diagnosis that are texts: the level, the names of the reasons, and the sentence.
COLUMNS = ("level", "reasons", "verdict")
#: The number of batches is no column of a diagnosis.
N_BATCHES = "n_batches"
#: Levels by their texts, also those that earlier versions wrote.
TEXTS = {str(level): level for level in Level} | {
    "safe": Level.REMOVED,
    "move with care": Level.WEAK,
    "leave alone": Level.ALONE,
}


@dataclass(frozen=True)
class Reason:
    """A number that was compared with a limit.

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


def level_of(text: Any) -> Level | None:
    """Return the level with this text, also one of an earlier version; ``None`` if there is none."""
    return TEXTS.get(text) if isinstance(text, str) else None


def why(sentence: str) -> str:
    """Return the sentence of a table without its level."""
    level, rest = _split(sentence)
    return sentence if level is None else rest


def _level(stored: Any, sentence: Any) -> Level | None:
    # A diagnosis that an earlier version wrote may have only sentences. No other code reads one.
    return level_of(stored) or _split(str(sentence))[0]


def _split(sentence: str) -> tuple[Level | None, str]:
    start, _, rest = sentence.partition(": ")
    return level_of(start), rest
