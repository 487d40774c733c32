"""Figure 5: a cell type that is rare in one batch, or missing from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from scbatchprox.evaluate import affected_f1, ilisi, macro_f1
from scbatchprox.kernels.threads import one_blas_thread

from ..baselines import METHODS, POPULATION
from .experiment import Experiment
from .figures import dots
from .journal import Job, Key
from .page import NAMES, SENTENCE_NAMES, Report, summary, with_sd
from .promises import FALL
from .settings import Settings, choice
from .trial import Trial
from .verdict import MARGIN, compare, variants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["IMBALANCE", "Case", "ImbalanceSettings", "perturbed"]

_REGIMES = ("balanced", "downsample", "ablation")


class Case(NamedTuple):
    """The cell type that is made rare, and the batch in which it is."""

    cell_type: str
    batch: str

    def __str__(self) -> str:
        return f"{self.cell_type} in {self.batch}"


@dataclass(frozen=True)
class ImbalanceSettings(Settings):
    """Settings of :data:`IMBALANCE`.

    Attributes
    ----------
    keep
        Share of the cells that "downsample" keeps (paper: 10 %).
    max_cases
        Number of pairs of type and batch that are perturbed, one at a time; those with most cells.
    """

    data: tuple[str, ...] = choice(("balanced2", "sim_balanced2"))
    upstreams: tuple[str, ...] = choice(("pca",))
    keep: float = 0.1
    max_cases: int = choice(12)


def perturbed(
    obs: pd.DataFrame, case: Case, regime: str, keep: float, rng: np.random.Generator
) -> np.ndarray:
    """Return a mask of the cells that remain: some or all cells of one type in one batch are removed."""
    of_case = np.asarray((obs["cell_type"] == case.cell_type) & (obs["batch"] == case.batch))
    share = {"balanced": 1.0, "downsample": keep, "ablation": 0.0}[regime]
    affected = rng.permutation(np.flatnonzero(of_case))
    remain: np.ndarray = ~of_case
    remain[affected[: round(share * affected.size)]] = True
    return remain


def _cases(trial: Trial) -> list[Case]:
    """Return the pairs to perturb; their types are in at least two batches, so the type never vanishes."""
    settings = trial.settings
    assert isinstance(settings, ImbalanceSettings)
    counts = pd.crosstab(trial.obs["cell_type"], trial.obs["batch"])
    shared = counts[(counts > 1).sum(axis=1) > 1].stack()
    shared = shared[shared > 1].sort_values(ascending=False, kind="stable")
    return [Case(*pair) for pair in shared.index[: settings.max_cases]]


def _jobs(trial: Trial) -> Iterator[Job]:
    for upstream in trial.upstreams:
        for case in _cases(trial):
            for regime in _REGIMES:
                for run in range(trial.settings.runs):
                    for method in trial.methods_on(upstream):
                        work = partial(_scores, trial, upstream, method, case, regime, run)
                        yield trial.job(
                            upstream, method, work, condition=regime, step=str(case), run=run
                        )


def _scores(
    trial: Trial, upstream: str, method: str, case: Case, regime: str, run: int
) -> dict[str, float]:
    settings = trial.settings
    assert isinstance(settings, ImbalanceSettings)
    # The same cells for all methods, and, in the balanced regime, for all cases.
    rng = np.random.default_rng([settings.seed, run, _REGIMES.index(regime)])
    remain = perturbed(trial.obs, case, regime, settings.keep, rng)
    embedding = trial.embed_some(remain, upstream)
    obs = trial.obs[remain]
    Z, seconds = trial.refine(METHODS[method], embedding.Z, run, obs["batch"])
    seed = settings.seed + run
    with one_blas_thread():
        return {
            "affected_f1": affected_f1(Z, obs["cell_type"], case.cell_type, seed=seed),
            "macro_f1": macro_f1(Z, obs["cell_type"], seed=seed),
            "ilisi_30": ilisi(Z, obs["batch"]),
            "seconds": seconds,
        }


def _drops(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, for each method, how much the affected F1 drops from the balanced regime."""
    chosen = rows[rows["metric"] == "affected_f1"]
    index = ["dataset", "upstream", "method", "step", "run"]
    wide = chosen.pivot_table(index=index, columns="condition", values="value")
    wide = wide.reindex(columns=list(_REGIMES)).reset_index()
    drops = [
        wide[index].assign(condition=regime, metric="drop", value=wide["balanced"] - wide[regime])
        for regime in _REGIMES[1:]
    ]
    return pd.concat(drops, ignore_index=True).dropna(subset=["value"])


def _once(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows, with one row per type in the balanced regime, where all batches are the same."""
    of_type = rows.assign(step=rows["step"].str.rsplit(" in ", n=1).str[0])
    repeated = of_type.duplicated([*Key._fields, "metric"]) & (rows["condition"] == "balanced")
    return rows[~repeated]


def _kept(drops: pd.DataFrame) -> list[str]:
    """Return sentences on whether the affected F1 after ablation drops no more than unrefined."""
    said = []
    ablated = drops[drops["condition"] == "ablation"]
    for (data, upstream), part in ablated.groupby(["dataset", "upstream"], sort=False):
        mean = part.groupby("method")["value"].mean()
        if not {POPULATION, "unrefined"} <= set(mean.index):
            continue
        own = part[part["method"] == POPULATION]["value"]
        kept = "kept" if own.mean() <= mean["unrefined"] + FALL else "missed"
        said.append(
            f"Promise of the population target, a drop of affected F1 after ablation within {FALL} of that "
            f"of the unrefined embedding: {kept} on {data} ({NAMES.get(upstream, upstream)}). The drop is "
            f"{with_sd(own.mean(), own.std(ddof=1) if len(own) > 1 else None)}, and "
            f"{mean['unrefined']:.3f} unrefined."
        )
    return said


def _report(rows: pd.DataFrame, settings: Settings) -> Report:
    assert isinstance(settings, ImbalanceSettings)
    drops = _drops(rows)
    rows = _once(rows)
    by = ("dataset", "upstream", "condition")
    of = "regimes (data set, upstream, regime)"
    findings = []
    for method in variants(rows):
        for baseline in ("unrefined", "harmony"):
            found = compare(rows, "affected_f1", method, baseline, by, names=SENTENCE_NAMES)
            findings.append(found.sentence(of))
    found = compare(drops, "drop", "harmony", "batchprox_adam", by, names=SENTENCE_NAMES)
    findings += [
        found.sentence("perturbations"),
        found.on("Harmony degrades more than scBatchProx when a type is reduced or removed"),
    ]
    findings += [
        compare(drops, "drop", method, "unrefined", by, names=SENTENCE_NAMES).sentence(
            "perturbations"
        )
        for method in variants(rows)
    ]
    findings += _kept(drops)
    notes = [
        f'"downsample" keeps {settings.keep:.0%} of one type in one batch, "ablation" none; one pair of '
        f"type and batch at a time (at most {settings.max_cases} pairs, those with most cells, of types "
        f"in at least two batches). PCA is computed again on the remaining cells; an embedding in the "
        f"data only loses cells.",
        "Affected F1 is the F1 of that type on the test cells of all batches, by the classifier of "
        "Table 1. Runs differ in the removed cells, in the split, and in the seeds of the methods.",
        f"Methods are compared pair by pair over types, batches and runs; a difference is clear if its "
        f"mean exceeds {MARGIN} and twice its standard error.",
        settings.upstream_note,
        "The paper shows its values only in a picture, and names neither the type nor the batch. The "
        "controls of the other experiments are not used here.",
    ]
    metrics = ["affected_f1", "drop", "macro_f1", "ilisi_30"]
    table = summary(
        pd.concat([rows, drops]), ["dataset", "upstream", "condition", "method"], metrics
    )
    table = table.rename(columns={"condition": "regime", "drop": "drop from balanced"})
    return Report(findings, {"Affected F1": table}, notes)


def _draw(rows: pd.DataFrame) -> Figure:
    chosen = rows[rows["metric"] == "affected_f1"]
    return dots(
        chosen,
        xlabel="affected F1, mean and spread over types, batches and runs",
        y="condition",
        panel="dataset",
        names=NAMES,
    )


IMBALANCE = Experiment(
    name="imbalance",
    title="Figure 5: imbalanced batches",
    question="When one batch has few cells of a type, or none, does a classifier still recognise the type "
    "after refinement?",
    settings=ImbalanceSettings(),
    quick={"data": ("sim_balanced2",), "runs": 1, "max_cases": 4, "max_cells": 1200},
    jobs=_jobs,
    report=_report,
    draw=_draw,
)
