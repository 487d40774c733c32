"""Batches that arrive one after another: their order, embedding and refinement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from time import perf_counter
from typing import Any

import numpy as np

from scbatchprox.api.estimator import BatchProx
from scbatchprox.core.checks import some_of
from scbatchprox.errors import BadValue
from scbatchprox.upstream import PCAUpstream, ScviUpstream

from ..baselines import ROUNDS, Embedding, Recipe, fit_pca, fit_scvi, operate
from .settings import Settings, choice
from .trial import Trial, subset

__all__ = [
    "ADDING",
    "ArrivalSettings",
    "FrozenReference",
    "add_and_refit",
    "add_frozen",
    "orders_of",
]

#: Takes coordinates and batches of each arrival; returns coordinates of all cells, and seconds of the last.
Adding = Callable[[Sequence[np.ndarray], Sequence[Any]], tuple[np.ndarray, float]]

#: Orders of technology, if they differ from the order of the batches in the file.
ORDERS = {
    "pancreas_scvi": (
        *("GSE81076_CELseq", "GSE85241_CELseq2"),
        *("GSE86473_SmartSeq2", "E-MTAB-5061_SmartSeq2"),  # the first of the two used Fluidigm's C1
    ),
    "sc_mixology": (
        *("sc_dropseq", "sc_celseq2", "sc_10x"),
        *("sc_celseq2_5cl_p1", "sc_celseq2_5cl_p2", "sc_celseq2_5cl_p3"),
    ),
    "sim_pbmc4": ("CEL", "SmartSeq2", "SeqWell", "10x"),
}


@dataclass(frozen=True)
class ArrivalSettings(Settings):
    """Settings of the experiments with batches that arrive.

    Attributes
    ----------
    order
        Batches in order of arrival; by default the order of technology if it is known, else the order
        in the file. The reverse order is run too.
    first
        Number of batches at the first step.
    """

    data: tuple[str, ...] = choice(("pancreas5", "pancreas_scvi", "sc_mixology", "sim_pbmc4"))
    runs: int = choice(1)
    order: tuple[str, ...] | None = None
    first: int = 2


def orders_of(trial: Trial) -> dict[str, tuple[str, ...]]:
    """Return both orders of arrival."""
    settings = trial.settings
    assert isinstance(settings, ArrivalSettings)
    batches = tuple(trial.obs["batch"].cat.categories)
    order = settings.order or ORDERS.get(trial.dataset.name, batches)
    if set(order) != set(batches) or len(order) != len(batches):
        raise BadValue(
            f"Expected an order of all batches of {trial.dataset.name}, found {some_of(order)}; "
            f"available: {some_of(batches, most=30)}."
        )
    if not 0 < settings.first < len(order):
        raise BadValue(
            f"Expected first between 1 and {len(order) - 1} for {len(order)} batches, found "
            f"{settings.first}."
        )
    return {"forward": order, "reverse": order[::-1]}


@dataclass(frozen=True, eq=False)
class FrozenReference:
    """An embedding fitted only to the first batches; later ones are mapped into it.

    PCA projects new cells with the genes, means and loadings of the first batches. scVI maps each new
    batch by surgery on the reference, so the result does not depend on other new batches. The reference
    is fitted only if an earlier run did not store all parts.
    """

    trial: Trial
    upstream: str
    first: tuple[str, ...]

    @cached_property
    def model(self) -> PCAUpstream | ScviUpstream:
        """The reference."""
        counts = subset(self.trial.dataset, self._cells(self.first)).adata
        if self.upstream == "pca":
            return fit_pca(counts, self._recipe)
        return fit_scvi(counts, self._recipe, for_surgery=True)

    def part(self, batches: tuple[str, ...]) -> Embedding:
        """Return the embedding of the first batches, or of later ones."""
        if self.upstream not in ("pca", "scvi"):
            # An embedding in the data, or a control, whose coordinates must not depend on the part.
            return Embedding(self.trial.embed(self.upstream).Z[self._cells(batches)])
        name = f"{self.upstream}-frozen"
        parts = (self.trial.fingerprint, asdict(self._recipe), self.first, batches)
        what = ""
        if self.upstream == "scvi":
            of = f"{self.trial.dataset.name}, {', '.join(batches)}"
            what = f"{self.trial.experiment}: scVI of {of}"
        return self.trial.store.get(name, parts, lambda: self._make(batches), what)

    def _make(self, batches: tuple[str, ...]) -> Embedding:
        cells = subset(self.trial.dataset, self._cells(batches)).adata
        is_first = batches == self.first
        if not is_first:
            _ = self.model  # fitted before the time is taken: the time is of the new batch only
        started = perf_counter()
        model = self.model
        if isinstance(model, ScviUpstream) and not is_first:
            model = operate(model, cells, self._recipe)
        return Embedding(model.embed(cells).Z, perf_counter() - started)

    @property
    def _recipe(self) -> Recipe:
        return self.trial.settings.recipe

    def _cells(self, batches: tuple[str, ...]) -> np.ndarray:
        return np.asarray(self.trial.obs["batch"].isin(batches))


_PAPER: dict[str, Any] = {"target": "moment", "rounds": ROUNDS}
_POPULATION: dict[str, Any] = {"target": "population", "rounds": "auto"}


def add_frozen(
    parts: Sequence[np.ndarray], batches: Sequence[Any], **params: Any
) -> tuple[np.ndarray, float]:
    """Refine each part when it arrives; return all parts, and the seconds of the last one."""
    model, refined, seconds = BatchProx(**_PAPER | params), [], 0.0
    for Z, batch in zip(parts, batches, strict=True):
        started = perf_counter()
        model.partial_fit(Z, batch=batch, policy="frozen")
        refined.append(model.transform(Z, batch=batch))
        seconds = perf_counter() - started
    return np.concatenate(refined), seconds


def add_and_refit(
    parts: Sequence[np.ndarray], batches: Sequence[Any], **params: Any
) -> tuple[np.ndarray, float]:
    """Refit to all parts at each arrival; return them, and the seconds of the last fit and transform."""
    model, started = BatchProx(**_PAPER | params), perf_counter()
    for Z, batch in zip(parts, batches, strict=True):
        started = perf_counter()
        model.partial_fit(Z, batch=batch, policy="refit")
    refined = [model.transform(Z, batch=batch) for Z, batch in zip(parts, batches, strict=True)]
    return np.concatenate(refined), perf_counter() - started


#: Methods that need an order of arrival, in addition to :data:`~research.baselines.METHODS`.
ADDING: dict[str, Adding] = {
    "batchprox_frozen": add_frozen,
    "batchprox_refit": add_and_refit,
    "batchprox_population_frozen": partial(add_frozen, **_POPULATION),
    "batchprox_population_refit": partial(add_and_refit, **_POPULATION),
}
