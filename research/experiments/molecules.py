"""Table 2: embeddings of molecules (QM8, as Morgan fingerprints) instead of cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from scbatchprox.errors import BadFile, BadValue
from scbatchprox.kernels.threads import one_blas_thread

from ..baselines import CONTROLS, METHODS
from ..datasets import Dataset, load, molecules
from ..datasets.molecules import read_smiles
from . import paper
from .experiment import Experiment
from .figures import dots
from .journal import Job
from .page import NAMES, SENTENCE_NAMES, Report, summary, with_sd
from .settings import Settings, choice
from .trial import Trial, both_splits
from .verdict import MARGIN, compare, variants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MOLECULES", "MoleculesSettings"]


@dataclass(frozen=True)
class MoleculesSettings(Settings):
    """Settings of :data:`MOLECULES`."""

    data: tuple[str, ...] = choice(("qm8",))


def _load(name: str, **options: Any) -> Dataset:
    """Load QM8, or a table with a column of SMILES."""
    if name.endswith((".csv", ".csv.gz")):
        if not Path(name).is_file():
            raise BadFile(f"Expected a table of molecules, found no file at {name}.")
        return molecules(read_smiles(name), name=Path(name).name.split(".csv")[0])
    if name != "qm8":
        raise BadValue(f"Expected 'qm8' or a .csv file with a column 'smiles', found {name!r}.")
    return load(name, **options)


def _jobs(trial: Trial) -> Iterator[Job]:
    for upstream in (*trial.upstreams, *(CONTROLS if trial.settings.controls else ())):
        for method in trial.methods_on(upstream):
            for run in range(trial.settings.runs):
                work = partial(_scores, trial, upstream, method, run)
                yield trial.job(upstream, method, work, run=run)


def _scores(trial: Trial, upstream: str, method: str, run: int) -> dict[str, float]:
    Z, seconds = trial.refine(METHODS[method], trial.embed(upstream, run).Z, run)
    classes, seed = trial.obs["cell_type"], trial.settings.seed
    with one_blas_thread():
        return {
            **both_splits(Z, classes, seed, run),
            "seconds": seconds,
        }


def _report(rows: pd.DataFrame, settings: Settings) -> Report:
    by = ["dataset", "upstream", "method"]
    table = summary(rows, by, ["macro_f1", "macro_f1_split", "seconds"])
    theirs = [
        None if upstream in CONTROLS else paper.MOLECULES.get(method.removesuffix("_adam"))
        for upstream, method in table[["upstream", "method"]].itertuples(index=False)
    ]
    table.insert(4, "paper's macro-F1", [with_sd(x[0], x[1]) if x else "" for x in theirs])
    table["paper's seconds"] = [with_sd(x[2], x[3]) if x else "" for x in theirs]
    embedded = rows[~rows["upstream"].isin(CONTROLS)]
    findings = []
    against = [
        (method, other) for other in ("harmony", "unrefined") for method in variants(embedded)
    ]
    for method, baseline in (*against, ("harmony", "unrefined")):
        found = compare(embedded, "macro_f1_split", method, baseline, names=SENTENCE_NAMES)
        findings.append(found.sentence("data sets"))
        if (method, baseline) == ("batchprox_adam", "harmony"):
            findings.append(found.on("scBatchProx is above Harmony on QM8"))
    notes = [
        "Each molecule is a vector of 2,048 bits (Morgan fingerprint of radius 2; the paper does not give "
        "its numbers). Batches are molecules of at most 3, 4 to 5, and at least 6 heavy atoms, and these are "
        "also the classes. So a method that mixes batches also mixes classes, and a method that moves each "
        "batch separately can separate the classes, for test molecules too. The unrefined row is the "
        "baseline.",
        'All runs have the same stratified 80/20 split; run r changes the seed of the method. "Other '
        'splits" uses split r in run r; the findings compare these (a difference is clear above '
        f"{MARGIN} and two standard errors).",
    ]
    return Report(findings, {"Macro-F1 and runtime": table}, notes)


def _draw(rows: pd.DataFrame) -> Figure:
    chosen = rows[(rows["metric"] == "macro_f1_split") & ~rows["upstream"].isin(CONTROLS)]
    return dots(chosen, xlabel="macro-F1, mean and spread over splits", names=NAMES)


MOLECULES = Experiment(
    name="molecules",
    title="Table 2: molecules",
    question="Does refinement keep groups of molecules separate, in data that is not single-cell data?",
    settings=MoleculesSettings(),
    quick={"runs": 1, "max_cells": 4000},
    jobs=_jobs,
    report=_report,
    draw=_draw,
    load=_load,
)
