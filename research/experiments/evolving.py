"""Figures 3 and 4: growing data, mapped into a fixed reference or embedded again at every step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import pandas as pd

from scbatchprox.evaluate import scib
from scbatchprox.kernels.threads import one_blas_thread

from ..baselines import CONTROLS, METHODS
from .arrival import ADDING, ArrivalSettings, FrozenReference, orders_of
from .evolving_page import draw, report
from .experiment import Experiment
from .journal import Job
from .settings import choice
from .trial import Trial

__all__ = ["CONTINUAL", "CUMULATIVE", "ContinualSettings", "CumulativeSettings"]


@dataclass(frozen=True)
class ContinualSettings(ArrivalSettings):
    """Settings of :data:`CONTINUAL`."""

    known_methods: ClassVar[tuple[str, ...]] = (*METHODS, *ADDING)

    methods: tuple[str, ...] = choice(
        (
            *("unrefined", "harmony", "batchprox_frozen", "batchprox_refit"),
            *("batchprox_population_frozen", "batchprox_population_refit"),
        )
    )


@dataclass(frozen=True)
class CumulativeSettings(ArrivalSettings):
    """Settings of :data:`CUMULATIVE`."""


def _steps(trial: Trial, order: tuple[str, ...]) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yield the name of each step and the arrivals so far: the first batches together, then one by one."""
    settings = _settings(trial)
    arrivals = [order[: settings.first], *((batch,) for batch in order[settings.first :])]
    for step in range(len(arrivals)):
        yield str(step + 1), arrivals[: step + 1]


def _settings(trial: Trial) -> ArrivalSettings:
    assert isinstance(trial.settings, ArrivalSettings)
    return trial.settings


def _about(trial: Trial) -> str:
    return "forward is " + " → ".join(orders_of(trial)["forward"])


def _jobs(trial: Trial, frozen: bool) -> Iterator[Job]:
    settings = _settings(trial)
    upstreams = (*trial.upstreams, *(CONTROLS if settings.controls else ()))
    for name, order in orders_of(trial).items():
        for upstream in upstreams:
            reference = FrozenReference(trial, upstream, order[: settings.first])
            for step, arrivals in _steps(trial, order):
                for method in trial.methods_on(upstream):
                    for run in range(settings.runs):
                        work = (
                            partial(_continual, trial, reference, arrivals, method, run)
                            if frozen
                            else partial(_cumulative, trial, upstream, arrivals, method, run)
                        )
                        yield trial.job(upstream, method, work, condition=name, step=step, run=run)


def _continual(
    trial: Trial,
    reference: FrozenReference,
    arrivals: list[tuple[str, ...]],
    method: str,
    run: int,
) -> dict[str, float]:
    """Return scores in the embedding of the first batches, in which old cells are fixed."""
    parts = [reference.part(batches) for batches in arrivals]
    of_part = [np.flatnonzero(trial.obs["batch"].isin(batches)) for batches in arrivals]
    obs = trial.obs.iloc[np.concatenate(of_part)]
    Z = np.concatenate([part.Z for part in parts])
    if method in ADDING:
        labels = [trial.obs["batch"].iloc[cells] for cells in of_part]
        refined, seconds = ADDING[method]([part.Z for part in parts], labels)
    else:
        refined, seconds = trial.refine(METHODS[method], Z, run, obs["batch"])
    return _scores(trial, obs, Z, refined, method, seconds, parts[-1].seconds)


def _cumulative(
    trial: Trial, upstream: str, arrivals: list[tuple[str, ...]], method: str, run: int
) -> dict[str, float]:
    """Return scores in a new embedding of all cells so far."""
    cells = trial.obs["batch"].isin([b for batches in arrivals for b in batches]).to_numpy()
    obs = trial.obs[cells]
    embedding = trial.embed_some(cells, upstream, run)
    refined, seconds = trial.refine(METHODS[method], embedding.Z, run, obs["batch"])
    return _scores(trial, obs, embedding.Z, refined, method, seconds, embedding.seconds)


def _scores(
    trial: Trial,
    obs: pd.DataFrame,
    Z: np.ndarray,
    refined: np.ndarray,
    method: str,
    seconds: float,
    embedding: float,
) -> dict[str, float]:
    settings = trial.settings
    batch, cell_type = obs["batch"], obs["cell_type"]
    with one_blas_thread():
        scores = scib(
            refined, batch, cell_type, before=Z, profile=settings.profile, seed=settings.seed
        )
    if method == "unrefined":
        return {**scores, "seconds": embedding, "seconds_total": embedding}
    return {**scores, "seconds": seconds, "seconds_total": embedding + seconds}


_QUICK = {
    "data": ("pancreas_scvi", "sim_pbmc4"),
    "max_cells": 600,
    "scvi_epochs": 2,
    "profile": "fast",
    "controls": False,
}

CONTINUAL = Experiment(
    name="continual",
    title="Figure 4: continual training",
    question="Batches arrive one after another and old cells are fixed: is the refined embedding better than "
    "the unrefined one, in both orders of arrival?",
    settings=ContinualSettings(),
    quick=_QUICK,
    jobs=partial(_jobs, frozen=True),
    report=partial(report, frozen=True),
    draw=draw,
    about=_about,
)
CUMULATIVE = Experiment(
    name="cumulative",
    title="Figure 3 and the wall-clock table: cumulative retraining",
    question="Batches arrive one after another and all cells are embedded again at each step: does "
    "refinement help, and how long does each step take?",
    settings=CumulativeSettings(),
    quick=_QUICK,
    jobs=partial(_jobs, frozen=False),
    report=partial(report, frozen=False),
    draw=draw,
    about=_about,
)
