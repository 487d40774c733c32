"""Every constant of the population target, halved and doubled: how much scores depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from scbatchprox.evaluate import silhouette
from scbatchprox.evaluate.comparison import neighbourhood_scores
from scbatchprox.targets.population.settings import PopulationSettings
from scbatchprox.targets.population.target import PopulationTarget

from ..baselines import POPULATION, batchprox, unrefined
from .classify import REAL
from .experiment import Experiment
from .figures import dots
from .journal import Job
from .page import MEANINGS, NAMES, Report
from .settings import Settings, choice
from .trial import Trial, one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["SENSITIVITY", "SensitivitySettings", "varied"]

_SCORES = (
    *("lobo_f1", "silhouette", "mixing_within_types", "over_correction"),
    *("variance_kept", "neighbours_kept_in_batch"),
)
_DEFAULT = "default"
#: If the mean of a score over data sets changes by more than this, it depends on the constant.
_MATTERS = 0.01


@dataclass(frozen=True)
class SensitivitySettings(Settings):
    """Settings of :data:`SENSITIVITY`."""

    data: tuple[str, ...] = choice(tuple(sorted(REAL)))
    runs: int = choice(1)
    upstreams: tuple[str, ...] = choice(("pca",))
    max_cells: int | None = choice(2000)


def varied() -> dict[str, PopulationSettings]:
    """Return settings with one constant halved or doubled, by the name of the change."""
    usual = PopulationSettings()
    found = {_DEFAULT: usual}
    for name in (field.name for field in fields(usual)):
        value = getattr(usual, name)
        for word, factor in (("half", 0.5), ("double", 2.0)):
            other = _times(value, factor)
            if other != value:
                changes: dict[str, Any] = {name: other}
                found[f"{name} {word}"] = replace(usual, **changes)
    return found


def _times(value: float, factor: float) -> float | int:
    return max(1, round(factor * value)) if isinstance(value, int) else factor * value


def _jobs(trial: Trial) -> Iterator[Job]:
    for upstream in trial.upstreams:
        yield trial.job(upstream, "unrefined", partial(_scores, trial, upstream, None))
        for name, settings in varied().items():
            work = partial(_scores, trial, upstream, settings)
            yield trial.job(upstream, POPULATION, work, condition=name)


def _scores(trial: Trial, upstream: str, settings: PopulationSettings | None) -> dict[str, float]:
    before = trial.embed(upstream).Z
    target = None if settings is None else PopulationTarget(settings=settings)
    method = unrefined if target is None else batchprox("exact", target=target, rounds="auto")
    batch, cell_type = trial.obs["batch"], trial.obs["cell_type"]
    with one_thread():
        Z, _ = trial.refine(method, before, 0)
        found = neighbourhood_scores(Z, batch, cell_type, before)
        return found | {"silhouette": silhouette(Z, cell_type, max_cells=2000)}


def _table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return means over data sets of each variant, and the largest change on one data set."""
    chosen = rows[rows["metric"].isin(_SCORES)].copy()
    chosen["condition"] = chosen["condition"].where(chosen["condition"] != "", "unrefined")
    wide = chosen.pivot_table(
        index=["dataset", "upstream", "condition"], columns="metric", values="value"
    )[list(_SCORES)]
    means = wide.groupby("condition", sort=False).mean()
    usual = wide.xs(_DEFAULT, level="condition")
    change = (wide - usual.reindex(wide.index.droplevel("condition")).to_numpy()).abs()
    means["largest change of leave-one-batch-out F1 on one set"] = (
        change["lobo_f1"].groupby("condition").max()
    )
    first = ["unrefined", _DEFAULT]
    return means.loc[[*first, *(name for name in varied() if name != _DEFAULT)]]


def _report(rows: pd.DataFrame, settings: Settings) -> Report:
    table = _table(rows)
    change = (table - table.loc[_DEFAULT])[list(_SCORES)].drop(index=["unrefined", _DEFAULT])
    findings = []
    for metric in _SCORES:
        most = change[metric].abs()
        many = int((most > _MATTERS).sum())
        findings.append(
            f"{NAMES[metric]}: {many} of {len(most)} changes move its mean by more than {_MATTERS}; the "
            f"largest is {change[metric][most.idxmax()]:+.3f} ({most.idxmax()})."
        )
    shown = table.rename(columns=NAMES).round(3).rename_axis("changed").reset_index()
    constants = pd.DataFrame(
        [(f.name, str(f.default)) for f in fields(PopulationSettings)],
        columns=["constant", "value"],
    )
    notes = [
        "Each row changes one constant of PopulationSettings; whole numbers are rounded. Means over data "
        f"sets of at most {settings.max_cells:,} cells.",
        MEANINGS,
        "The constants were chosen on these sets: the table shows how much scores depend on a choice, not "
        "how good the choice is.",
    ]
    return Report(findings, {"Means over data sets": shown, "Constants": constants}, notes)


def _draw(rows: pd.DataFrame) -> Figure:
    chosen = rows[rows["metric"].isin(("lobo_f1", "over_correction"))].copy()
    chosen = chosen[chosen["condition"] != ""]
    usual = chosen[chosen["condition"] == _DEFAULT]
    by = ["dataset", "upstream", "metric"]
    merged = chosen.merge(usual[[*by, "value"]], on=by, suffixes=("", "_usual"))
    merged["value"] = merged["value"] - merged["value_usual"]
    merged = merged[merged["condition"] != _DEFAULT]
    changed = merged["condition"].str.split(" ", n=1, expand=True)
    merged = merged.assign(panel=merged["metric"].map(NAMES), dataset=changed[0], method=changed[1])
    xlabel = "change, mean and spread over data sets"
    return dots(merged, xlabel=xlabel, panel="panel", names=NAMES)


SENSITIVITY = Experiment(
    name="sensitivity",
    title="Sensitivity: every constant halved and doubled",
    question="How much does the population target depend on the constants that were chosen for it?",
    settings=SensitivitySettings(),
    quick={"data": ("cell_lines", "sim_balanced2"), "max_cells": 200},
    jobs=_jobs,
    report=_report,
    draw=_draw,
)
