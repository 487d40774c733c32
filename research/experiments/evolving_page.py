"""The pages of the experiments with arriving batches: scores, and the wall-clock table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from ..baselines import CONTROLS
from . import paper
from .arrival import ArrivalSettings
from .figures import lines
from .page import NAMES, SENTENCE_NAMES, Report, summary
from .settings import Settings
from .verdict import MARGIN, compare, variants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw", "report", "wall_clock"]

_BY = ["dataset", "condition", "upstream", "method", "step"]


def wall_clock(rows: pd.DataFrame, frozen: bool = False) -> pd.DataFrame:
    """Return the paper's table: seconds of each step, with its embedding, and cumulative over steps.

    The paper's numbers are of the cumulative setting, and are only in that table.
    """
    timed = rows[rows["metric"].isin(["seconds", "seconds_total"]) & rows["value"].notna()]
    means = timed.groupby([*_BY, "metric"])["value"].mean().unstack("metric").reset_index()
    table = timed[_BY].drop_duplicates().merge(means, on=_BY)
    groups = table.groupby(["dataset", "condition", "upstream", "method"], sort=False)
    table["Cum."] = groups["seconds"].cumsum()
    if not frozen:
        theirs = [
            paper.WALL_CLOCK.get((order, upstream, method.removesuffix("_adam")), ())[at : at + 1]
            for _, order, upstream, method, at in table[_BY].astype({"step": int}).to_numpy()
            for at in (at - 1,)
        ]
        table["paper's Run / Total / Cum."] = [
            " / ".join(f"{x:g}" for x in step[0]) if step else "" for step in theirs
        ]
    return table.rename(columns={"seconds": "Run", "seconds_total": "Total", "condition": "order"})


def report(rows: pd.DataFrame, settings: Settings, frozen: bool) -> Report:
    """Return findings and tables of the continual (``frozen``) or the cumulative setting."""
    embedded = rows[~rows["upstream"].isin(CONTROLS)]
    ours = "batchprox_frozen" if frozen else "batchprox_adam"
    setting = "continual" if frozen else "cumulative"
    by, of = ("dataset", "upstream", "condition", "step"), "steps (data set, upstream, order, step)"
    findings = []
    for method in variants(embedded):
        for metric in ("overall", "bio", "batch"):
            found = compare(embedded, metric, method, "unrefined", by, names=SENTENCE_NAMES)
            findings.append(found.sentence(of))
            if (method, metric) == (ours, "overall"):
                findings.append(
                    found.on(f"{setting} refinement consistently improves the Overall score")
                )
        found = compare(embedded, "overall", method, "harmony", by, names=SENTENCE_NAMES)
        findings.append(found.sentence(of))
    shown = summary(rows, _BY, ["bio", "batch", "overall"]).rename(columns={"condition": "order"})
    number = rows["step"].astype(int)
    last = rows[number == number.groupby([rows["dataset"], rows["condition"]]).transform("max")]
    single = summary(last, _BY[:-1], _SINGLE).rename(columns={"condition": "order"})
    tables = {
        "Aggregate scIB scores": shown,
        "All scores at the last step": single,
        "Wall clock, seconds": wall_clock(embedded, frozen),
    }
    return Report(findings, tables, _notes(settings, frozen))


def _notes(settings: Settings, frozen: bool) -> list[str]:
    assert isinstance(settings, ArrivalSettings)
    how = (
        "The embedding is fitted only to the first batches and then fixed: PCA projects later batches "
        "with its genes, means and loadings; scVI maps each later batch by surgery on the reference. "
        "scBatchProx frozen adds rows for each new batch and moves no old cell; refit fits all rows "
        "again from stored moments. Both need the exact solver, because Adam needs the old cells. Harmony "
        "cannot add a batch: it is run again on all cells."
        if frozen
        else "At every step all cells so far are embedded again from their counts, then refined."
    )
    return [
        how,
        "Data without counts: the embedding in the data is used at every step; its time is not known.",
        f"Batches at step 1: {settings.first}, and one more at every further step (the paper's table has "
        'four steps for five protocols). "reverse" is the opposite order.',
        settings.upstream_note,
        f"Overall = 0.6 Bio + 0.4 Batch. A difference is clear if it exceeds {MARGIN}.",
        "Run: seconds of the embedding (unrefined) or of the refinement. Total: seconds of the embedding and "
        "the refinement of that step. Cum.: sum of Run so far."
        + (
            ""
            if frozen
            else " The paper's numbers are for its own five-protocol pancreas data, Adam, and another "
            "machine; its Total includes the loading of data."
        ),
    ]


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the Overall score at each step."""
    shown = rows[(rows["metric"] == "overall") & ~rows["upstream"].isin(CONTROLS)].copy()
    shown["on"] = (
        shown["dataset"] + "\n" + shown["upstream"].map(lambda name: NAMES.get(name, name))
    )
    return lines(shown, x="step", row="on", column="condition", ylabel="Overall", names=NAMES)


_SINGLE = [
    *("nmi", "ari", "asw_cell", "isolated_f1", "clisi"),
    *("asw_batch", "ilisi", "kbet", "graph_connectivity", "pcr"),
]
