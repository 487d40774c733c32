"""The table of a diagnosis, printed so that it fits a screen and verdicts are whole."""

from __future__ import annotations

import html
import shutil
import textwrap
from typing import Any

import pandas as pd

from ..core.narrow import narrow_table
from ..core.shown import count, names
from .kept import MEASURES, Kept, kept_names
from .verdict import COLUMNS, verdicts_of

__all__ = ["Diagnosis", "diagnosis_lines", "verdict_lines"]

#: Batches and different verdicts that are printed, at most; and of batches with one verdict, the names.
ROWS, VERDICTS, NAMED = 40, 12, 12
#: Columns that are not printed: what ``evidence`` is made of, and what few batches have.
DETAILS = ("support", "chance", "gain", "smooth", "removed")
SCALES = ("scale_min", "scale_max")
#: Columns of the screen, at most, that sentences are wrapped at.
WIDEST = 110


class Diagnosis(pd.DataFrame):  # type: ignore[misc]
    """A data frame that prints its verdicts as sentences below the numbers."""

    @property
    def _constructor(self) -> Any:
        return pd.DataFrame  # what is selected from the table is a common data frame

    def __repr__(self) -> str:
        if "verdict" not in self.columns:
            return str(pd.DataFrame(self))
        return "\n".join(diagnosis_lines(self, shutil.get_terminal_size().columns))

    __str__ = __repr__

    def _repr_html_(self) -> str:
        if "verdict" not in self.columns:
            return str(pd.DataFrame(self)._repr_html_())
        numbers, left = _numbers(self)
        table = numbers.to_html(float_format="{:.2f}".format, na_rep="-", border=0)
        notes = "".join(f"<p>{html.escape(text)}</p>" for text in (*left, *_kept(self)))
        verdicts, others = _by_verdict(self)
        items = [
            f"<b>{html.escape(batches)}</b>: {html.escape(verdict)}"
            for verdict, batches in verdicts.items()
        ]
        listed = "".join(f"<li>{item}</li>" for item in (*items, *map(html.escape, others)))
        return f"{table}{notes}<ul>{listed}</ul>"


def diagnosis_lines(table: pd.DataFrame, width: int) -> list[str]:
    """Return a diagnosis as text for a screen: numbers, what happens to columns to keep, verdicts."""
    numbers, left = _numbers(table)
    notes = [*left, *(line for text in _kept(table) for line in _wrapped(text, width))]
    return [*narrow_table(numbers, width), *notes, "", *verdict_lines(table, width)]


def verdict_lines(table: pd.DataFrame, width: int) -> list[str]:
    """Return the verdicts as text for a screen, the worst first, each with the batches that it is on."""
    verdicts, others = _by_verdict(table)
    sentences = (f"{batches}: {verdict}" for verdict, batches in verdicts.items())
    return [*(line for text in sentences for line in _wrapped(text, width)), *others]


def _numbers(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the numbers that differ between batches, and a sentence if some batches are left out."""
    kept = [f"{name} {what}" for name in kept_names(table) for what in MEASURES]
    numbers = pd.DataFrame(table).drop(columns=[*COLUMNS, *kept, *DETAILS], errors="ignore")
    scales = [name for name in SCALES if name in numbers]
    if (numbers[scales] == 1).all(axis=None):  # of no interest, as for the population target
        numbers = numbers.drop(columns=scales)
    more = len(table) - ROWS
    if more <= 0:
        return numbers, []
    ranks = _ranks(table)
    worst = sorted(range(len(table)), key=lambda row: -ranks[row])[:ROWS]
    return numbers.iloc[worst], [
        f"and {count(more, 'more batch', 'more batches')}; those with the worst verdicts are shown"
    ]


def _kept(table: pd.DataFrame) -> list[str]:
    return [Kept.of(table, name).sentence for name in kept_names(table)]


def _by_verdict(table: pd.DataFrame) -> tuple[dict[str, str], list[str]]:
    """Return each verdict and its batches, as a text, and a sentence if some verdicts are left out.

    The worst verdicts are first, and among those the most common ones.
    """
    found: dict[str, list[Any]] = {}
    for batch, verdict in table["verdict"].items():
        found.setdefault(str(verdict), []).append(batch)
    rank = dict(zip(table["verdict"].map(str), _ranks(table), strict=True))
    order = sorted(found, key=lambda verdict: (-rank[verdict], -len(found[verdict])))
    # The best is the last that may be left out: it is one verdict on many batches.
    shown = order if len(order) <= VERDICTS else [*order[: VERDICTS - 1], order[-1]]
    others = [verdict for verdict in order if verdict not in shown]
    batches = sum(len(found[verdict]) for verdict in others)
    more = f"and {count(len(others), 'more verdict')} on {count(batches, 'batch', 'batches')}"
    return {verdict: names(found[verdict], NAMED) for verdict in shown}, [more] * bool(others)


def _ranks(table: pd.DataFrame) -> list[int]:
    """Return a larger number for a worse verdict."""
    return [0 if verdict is None else verdict.level.rank for verdict in verdicts_of(table)]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, min(width, WIDEST), subsequent_indent="    ", break_on_hyphens=False)
