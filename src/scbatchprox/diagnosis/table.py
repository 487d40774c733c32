"""The table of a diagnosis: what a refinement does to each batch, and a verdict in words.

It is made by ``diagnosis``, printed so that it fits a screen and verdicts are whole, and ``look`` is the
check that ``refine`` makes after a fit: a diagnosis, a look at a sample, or nothing.
"""

from __future__ import annotations

import html
import math
import shutil
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..cells.memory import MemoryCells
from ..core.adapter import Adapter
from ..core.checks import warn_user
from ..core.fit import Fit
from ..core.labels import Labels
from ..core.moments import Moments
from ..core.printed_tables import html_table, narrow_table
from ..core.shown import count, names
from ..core.target import Cells, Decision, Evidence, TargetRule, Weights
from ..errors import Part
from ..kernels.arrays import Floats, Ints
from ..kernels.products import squared_distances
from ..kernels.threads import one_numpy_thread
from ..targets.population.find import looked_at
from ..targets.population.target import PopulationTarget
from .kept import MEASURES, Kept, kept_columns, kept_names
from .verdict import (
    DEFAULTS,
    DIFFERENT,
    MIN_CELLS,
    TEXT_COLUMNS,
    Verdict,
    clauses,
    composition_warning,
    judge_batch,
    judge_kept,
    kept_warning,
    mover_of,
    sentence,
    verdict_columns,
    verdicts_of,
    why,
    with_care,
)

__all__ = [
    "COLUMNS", "Column", "Diagnosis", "composition_of", "diagnosis", "diagnosis_lines", "found_in",
    "look", "sample_sizes", "verdict_lines", "with_kept", "worst_first",
]  # fmt: skip

#: Batches and different verdicts that are printed, at most; and of batches with one verdict, the names.
ROWS, VERDICTS, NAMED = 40, 12, 12
SCALES = ("scale_min", "scale_max")
#: Columns of the screen, at most, that sentences are wrapped at.
WIDEST = 110


class Column(NamedTuple):
    """A number of a diagnosis: its title and meaning, and how it is written.

    A ``detail`` is not shown: what ``evidence`` is made of, and what few batches have.
    """

    title: str
    meaning: str
    how: str = "{:.2f}"
    detail: bool = False


#: The numbers of a diagnosis, in the order of pictures and reports, which take them from here.
COLUMNS = {
    "n_cells": Column("cells", "number of cells", "{:,.0f}"),
    "moved": Column("moved", "how far cells move, as a part of the batch's spread"),
    "matched": Column("matched", "part of the batch that meets other batches", "{:.0%}"),
    "agreement": Column(
        "agreement", "how far its centres agree on a displacement, over what chance gives"
    ),
    "evidence": Column(
        "evidence", "how much better its geometry fits the others than turned copies of it"
    ),
    "support": Column("support", "how well its geometry fits the others", detail=True),
    "chance": Column("chance", "how well turned copies of it fit the others", detail=True),
    "gain": Column(
        "gain", "how many times better it meets the others than without its shift", detail=True
    ),
    "smooth": Column(
        "smooth",
        "how far neighbouring centres agree on more than a shift, over what chance gives",
        detail=True,
    ),
    "composition": Column(
        "composition",
        "how much its composition differs from the others': 0 equal, 1 nothing in common",
    ),
    "removed": Column(
        "removed", "size of the effect that was removed, in units of the embedding", detail=True
    ),
    "neighbours_kept": Column(
        "neighbours kept", "part of a cell's neighbours that it keeps", "{:.0%}"
    ),
    "scale_min": Column("smallest scale", "smallest factor by which a coordinate is scaled"),
    "scale_max": Column("largest scale", "largest factor by which a coordinate is scaled"),
}


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
        table = html_table(numbers, below=[*left, *_lines_of_kept(self)])
        verdicts, others = _by_verdict(self)
        items = [
            f"<b>{html.escape(batches)}</b>: {html.escape(verdict)}"
            for verdict, batches in verdicts.items()
        ]
        listed = "".join(f"<li>{item}</li>" for item in (*items, *map(html.escape, others)))
        return f"{table}<ul>{listed}</ul>"


def diagnosis_lines(table: pd.DataFrame, width: int) -> list[str]:
    """Return a diagnosis as text for a screen: numbers, what happens to columns to keep, verdicts."""
    numbers, left = _numbers(table)
    notes = [*left, *(line for text in _lines_of_kept(table) for line in _wrapped(text, width))]
    return [*narrow_table(numbers, width), *notes, "", *verdict_lines(table, width)]


def verdict_lines(table: pd.DataFrame, width: int) -> list[str]:
    """Return the verdicts as text for a screen, the worst first, each with the batches that it is on."""
    verdicts, others = _by_verdict(table)
    sentences = (f"{batches}: {verdict}" for verdict, batches in verdicts.items())
    return [*(line for text in sentences for line in _wrapped(text, width)), *others]


def _numbers(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the numbers that differ between batches, and a sentence if some batches are left out."""
    kept = [f"{name} {what}" for name in kept_names(table) for what in MEASURES]
    numbers = pd.DataFrame(table).drop(
        columns=[*TEXT_COLUMNS, *kept, *(name for name, of in COLUMNS.items() if of.detail)],
        errors="ignore",
    )
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


def _lines_of_kept(table: pd.DataFrame) -> list[str]:
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


def _ranks(table: pd.DataFrame, unknown: int = 0) -> list[int]:
    """Return a larger number for a worse verdict; ``unknown`` where there is none."""
    return [unknown if verdict is None else verdict.level.rank for verdict in verdicts_of(table)]


def worst_first(table: pd.DataFrame, unknown: int) -> pd.DataFrame:
    """Sort batches by how bad the verdict is, then by how far they move; ``unknown`` is the rank of none."""
    order = pd.DataFrame({"rank": _ranks(table, unknown), "moved": table["moved"].to_numpy()})
    order = order.sort_values(["rank", "moved"], ascending=False, kind="stable")
    return table.iloc[order.index]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, min(width, WIDEST), subsequent_indent="    ", break_on_hyphens=False)


#: Nearest neighbours compared, and the number of cells, over all batches, whose neighbours are compared.
NEIGHBOURS, NEIGHBOUR_CELLS = 15, 2000


def diagnosis(
    fit: Fit, cells: Cells, *, seed: int = 0, keep: Mapping[str, Labels] | None = None
) -> pd.DataFrame:
    """:func:`scbatchprox.diagnose` for a fit and its cells, in memory or not."""
    sample = cells.sample(looked_at(cells.labels.n), seed)
    labels = sample.labels
    some = MemoryCells(sample.cells, labels)
    found, is_own = _evidence(fit, some, seed)
    numbers = {name: getattr(found, name) for name in COLUMNS if name in Evidence.numbers()}
    numbers["composition"] = composition_of(found, cells.labels.n)
    # By position, because pandas treats boolean labels as a mask.
    movement = fit.adapter.movement(fit.moments).iloc[
        np.searchsorted(fit.moments.batches, labels.batches)
    ]
    table = movement[["relative", *SCALES]].rename(columns={"relative": "moved"})
    table.insert(0, "n_cells", cells.labels.n)
    table = table.assign(**numbers, neighbours_kept=_neighbours_kept(fit.adapter, some))
    rule, verdicts, said = fit.method.rule, [], []
    for row, decision in zip(table.to_dict("records"), found.decision.tolist(), strict=True):
        verdict = judge_batch(
            row,
            None if math.isnan(row["evidence"]) else decision,
            settings=getattr(rule, "settings", DEFAULTS),
            by_moments=not rule.registers,
            n_batches=fit.moments.batches.size + fit.elsewhere[1],
        )
        verdicts.append(verdict)
        said.append(sentence(verdict, row, mover=mover_of(rule, is_own)))
    table = Diagnosis(table.assign(**verdict_columns(verdicts), verdict=said))
    return with_kept(table, kept_columns(keep, cells, fit.adapter)) if keep else table


def with_kept(table: pd.DataFrame, columns: list[Kept]) -> pd.DataFrame:
    """Return a diagnosis without columns to keep with what happens to these, and what follows from it."""
    reasons, texts = judge_kept(columns), table[list(TEXT_COLUMNS)]
    numbers = {name: value for column in columns for name, value in column.numbers.items()}
    table = table.drop(columns=list(TEXT_COLUMNS)).assign(**numbers)
    verdicts, said = [], []
    for verdict, moved, text in zip(
        verdicts_of(table.join(texts)), table["moved"], texts["verdict"], strict=True
    ):
        assert verdict is not None
        judged = with_care(verdict, reasons, moved)
        verdicts.append(judged)
        if judged != verdict:
            new = "; ".join(clauses(Verdict(judged.level, tuple(reasons)), numbers))
            old = "" if verdict.level.fine else why(text)
            text = f"{judged.level}: {'; '.join(part for part in (old, new) if part)}"
        said.append(text)
    return Diagnosis(table.assign(**verdict_columns(verdicts), verdict=said))


def found_in(cells: Cells, seed: int = 0) -> Evidence:
    """Return the evidence that the population target finds in some cells."""
    rule = PopulationTarget(seed=seed)
    return _aimed(rule, rule.describe(cells))


def composition_of(found: Evidence, n_cells: Ints) -> Floats:
    """(B,) how far compositions differ; NaN for batches with few cells, where that is unknown."""
    return np.where(n_cells < MIN_CELLS, np.nan, found.composition)


def _aimed(rule: PopulationTarget, populations: Moments) -> Evidence:
    found = rule.aim(populations, Weights(), rule.default_rounds).evidence
    assert found is not None
    return found


def _evidence(fit: Fit, some: Cells, seed: int) -> tuple[Evidence, bool]:
    """Return the evidence on the batches of some cells, and whether the fit decided by it."""
    batches = some.labels.batches
    own = fit.evidence.select(batches.tolist())
    if own.batches.size == batches.size and not np.isnan(own.evidence).any():
        return own, True
    if fit.moments.anchors is not None:
        return _aimed(PopulationTarget(seed=seed), fit.moments).select(batches.tolist()), False
    if batches.size < 2:  # the others are not at hand
        return Evidence.of(batches, [Decision.ALONE] * batches.size), False
    return found_in(some, seed), False


def _neighbours_kept(adapter: Adapter, some: MemoryCells) -> Floats:
    """(B,) part of the nearest neighbours in its own batch that a cell keeps, on some of the cells."""
    n_batches = some.labels.batches.size
    most = max(NEIGHBOUR_CELLS // n_batches, 10 * NEIGHBOURS)
    rows = [own[:most] for own in some.labels.rows()]
    few = np.concatenate(rows)
    moved = adapter.apply(some.Z[few], some.labels.at(few))
    kept, ends = np.full(n_batches, np.nan), np.cumsum([own.size for own in rows])
    with one_numpy_thread():  # for many small products a second thread only takes time
        for b, (own, refined) in enumerate(zip(rows, np.split(moved, ends[:-1]), strict=True)):
            k = min(NEIGHBOURS, own.size - 1)
            if k > 0:
                before, after = _nearest(some.Z[own], k), _nearest(refined, k)
                kept[b] = (before[:, :, None] == after[:, None]).any(2).mean()
    return kept


def _nearest(Z: Any, k: int) -> Ints:
    """(m, k) the nearest other cells of each of a few hundred cells."""
    X = np.asarray(Z.toarray() if hasattr(Z, "toarray") else Z, np.float64)
    X = X / (np.abs(X).max(initial=0.0) or 1.0)  # squares of very large coordinates overflow
    X = X - X.mean(0)
    D = squared_distances(X, X)
    np.fill_diagonal(D, np.inf)
    near: Ints = np.argpartition(D, k - 1, axis=1)[:, :k]
    return near


#: Cells of a small sample of all batches, and the fewest and most cells of one batch in it.
MAX_CELLS, MIN_PER_BATCH, MAX_PER_BATCH = 6000, 300, 1000


def look(
    fit: Fit,
    cells: Cells,
    diagnose: bool | None = None,
    keep: Mapping[str, Labels] | None = None,
) -> pd.DataFrame | None:
    """Warn if the target is wrong for the batches, and return a diagnosis if one was made.

    ``True`` makes a diagnosis. ``None`` does so for a target with a consensus, which has computed most of it
    already, and if there are columns to ``keep``; for other targets it looks at a small sample.
    ``False`` does nothing.
    """
    if diagnose is False:
        return None
    if _in_full(fit.method.rule, diagnose) or keep:
        table = diagnosis(fit, cells, keep=keep)
        message = _warning_of_kept(table, keep or {}) or _composition(fit, table)
    else:
        table, message = None, _composition(fit, _small_look(cells))
    if message is not None and fit.adapter.moves:
        warn_user(*message)
    return table


def sample_sizes(
    rule: TargetRule, diagnose: bool | None, n_cells: Ints, keep: object = None
) -> Ints | None:
    """(B,) number of cells that :func:`look` will sample, so that an earlier pass can draw them."""
    if diagnose is False:
        return None
    in_full = bool(keep) or _in_full(rule, diagnose)
    return looked_at(n_cells) if in_full else _small(n_cells)


def _small_look(cells: Cells) -> pd.DataFrame:
    """Return the compositions of batches, on a small sample."""
    sample = cells.small_sample(_small(cells.labels.n))
    named = sample.labels.batches[sample.labels.codes]
    labels = Labels.of(named, named.size)  # without batches that have no cells in the sample
    composition = np.full(labels.batches.size, np.nan)
    if labels.batches.size > 1:
        found = found_in(MemoryCells(sample.cells, labels))
        composition = composition_of(found, labels.n)
    return pd.DataFrame({"composition": composition}, labels.batches.tolist())


def _small(n_cells: Ints) -> Ints:
    """(B,) cells of a small sample of batches of ``n_cells``; none of the smallest of very many batches."""
    n = np.asarray(n_cells, np.int64)
    most = np.minimum(n, int(np.clip(MAX_CELLS // max(n.size, 1), MIN_PER_BATCH, MAX_PER_BATCH)))
    most[np.argsort(-n, kind="stable")[MAX_CELLS // MIN_PER_BATCH :]] = 0
    return most


def _in_full(rule: TargetRule, diagnose: bool | None) -> bool:
    return bool(diagnose) or rule.registers


def _warning_of_kept(table: pd.DataFrame, keep: Mapping[str, Labels]) -> list[Part] | None:
    """Return a warning if a refinement removes what it was told to keep."""
    for name in keep:
        column = Kept.of(table, name)
        reasons = judge_kept([column])
        if f"{name} removed" in [reason.name for reason in reasons]:
            return kept_warning(name, reasons, column.numbers)
    return None


def _composition(fit: Fit, table: pd.DataFrame) -> list[Part] | None:
    """Return a warning if the target moves whole batches, and they differ in composition."""
    differing = table.index[table["composition"] > DIFFERENT].tolist()
    if fit.method.rule.registers or not differing:
        return None
    return composition_warning(differing, "verdict" in table)
