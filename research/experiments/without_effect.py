"""What macro-F1 of mixed splits rewards: the same cells, simulated with and without a batch effect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from scbatchprox.evaluate import f1_given_batch, leave_one_batch_out_f1, macro_f1
from scbatchprox.evaluate import mixing_within_types as mixing
from scbatchprox.kernels.threads import one_blas_thread

from ..baselines import METHODS
from ..datasets.presets import WITHOUT
from . import paper
from .experiment import Experiment
from .figures import dots
from .journal import Job
from .page import MEANINGS, NAMES, NO_EFFECT, Report, summary, with_sd
from .settings import Settings, choice
from .trial import Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["WITHOUT_EFFECT", "WithoutEffectSettings"]

_METRICS = ("macro_f1", "f1_given_batch", "lobo_f1", "mixing_within_types")


@dataclass(frozen=True)
class WithoutEffectSettings(Settings):
    """Settings of :data:`WITHOUT_EFFECT`."""

    data: tuple[str, ...] = choice(
        tuple(name for pair in ("sim_pbmc4", "sim_hpms2") for name in (pair, f"{pair}{WITHOUT}"))
    )
    upstreams: tuple[str, ...] = choice(("pca",))
    methods: tuple[str, ...] = choice(("unrefined", "harmony", "batchprox", "batchprox_population"))


def _jobs(trial: Trial) -> Iterator[Job]:
    """Yield a job for each method; of cells without an effect only the unrefined embedding is scored."""
    without = trial.dataset.name.endswith(WITHOUT)
    for upstream in trial.upstreams:
        for method in ("unrefined",) if without else trial.methods_on(upstream):
            for run in range(trial.settings.runs):
                work = partial(_scores, trial, upstream, method, run)
                yield trial.job(upstream, method, work, run=run)


def _scores(trial: Trial, upstream: str, method: str, run: int) -> dict[str, float]:
    Z, seconds = trial.refine(METHODS[method], trial.embed(upstream).Z, run)
    cell_type, batch, seed = trial.obs["cell_type"], trial.obs["batch"], trial.settings.seed + run
    with one_blas_thread():
        found = {
            "macro_f1": macro_f1(Z, cell_type, seed=seed),
            "f1_given_batch": f1_given_batch(Z, cell_type, batch, seed=seed),
            "seconds": seconds,
        }
        if run == 0:
            found["lobo_f1"] = leave_one_batch_out_f1(Z, cell_type, batch)
            found["mixing_within_types"] = mixing(Z, batch, cell_type)
    return found


def _as_methods(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with cells that never had an effect as a further method of the same data."""
    without = rows["dataset"].str.endswith(WITHOUT)
    return rows.assign(
        dataset=rows["dataset"].str.removesuffix(WITHOUT),
        method=rows["method"].where(~without, NO_EFFECT),
    )


def _report(rows: pd.DataFrame, settings: Settings) -> Report:
    rows = _as_methods(rows)
    findings = []
    means = rows.pivot_table(index=["dataset", "method"], columns="metric", values="value")
    for dataset in dict.fromkeys(rows["dataset"]):
        of = means.loc[dataset]
        if NO_EFFECT not in of.index:
            continue
        for metric in ("macro_f1", "f1_given_batch"):
            others = ", ".join(
                f"{NAMES.get(method, method)} {of.loc[method, metric]:.3f}"
                for method in dict.fromkeys(rows["method"])
                if method != NO_EFFECT and method in of.index
            )
            findings.append(
                f"{dataset}: {NAMES[metric]} of the same cells without any batch effect is "
                f"{of.loc[NO_EFFECT, metric]:.3f}; with the effect: {others}."
            )
    if not findings:
        findings.append("None of these cells were also simulated without a batch effect.")
    table = summary(rows, ["dataset", "method"], _METRICS)
    theirs = [
        paper.CLASSIFY.get((paper.original(dataset), "pca", method))
        for dataset, method in table[["dataset", "method"]].itertuples(index=False)
    ]
    table.insert(3, "paper's macro-F1", [with_sd(row[0], row[1]) if row else "" for row in theirs])
    notes = [
        "Counts are simulated with the paper's numbers of cells per batch and type, once with and once "
        "without a batch effect on genes and depth; types and seed are the same.",
        "Macro-F1: a class-balanced logistic regression, trained on 80 % of the cells of all batches and "
        "tested on the others; mean and spread over splits. F1 given batch: the same with the batch of each "
        "cell as further coordinates.",
        "The paper's numbers are of real cells with the same composition (its Table 1, PCA).",
        "Where batches differ in composition, an embedding in which they lie apart tells the classifier "
        "which types to expect. So macro-F1 of mixed splits falls when a batch effect is removed, down to "
        "its value without any effect. A fall to that value is no loss, and a value above it is a part of "
        "the effect that is still there.",
        MEANINGS,
        settings.upstream_note,
    ]
    return Report(findings, {"With and without the batch effect": table}, notes)


def _draw(rows: pd.DataFrame) -> Figure:
    rows = _as_methods(rows)
    chosen = rows[rows["metric"].isin(["macro_f1", "f1_given_batch"])]
    chosen = chosen.assign(metric=chosen["metric"].map(NAMES))
    return dots(
        chosen, xlabel="F1, mean and spread over splits", y="metric", panel="dataset", names=NAMES
    )


WITHOUT_EFFECT = Experiment(
    name="without_effect",
    title="What macro-F1 of mixed splits rewards",
    question="When training and test cells come from the same batches, is a lower macro-F1 after refinement "
    "a loss of cell types? The same cells without any batch effect have the answer.",
    settings=WithoutEffectSettings(),
    quick={"runs": 2, "max_cells": 800},
    jobs=_jobs,
    report=_report,
    draw=_draw,
)
