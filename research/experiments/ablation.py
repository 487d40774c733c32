"""Table 3: which part of the objective matters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from scbatchprox.evaluate import ilisi
from scbatchprox.kernels.threads import one_blas_thread
from scbatchprox.targets.moment import MomentTarget

from ..baselines import ROUNDS, SOLVERS, batchprox, unrefined
from . import paper
from .classify import ORIGINALS, REAL, SIMULATED
from .experiment import Experiment
from .figures import dots
from .journal import Job
from .page import NAMES, SENTENCE_NAMES, Report, summary, with_sd
from .settings import Settings, choice
from .trial import Trial, both_splits
from .verdict import MARGIN, compare

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ABLATION", "VARIANTS", "AblationSettings"]

#: The paper's variants, as parameters of `BatchProx`.
VARIANTS: dict[str, dict[str, Any]] = {
    "full": {},
    "mean-only": {"target": MomentTarget(variance_matching=False)},
    "w/o FedProx": {"mu": 0.0},
    "w/o identity": {"lambda_id": 0.0},
}


@dataclass(frozen=True)
class AblationSettings(Settings):
    """Settings of :data:`ABLATION`.

    Attributes
    ----------
    rounds
        Number of rounds of all variants.
    """

    data: tuple[str, ...] = choice((*ORIGINALS, *SIMULATED, *REAL))
    upstreams: tuple[str, ...] = choice(("pca",))
    rounds: int = ROUNDS


def _jobs(trial: Trial) -> Iterator[Job]:
    for upstream in trial.upstreams:
        for run in range(trial.settings.runs):
            work = partial(_scores, trial, upstream, "", {}, run)
            yield trial.job(upstream, "unrefined", work, run=run)
            for solver, method in SOLVERS.items():
                for variant, params in VARIANTS.items():
                    work = partial(_scores, trial, upstream, solver, params, run)
                    yield trial.job(upstream, method, work, condition=variant, run=run)


def _scores(
    trial: Trial, upstream: str, solver: str, params: dict[str, Any], run: int
) -> dict[str, float]:
    settings = trial.settings
    assert isinstance(settings, AblationSettings)
    method = batchprox(solver, rounds=settings.rounds, **params) if solver else unrefined
    Z, seconds = trial.refine(method, trial.embed(upstream).Z, run)
    cell_type, seed = trial.obs["cell_type"], settings.seed
    with one_blas_thread():
        scores = {
            **both_splits(Z, cell_type, seed, run),
            "seconds": seconds,
        }
        return scores | ({"ilisi_30": ilisi(Z, trial.obs["batch"])} if run == 0 else {})


def _by_variant(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return the rows of one solver with its variants, and the unrefined embedding, as methods."""
    chosen = rows[rows["method"].isin([method, "unrefined"])].copy()
    chosen["method"] = chosen["condition"].where(chosen["condition"] != "", "unrefined")
    return chosen.assign(condition="")


def _report(rows: pd.DataFrame, settings: Settings) -> Report:
    assert isinstance(settings, AblationSettings)
    findings = []
    for solver, method in SOLVERS.items():
        table = _by_variant(rows, method)
        for variant in (*list(VARIANTS)[1:], "unrefined"):
            found = compare(table, "macro_f1_split", "full", variant, names=SENTENCE_NAMES)
            findings.append(f"{solver}: {found.sentence()}")
            if variant in _CLAIMS and solver == "adam":
                findings.append(found.on(_CLAIMS[variant]))
    by = ["dataset", "upstream", "method", "condition"]
    table = summary(rows, by, ["macro_f1", "macro_f1_split", "ilisi_30", "seconds"])
    theirs = [
        paper.ABLATION.get((paper.original(dataset), variant))
        for dataset, variant in table[["dataset", "condition"]].itertuples(index=False)
    ]
    table.insert(5, "paper's macro-F1", [with_sd(*x) if x else "" for x in theirs])
    notes = [
        f"{settings.rounds} rounds (the paper does not state its number); upstream PCA where there are "
        "counts, else the embedding in the data.",
        'All runs have the same split; run r changes the seed of Adam. "Other splits" uses split r in run r; '
        f"the findings compare these (a difference is clear above {MARGIN} and two standard errors).",
        "Data named sim_ are simulated with the paper's numbers of cells per batch and type.",
    ]
    return Report(findings, {"Macro-F1": table.rename(columns={"condition": "variant"})}, notes)


def _draw(rows: pd.DataFrame) -> Figure:
    chosen = rows[(rows["metric"] == "macro_f1_split")].copy()
    solver = chosen["method"].map({method: name for name, method in SOLVERS.items()})
    parts = []
    for name in SOLVERS:
        part = chosen[(solver == name) | (chosen["method"] == "unrefined")]
        parts.append(_by_variant(part, SOLVERS[name]).assign(solver=name))
    return dots(
        pd.concat(parts),
        xlabel="macro-F1, mean and spread over splits",
        panel="solver",
        names=NAMES,
    )


_CLAIMS = {
    "w/o identity": "identity regularisation is consistently beneficial",
    "mean-only": "mean-only refinement underperforms the full model",
}

ABLATION = Experiment(
    name="ablation",
    title="Table 3: ablation",
    question="Which parts of the objective matter: variance matching, the proximal term, the identity term?",
    settings=AblationSettings(),
    quick={"data": ("sim_pbmc4", "pancreas_scvi", "cell_lines"), "runs": 2, "max_cells": 1000},
    jobs=_jobs,
    report=_report,
    draw=_draw,
)
