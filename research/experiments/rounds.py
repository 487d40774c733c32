"""Scores against the number of rounds, which the paper does not state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from scbatchprox.evaluate import scores
from scbatchprox.kernels.threads import one_blas_thread

from ..baselines import CONTROLS, SOLVERS, batchprox
from .classify import REAL
from .experiment import Experiment
from .figures import lines
from .journal import Job
from .page import NAMES, Report, summary
from .settings import Settings, choice
from .trial import Trial
from .verdict import MARGIN, compare

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ROUNDS", "RoundsSettings"]

#: Name of the fixed point in place of a number of rounds.
FIXED_POINT = "fixed point"
_SHOWN = ("macro_f1", "lobo_f1", "silhouette", "ilisi_30", "bio", "batch", "overall")


@dataclass(frozen=True)
class RoundsSettings(Settings):
    """Settings of :data:`ROUNDS`.

    Attributes
    ----------
    grid
        Numbers of rounds; 0 is the unrefined embedding. The exact solver's fixed point is added.
    splits
        Number of splits; macro-F1 is the mean over them.
    """

    data: tuple[str, ...] = choice(("sim_pbmc4", *REAL))
    runs: int = choice(1)
    upstreams: tuple[str, ...] = choice(("pca",))
    grid: tuple[int, ...] = choice((0, 1, 2, 3, 5, 10, 20, 50))
    splits: int = 5


def _jobs(trial: Trial) -> Iterator[Job]:
    settings = trial.settings
    assert isinstance(settings, RoundsSettings)
    for upstream in trial.upstreams:
        for solver, method in SOLVERS.items():
            numbers: list[int | None] = [*settings.grid, *([None] if solver == "exact" else [])]
            for rounds in numbers:
                for run in range(settings.runs):
                    work = partial(_scores, trial, upstream, solver, rounds, run)
                    step = FIXED_POINT if rounds is None else str(rounds)
                    yield trial.job(upstream, method, work, step=step, run=run)
    for upstream in CONTROLS if settings.controls else ():
        work = partial(_scores, trial, upstream, "exact", 0, 0)
        yield trial.job(upstream, "unrefined", work, step="0")


def _scores(
    trial: Trial, upstream: str, solver: str, rounds: int | None, run: int
) -> dict[str, float]:
    settings = trial.settings
    assert isinstance(settings, RoundsSettings)
    before = trial.embed(upstream, run).Z
    Z, seconds = trial.refine(batchprox(solver, rounds=rounds), before, run)
    with one_blas_thread():
        numbers = scores(
            Z,
            trial.obs["batch"],
            trial.obs["cell_type"],
            before=before,
            profile=settings.profile,
            runs=settings.splits,
            seed=settings.seed + run,
        )
    return {**numbers, "seconds": seconds}


def _against_none(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with rounds as methods, so that each can be compared with 0 rounds."""
    return rows.assign(method=rows["step"], condition=rows["method"], step="")


def _report(rows: pd.DataFrame, settings: Settings) -> Report:
    assert isinstance(settings, RoundsSettings)
    embedded = rows[~rows["upstream"].isin(CONTROLS)]
    by_rounds = _against_none(embedded)
    say = NAMES | {"0": "the unrefined embedding"}
    findings = []
    for solver, method in SOLVERS.items():
        chosen = by_rounds[by_rounds["condition"] == method]
        for rounds in [step for step in ("3", FIXED_POINT) if step in set(chosen["method"])]:
            for metric in ("macro_f1", "lobo_f1", "ilisi_30", "overall"):
                found = compare(chosen, metric, rounds, "0", names=say | {rounds: _named(rounds)})
                findings.append(f"{solver}: {found.sentence()}")
    best = _best(embedded)
    findings += best
    shown = [metric for metric in _SHOWN if metric in set(rows["metric"])]
    tables = {
        "Means over data sets": _means(embedded, shown),
        "Every data set": summary(rows, ["dataset", "upstream", "method", "step"], shown).rename(
            columns={"step": "rounds"}
        ),
    }
    notes = [
        "The paper does not state its number of rounds, so there is no number to compare with. 0 rounds is "
        "the unrefined embedding; the exact solver has a fixed point, Adam has none.",
        settings.upstream_note,
        f"Macro-F1 is the mean over {settings.splits} splits; all other scores have one value. A difference "
        f"is clear if it exceeds {MARGIN}.",
    ]
    return Report(findings, tables, notes)


def _best(rows: pd.DataFrame) -> list[str]:
    """Return sentences on the number of rounds with the highest mean of each score."""
    said = []
    for solver, method in SOLVERS.items():
        means = _means(rows[rows["method"] == method], list(_SHOWN))
        for metric in ("macro_f1", "lobo_f1", "ilisi_30", "overall"):
            if metric in means and means[metric].notna().any():
                top = means.loc[means[metric].idxmax()]
                said.append(
                    f"{solver}: the mean of {NAMES[metric]} over data sets is highest at "
                    f"{_named(top['rounds'])} ({top[metric]:.3f})."
                )
    return said


def _named(rounds: str) -> str:
    if rounds == FIXED_POINT:
        return f"the {FIXED_POINT}"
    return f"{rounds} round" + "s" * (rounds != "1")


def _means(rows: pd.DataFrame, metrics: list[str]) -> pd.DataFrame:
    """Return means over data sets that have all numbers of rounds."""
    chosen = rows[rows["metric"].isin(metrics)]
    wide = chosen.pivot_table(
        index=["method", "step"], columns="metric", values="value", sort=False
    )
    wide = wide.reindex(columns=[metric for metric in metrics if metric in wide])
    return wide.reset_index().rename_axis(columns=None).rename(columns={"step": "rounds"})


def _draw(rows: pd.DataFrame) -> Figure:
    chosen = rows[rows["metric"].isin(_SHOWN) & ~rows["upstream"].isin(CONTROLS)].copy()
    chosen["metric"] = chosen["metric"].map(NAMES)
    chosen["data"] = chosen["dataset"]
    return lines(
        chosen,
        x="step",
        row="metric",
        column="data",
        ylabel="",
        names=NAMES | {"step": "rounds", FIXED_POINT: "fixed\npoint"},
    )


ROUNDS = Experiment(
    name="rounds",
    title="How many rounds",
    question="The number of rounds is the strength of the refinement. Which scores does each further round "
    "raise, and which does it lower?",
    settings=RoundsSettings(),
    quick={
        "data": ("sim_pbmc4", "pancreas_scvi", "cell_lines"),
        "max_cells": 600,
        "profile": "fast",
        "grid": (0, 1, 3, 10),
    },
    jobs=_jobs,
    report=_report,
    draw=_draw,
)
