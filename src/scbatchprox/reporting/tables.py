"""Tables of a report as texts: the diagnosis, compositions, scores."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..diagnosis.kept import kept_names
from ..diagnosis.table import DETAILS
from ..diagnosis.verdict import why
from .facts import Facts, Scores
from .scored import SCORES
from .words import levels_of

__all__ = [
    "Cell", "Grid", "batch_table", "composition", "reasons_of", "score_rows", "shown_columns",
    "worst_first",
]  # fmt: skip

#: Columns of a diagnosis: title, what it means, and how its numbers are written.
COLUMNS: dict[str, tuple[str, str, str]] = {
    "n_cells": ("cells", "number of cells", "{:,.0f}"),
    "moved": ("moved", "how far cells move, as a part of the batch's spread", "{:.2f}"),
    "matched": ("matched", "part of the batch that meets other batches", "{:.0%}"),
    "agreement": (
        "agreement",
        "how far its centres agree on a displacement, over what chance gives",
        "{:.2f}",
    ),
    "evidence": (
        "evidence",
        "how much better its geometry fits the others than turned copies of it",
        "{:.2f}",
    ),
    "support": ("support", "how well its geometry fits the others", "{:.2f}"),
    "chance": ("chance", "how well turned copies of it fit the others", "{:.2f}"),
    "gain": ("gain", "how many times better it meets the others than without its shift", "{:.2f}"),
    "smooth": (
        "smooth",
        "how far neighbouring centres agree on more than a shift, over what chance gives",
        "{:.2f}",
    ),
    "composition": (
        "composition",
        "how much its composition differs from the others': 0 equal, 1 nothing in common",
        "{:.2f}",
    ),
    "removed": (
        "removed",
        "size of the effect that was removed, in units of the embedding",
        "{:.2f}",
    ),
    "neighbours_kept": ("neighbours kept", "part of a cell's neighbours that it keeps", "{:.0%}"),
    "scale_min": ("smallest scale", "smallest factor by which a coordinate is scaled", "{:.2f}"),
    "scale_max": ("largest scale", "largest factor by which a coordinate is scaled", "{:.2f}"),
}
#: What is measured of columns to keep, and what it means.
KEPT = {
    "confounded": "how much of it the batch tells: 1 if each batch has one value",
    "removed": "part of the variance between its values that refinement removes",
}
#: A smaller change of a score is neither better nor worse.
NOTICED = 0.005
#: Rows and columns of a composition at most: the largest.
MAX_ROWS, MAX_COLUMNS = 60, 30


@dataclass(frozen=True)
class Grid:
    """A table to show: titles of columns with their meanings, rows of texts, and how serious each is."""

    titles: list[tuple[str, str]]
    rows: list[list[str]]
    tones: list[str]


@dataclass(frozen=True)
class Cell:
    """A cell of a composition: how dark it is (0 to 1), its share of the row, and the count."""

    shade: float
    text: str
    count: str


def batch_table(facts: Facts) -> Grid:
    """Return the diagnosis, batches that need attention first."""
    table = worst_first(facts.table)
    shown = shown_columns(table)
    titles = [
        ("batch", "name of the batch"),
        ("verdict", "what was found out about it"),
        ("why", "the reason"),
    ]
    titles += [(title, meaning) for title, meaning, _ in shown.values()]
    rows = [
        [str(batch), str(level), reason]
        + [_number(row[name], how) for name, (_, _, how) in shown.items()]
        for batch, level, reason, (_, row) in zip(
            table.index, levels_of(table), reasons_of(table), table.iterrows(), strict=True
        )
    ]
    return Grid(titles, rows, [level.tone for level in levels_of(table)])


def composition(counts: pd.DataFrame) -> tuple[list[str], list[tuple[str, str, list[Cell]]], str]:
    """Return titles of columns, rows (batch, cells, shares), and a note on what was left out."""
    notes = []
    columns = counts.sum().sort_values(ascending=False, kind="stable").index
    if len(columns) > MAX_COLUMNS:
        others = counts[columns[MAX_COLUMNS - 1 :]].sum(axis=1)
        notes.append(f"{len(columns) - MAX_COLUMNS + 1} small columns are shown as one")
        counts = counts[columns[: MAX_COLUMNS - 1]].assign(**{"all others": others})
    if len(counts) > MAX_ROWS:
        notes.append(f"the {MAX_ROWS} largest of {len(counts)} batches are shown")
        largest = counts.sum(axis=1).to_numpy().argsort(kind="stable")[::-1][:MAX_ROWS]
        counts = counts.iloc[sorted(largest)]
    rows = []
    for batch, row in zip(counts.index, counts.to_numpy(), strict=True):
        total = float(row.sum())
        known = total > 0
        cells = [
            Cell(math.sqrt(n / total), _percent(n / total), f"{n:,.0f}")
            if known
            else Cell(0.0, "–", "–")
            for n in row.tolist()
        ]
        rows.append((str(batch), f"{total:,.0f}" if known else "unmatched", cells))
    return [str(name) for name in counts.columns], rows, "; ".join(notes)


def score_rows(scores: Scores) -> list[tuple[str, str, str, str, str, str]]:
    """Return rows of scores: name, meaning, before, after, change, and ``better`` or ``worse``."""
    rows = []
    for name, (title, meaning, higher) in SCORES.items():
        before, after = scores.table.loc[name, ["unrefined", "refined"]]
        change = after - before
        sign = ""
        if abs(change) >= NOTICED:
            sign = "better" if (change > 0) == higher else "worse"
        texts = (_number(before, "{:.3f}"), _number(after, "{:.3f}"), _number(change, "{:+.3f}"))
        rows.append((title, meaning, *texts, sign))
    return rows


def worst_first(table: pd.DataFrame) -> pd.DataFrame:
    """Sort batches by how bad the verdict is, then by how far they move."""
    worst = [-level.rank for level in levels_of(table)]
    return table.assign(_worst=worst).sort_values(
        ["_worst", "moved"], ascending=[True, False], kind="stable"
    ).drop(columns="_worst")  # fmt: skip


def shown_columns(table: pd.DataFrame) -> dict[str, tuple[str, str, str]]:
    """Return the columns that a table has: those of every diagnosis but details, and those on kept labels."""
    kept = {
        f"{name} {what}": (f"{name} {what}", meaning, "{:.0%}")
        for name in kept_names(table)
        for what, meaning in KEPT.items()
    }
    shown = {name: what for name, what in COLUMNS.items() if name in table and name not in DETAILS}
    return shown | kept


def reasons_of(table: pd.DataFrame) -> list[str]:
    """Return the reasons of each verdict in words."""
    return [why(text) for text in table["verdict"]]


def _number(x: Any, how: str) -> str:
    return "–" if math.isnan(x) else how.format(x)


def _percent(share: float) -> str:
    if share == 0:
        return "0"
    return "<1%" if share < 0.01 else f"{share:.0%}"
