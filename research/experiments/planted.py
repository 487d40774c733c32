"""Planted effects: refinement and diagnosis of batches whose effects are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pandas as pd

from scbatchprox.api.anndata import diagnose
from scbatchprox.core.checks import some_of
from scbatchprox.core.labels import Labels
from scbatchprox.diagnosis import Level
from scbatchprox.errors import BadValue
from scbatchprox.evaluate import f1_given_batch, macro_f1, neighbours_kept
from scbatchprox.evaluate.cells import embedding, sample
from scbatchprox.evaluate.comparison import neighbourhood_scores
from scbatchprox.evaluate.mixing import Neighbours
from scbatchprox.kernels.arrays import Floats

from ..baselines import METHODS, POPULATION
from ..datasets.presets import PRESETS, Stored
from ..planted import (
    KINDS,
    Planted,
    displacement_error,
    knowing_types,
    plant,
    possible,
    relative_error,
)
from .classify import LATER, REAL
from .experiment import Experiment
from .journal import Job
from .page import NO_EFFECT
from .planted_page import DIAGNOSE, KNOWN, MEASURED, SHIFTS, draw, report
from .settings import Settings, choice
from .trial import Trial, one_thread

__all__ = ["PLANTED", "PlantedSettings"]

#: Fewest cells of a real batch for planting, and of each of two of its types.
_CELLS, _OF_A_TYPE = 60, 10


@dataclass(frozen=True)
class PlantedSettings(Settings):
    """Settings of :data:`PLANTED`.

    Attributes
    ----------
    kinds
        Names of :data:`~research.planted.KINDS`.
    batches
        Number of real batches of a data set to plant effects in, the largest first.
    cells
        Largest number of cells of a real batch that are used, the same share of every type.
    """

    data: tuple[str, ...] = choice((*sorted((*REAL, *LATER)), "jaitin_null8"))
    runs: int = choice(1)
    upstreams: tuple[str, ...] = choice(("pca",))
    methods: tuple[str, ...] = choice(("unrefined", "harmony", "batchprox", POPULATION))
    kinds: tuple[str, ...] = choice(tuple(KINDS))
    batches: int = choice(2)
    cells: int = 3000

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise BadValue(
                f"Expected known kinds, found {some_of(unknown)}; available: "
                f"{some_of(KINDS, most=40)}."
            )
        for name, least in (("batches", 1), ("cells", _CELLS)):
            if getattr(self, name) < least:
                raise BadValue(f"Expected {name} >= {least}, found {getattr(self, name)}.")


@dataclass(frozen=True, eq=False)
class _Source:
    """The cells of one real batch, embedded without the other batches, so that there is no batch effect."""

    trial: Trial
    upstream: str
    batch: str
    cells: np.ndarray

    @cached_property
    def Z(self) -> Floats:
        found: Floats = self.trial.embed_some(self.cells, self.upstream).Z
        return found

    @cached_property
    def cell_type(self) -> np.ndarray:
        return _types(self.trial, self.cells)

    def plant(self, kind: str, run: int) -> Planted:
        return plant(self.Z, self.cell_type, kind, seed=self.trial.settings.seed + run)


def _types(trial: Trial, cells: np.ndarray) -> np.ndarray:
    types: np.ndarray = trial.obs["cell_type"].astype(str).to_numpy()
    found: np.ndarray = types[cells]
    return found


def _chosen(trial: Trial) -> dict[str, np.ndarray]:
    """Return masks of the cells that are used, for the largest suitable real batches."""
    settings = trial.settings
    assert isinstance(settings, PlantedSettings)
    batch = trial.obs["batch"]
    found = {}
    for name in batch.value_counts(sort=True).index:
        rows = np.flatnonzero(batch == name)
        types = trial.obs["cell_type"].iloc[rows].value_counts()
        if rows.size < _CELLS or (types >= _OF_A_TYPE).sum() < 2:
            continue
        labels = Labels.of(_types(trial, rows), rows.size, "cell type")
        one = Labels.of(None, rows.size)
        mask = np.zeros(len(batch), bool)
        mask[rows[sample(one, labels, settings.cells, settings.seed)]] = True
        found[str(name)] = mask
        if len(found) == settings.batches:
            break
    if not found:
        raise BadValue(
            f"Expected a batch of {_CELLS} cells, {_OF_A_TYPE} of each of two types, in "
            f"{trial.dataset.name}, found none."
        )
    return found


def _impossible(trial: Trial, mask: np.ndarray) -> list[str]:
    """Return the kinds that cannot be planted in the cells of a batch in all runs."""
    settings = trial.settings
    assert isinstance(settings, PlantedSettings)
    types = _types(trial, mask)
    return [
        kind
        for kind in settings.kinds
        if any(possible(types, kind, seed=settings.seed + run) for run in range(settings.runs))
    ]


def _typed(trial: Trial) -> bool:
    """Whether the cells of a data set have types."""
    preset = PRESETS.get(trial.dataset.name)
    return not isinstance(preset, Stored) or preset.typed


def _jobs(trial: Trial) -> Iterator[Job]:
    settings = trial.settings
    assert isinstance(settings, PlantedSettings)
    if not _typed(trial):
        for upstream in trial.upstreams:
            for method in trial.methods_on(upstream):
                work = partial(_measured, trial, upstream, method)
                yield trial.job(upstream, method, work, condition=MEASURED)
        return
    for upstream in trial.upstreams:
        for batch, mask in _chosen(trial).items():
            source, without = _Source(trial, upstream, batch, mask), _impossible(trial, mask)
            for kind in settings.kinds:
                for run in range(settings.runs) if kind not in without else ():
                    for method in trial.methods_on(upstream):
                        work = partial(_scores, source, method, kind, run)
                        yield trial.job(upstream, method, work, condition=kind, step=batch, run=run)
                    if not KINDS[kind].null:
                        work = partial(_without_effect, source, kind, run)
                        yield trial.job(
                            upstream, NO_EFFECT, work, condition=kind, step=batch, run=run
                        )
                    if kind in SHIFTS:
                        work = partial(_known, source, kind, run)
                        yield trial.job(upstream, KNOWN, work, condition=kind, step=batch, run=run)
                    if POPULATION in settings.methods:
                        work = partial(_verdicts, source, kind, run)
                        yield trial.job(
                            upstream, DIAGNOSE, work, condition=kind, step=batch, run=run
                        )


def _scores(source: _Source, method: str, kind: str, run: int) -> dict[str, float]:
    planted = source.plant(kind, run)
    batch, cell_type, trial = planted.batch, planted.cell_type, source.trial
    Z, seconds = trial.refine(METHODS[method], planted.Z, run, pd.Series(batch))
    error, unrefined = (displacement_error(planted, after) for after in (Z, planted.Z))
    seed = trial.settings.seed + run
    with one_thread():
        return {
            "displacement_error": error,
            "displacement_relative": error / unrefined if unrefined > 0 else float("nan"),
            "relative_error": relative_error(planted, Z),
            "unmoved": float((Z == planted.Z).all()),
            "neighbour_accuracy": _neighbour_accuracy(Z, cell_type),
            "macro_f1": macro_f1(Z, cell_type, seed=seed),
            "f1_given_batch": f1_given_batch(Z, cell_type, batch, seed=seed),
            **neighbourhood_scores(Z, batch, cell_type, planted.Z),
            "seconds": seconds,
        }


def _measured(trial: Trial, upstream: str, method: str) -> dict[str, float]:
    """Scores of real batches that should have no effect, and have no types: movement is by their spread."""
    Z = embedding(trial.embed(upstream).Z)
    batch = trial.obs["batch"]
    after, seconds = trial.refine(METHODS[method], Z, 0)
    moved = after - Z
    spread = np.sqrt(((Z - Z.mean(0)) ** 2).sum(1).mean())
    with one_thread():
        kept = neighbours_kept(Z, after, batch=batch)
    return {
        "displacement_of_spread": float(
            np.sqrt(((moved - moved.mean(0)) ** 2).sum(1).mean()) / spread
        ),
        "batches_unmoved": float(
            np.mean([not moved[batch == name].any() for name in batch.unique()])
        ),
        "neighbours_kept_in_batch": float(kept.mean()),
        "seconds": seconds,
    }


def _neighbour_accuracy(Z: Floats, cell_type: np.ndarray, k: int = 15) -> float:
    """Share of cells whose type is the most frequent among their k nearest cells, of any batch."""
    Z = embedding(Z)
    types = Labels.of(cell_type, len(Z), "cell type")
    near = types.codes[Neighbours.of(Z, k).indices]
    votes = np.stack([(near == t).sum(1) for t in range(types.batches.size)], axis=1)
    return float((votes.argmax(1) == types.codes).mean())


def _without_effect(source: _Source, kind: str, run: int) -> dict[str, float]:
    """Return the scores of the same cells without the effect."""
    planted = source.plant(kind, run)
    with one_thread():
        return neighbourhood_scores(
            planted.Z + planted.truth, planted.batch, planted.cell_type, planted.Z
        )


def _known(source: _Source, kind: str, run: int) -> dict[str, float]:
    """Return the error of an estimator that knows the types."""
    planted = source.plant(kind, run)
    return {"displacement_error": displacement_error(planted, knowing_types(planted))}


def _verdicts(source: _Source, kind: str, run: int) -> dict[str, float]:
    """Return the number of batches with each verdict, by its level."""
    planted = source.plant(kind, run)
    seed = source.trial.settings.seed + run
    said = diagnose(planted.Z, planted.batch, target="population", seed=seed)["level"]
    found = {f"verdict_{level}": float((said == level).sum()) for level in Level}
    if sum(found.values()) != len(said):
        raise BadValue(f"Expected levels {some_of(map(str, Level))}, found {some_of(said)}.")
    return found


def _about(trial: Trial) -> str:
    """Return a note: the real batches with planted effects, and the kinds with too few cells."""
    if not _typed(trial):
        return "batches as they were measured"
    said = []
    for batch, mask in _chosen(trial).items():
        without = ", ".join(_impossible(trial, mask))
        n = int(mask.sum())
        said.append(
            f"planted in {batch} ({n:,} cells)" + (f", too few for {without}" if without else "")
        )
    return "; ".join(said)


PLANTED = Experiment(
    name="planted",
    title="Planted effects",
    question="When the batch effect is known for every cell, because it was planted in cells of one batch, "
    "does refinement undo it and change nothing else, and does the diagnosis predict that?",
    settings=PlantedSettings(),
    quick={
        # A quick run may guide choices, so it has none of the sets for confirming.
        "data": ("sim_balanced2", "pancreas_scvi", "sc_mixology"),
        "kinds": ("null", "missing_one", "shift_1", "field"),
        "batches": 1,
        "max_cells": 2000,
        "cells": 400,
    },
    jobs=_jobs,
    report=report,
    draw=draw,
    about=_about,
)
