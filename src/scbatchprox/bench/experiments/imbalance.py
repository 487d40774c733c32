"""Figure 5: what becomes of a cell type that one batch has few of, or none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from ...evaluate.metrics import affected_f1, ilisi, macro_f1
from ...kernels.threads import one_blas_thread
from ...plots.figures import dots
from ..baselines import METHODS
from .experiment import Experiment
from .journal import Job, Key
from .page import NAMES, Story, beside, summary
from .promises import FALL
from .settings import Settings, choice
from .trial import Trial
from .verdict import MARGIN, compare, variants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["IMBALANCE", "Case", "ImbalanceSettings", "perturbed"]

_REGIMES = ("balanced", "downsample", "ablation")


class Case(NamedTuple):
    """The cell type that is made rare, and the batch in which."""

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
        Share of the cells that "downsample" retains (paper: 10 %).
    max_cases
        How many pairs of type and batch are perturbed, each in turn; those with most cells.
    """

    data: tuple[str, ...] = choice(("balanced2", "sim_balanced2"))
    upstreams: tuple[str, ...] = choice(("pca",))
    keep: float = 0.1
    max_cases: int = choice(12)


def perturbed(
    obs: pd.DataFrame, case: Case, regime: str, keep: float, rng: np.random.Generator
) -> np.ndarray:
    """Return which cells remain: all but some, or all, of one type in one batch."""
    of_case = np.asarray((obs["cell_type"] == case.cell_type) & (obs["batch"] == case.batch))
    share = {"balanced": 1.0, "downsample": keep, "ablation": 0.0}[regime]
    affected = rng.permutation(np.flatnonzero(of_case))
    remain: np.ndarray = ~of_case
    remain[affected[: round(share * affected.size)]] = True
    return remain


def _cases(trial: Trial) -> list[Case]:
    """Return the pairs to perturb: of types that another batch has too, or nothing could be kept."""
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
    """Return, for each method, how much the affected F1 falls from the balanced regime."""
    chosen = rows[rows["metric"] == "affected_f1"]
    index = ["dataset", "upstream", "method", "step", "run"]
    wide = chosen.pivot_table(index=index, columns="condition", values="value")
    wide = wide.reindex(columns=list(_REGIMES)).reset_index()
    falls = [
        wide[index].assign(condition=regime, metric="drop", value=wide["balanced"] - wide[regime])
        for regime in _REGIMES[1:]
    ]
    return pd.concat(falls, ignore_index=True).dropna(subset=["value"])


def _once(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with those of the balanced regime once a type: no batch is singled out in it."""
    of_type = rows.assign(step=rows["step"].str.rsplit(" in ", n=1).str[0])
    again = of_type.duplicated([*Key._fields, "metric"]) & (rows["condition"] == "balanced")
    return rows[~again]


def _kept(drops: pd.DataFrame) -> list[str]:
    """Say whether a type that one batch lost is told apart as before, and what losing cells does alone."""
    said = []
    ablated = drops[drops["condition"] == "ablation"]
    for (data, upstream), part in ablated.groupby(["dataset", "upstream"], sort=False):
        fall = part.groupby("method")["value"].mean()
        if not {"batchprox_population", "unrefined"} <= set(fall.index):
            continue
        own = part[part["method"] == "batchprox_population"]["value"]
        kept = "kept" if own.mean() <= fall["unrefined"] + FALL else "missed"
        said.append(
            f"Promise of the population target, a fall of the affected F1 after ablation within {FALL} of "
            f"that of the unrefined embedding: {kept} on {data} ({NAMES.get(upstream, upstream)}), where it "
            f"falls by {beside(own.mean(), own.std(ddof=1) if len(own) > 1 else None)}, and unrefined by "
            f"{fall['unrefined']:.3f}."
        )
    return said


def _tell(rows: pd.DataFrame, settings: Settings) -> Story:
    assert isinstance(settings, ImbalanceSettings)
    drops = _drops(rows)
    rows = _once(rows)
    by = ("dataset", "upstream", "condition")
    of = "regimes (data set, upstream, regime)"
    findings = []
    for method in variants(rows):
        for baseline in ("unrefined", "harmony"):
            found = compare(rows, "affected_f1", method, baseline, by, names=_SAY)
            findings.append(found.sentence(of))
    found = compare(drops, "drop", "harmony", "batchprox_adam", by, names=_SAY)
    findings += [
        found.sentence("perturbations"),
        found.on("Harmony degrades more than scBatchProx when a type is reduced or removed"),
    ]
    findings += [
        compare(drops, "drop", method, "unrefined", by, names=_SAY).sentence("perturbations")
        for method in variants(rows)
    ]
    findings += _kept(drops)
    notes = [
        f'"downsample" keeps {settings.keep:.0%} of one type in one batch, "ablation" none; every '
        f"type in every batch in turn (at most {settings.max_cases} pairs, those with most cells, of "
        f"types that two batches have). PCA is computed anew on what remains; an embedding that came "
        f"with the data only loses cells.",
        "Affected F1 is that type's F1 on the test cells of all batches, by the classifier of Table 1. "
        "Run r draws other cells, another split, and other seeds of the methods.",
        f"Compared pair by pair over types, batches and runs; clear if the mean exceeds {MARGIN} and "
        f"twice its standard error.",
        settings.upstream_note,
        "The paper shows its values in a picture only, and names neither the type nor the batch that it "
        "perturbs. The other experiments' controls make no sense here.",
    ]
    metrics = ["affected_f1", "drop", "macro_f1", "ilisi_30"]
    table = summary(
        pd.concat([rows, drops]), ["dataset", "upstream", "condition", "method"], metrics
    )
    table = table.rename(columns={"condition": "regime", "drop": "its fall from balanced"})
    return Story(findings, {"Affected F1": table}, notes)


def _draw(rows: pd.DataFrame) -> Figure:
    chosen = rows[rows["metric"] == "affected_f1"]
    return dots(
        chosen,
        xlabel="affected F1, mean and spread over types, batches and runs",
        y="condition",
        panel="dataset",
        names=NAMES,
    )


_SAY = NAMES | {"affected_f1": "Affected F1", "drop": "Fall of the affected F1"}

IMBALANCE = Experiment(
    name="imbalance",
    title="Figure 5: imbalanced batches",
    question="When one batch has few cells of a type, or none, is the type still told apart after "
    "refinement?",
    settings=ImbalanceSettings(),
    quick={"data": ("sim_balanced2",), "runs": 1, "max_cases": 4, "max_cells": 1200},
    jobs=_jobs,
    tell=_tell,
    draw=_draw,
)
