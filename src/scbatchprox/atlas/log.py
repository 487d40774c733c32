"""The log of an atlas, and the changes between two versions, printed so that they fit a screen."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ..api.estimator import BatchProx
from ..core.adapter import Adapter, displacement
from ..core.printed_tables import Tabled, html_table, narrow_table
from ..core.shown import count, names, one_line
from .versions import Counts

__all__ = ["Diff", "Log", "action", "changed_rows"]

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


@dataclass(frozen=True, eq=False, repr=False)
class Diff(Tabled):
    """The changes from version ``a`` to version ``b``.

    ``rows`` has one row per batch in both: cells before and after, the largest absolute change of its
    scales and of its shifts (NaN if its populations were found again), and ``mean_moved``, the root mean
    squared change, over coordinates, of its refined mean.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from scbatchprox import Atlas
    >>> atlas = Atlas.create(tempfile.mkdtemp())
    >>> Z = np.random.default_rng(0).normal(size=(200, 5))
    >>> _ = atlas.add(Z, batch=np.repeat(["a", "b"], 100))
    >>> _ = atlas.forget("b")
    >>> changes = atlas.diff(2, 3)
    >>> changes.added, changes.removed
    ([], [{'batch': 'b', 'n_cells': 100}])
    """

    added: Counts
    removed: Counts
    rows: pd.DataFrame
    params: dict[str, tuple[Any, Any]]

    def _facts(self) -> str:
        told = [f"{_named(self.added)} added", f"{_named(self.removed)} removed"]
        same = int((self.rows[["scale_change", "shift_change"]] == 0).all(axis=1).sum())
        return f"{', '.join(told)}, {len(self.rows):,} in both, of which {same:,} are identical"

    def _table(self) -> pd.DataFrame:
        return self.rows

    def _below(self, width: int) -> list[str]:
        return [f"{name}: {old} changed to {new}" for name, (old, new) in self.params.items()]


def _named(counts: Counts) -> str:
    found = count(len(counts), "batch", "batches")
    return f"{found} ({names([c['batch'] for c in counts])})" if counts else "no batch"


def changed_rows(old: BatchProx | None, new: BatchProx | None) -> pd.DataFrame:
    """Return the changes of the batches that are in both models."""
    names = ["n_cells_before", "n_cells", "scale_change", "shift_change", "mean_moved"]
    empty = pd.DataFrame(columns=names, index=pd.Index([], name="batch"))
    if old is None or new is None:
        return empty
    both = sorted(set(old.batches_.tolist()) & set(new.batches_.tolist()))
    if not both:
        return empty
    table = [_changed(old, new, batch) for batch in both]
    return pd.DataFrame(table, columns=names, index=pd.Index(both, name="batch"))


def _changed(old: BatchProx, new: BatchProx, batch: Any) -> list[Any]:
    """Cells before and after, largest changes of scale and shift, and displacement of the refined mean."""
    models, name = (old, new), [batch]
    adapters = [model.adapter_.select(name) for model in models]
    rows = [
        moments.by_batch if adapter.anchors is None else moments
        for adapter, moments in zip(
            adapters, (model.fit_.moments.select(name) for model in models), strict=True
        )
    ]
    cells = [moments.n_cells for moments in rows]
    change = [np.nan, np.nan]  # rows of other populations cannot be compared
    one, two = adapters
    if _same_rows(one, two):
        change = [
            float(np.abs(two.scale - one.scale).max()), float(np.abs(two.shift - one.shift).max())
        ]  # fmt: skip
        rows[0] = rows[1]  # both versions are compared on the latest cells
    moved = np.subtract(
        *(displacement(m, a.scale, a.shift) for m, a in zip(rows, adapters, strict=True))
    )
    return [*cells, *change, float(np.sqrt((moved**2).mean()))]


def _same_rows(one: Adapter, two: Adapter) -> bool:
    """Whether a batch has the same populations in two versions."""
    if one.anchors is None or two.anchors is None:
        return one.anchors is two.anchors
    return np.array_equal(one.anchors, two.anchors)
