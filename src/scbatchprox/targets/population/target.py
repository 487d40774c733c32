"""The population target: the populations of batches are registered to a consensus of all batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ...core.adapter import length
from ...core.checks import check_whole, warn_user
from ...core.labels import Labels
from ...core.moments import Anchors, Moments, Pooled
from ...core.shown import Changed
from ...core.target import Aim, Cells, Decision, Evidence, Exchange, Target, Trace, Weights, itself
from ...errors import BadType, BadValue, Parameter
from .agreement import Strengths
from .find import anchors_for, gathered, given
from .registration import Consensus, Registered, register, register_to
from .settings import PopulationSettings

__all__ = ["PopulationTarget"]

#: Rounds by default: as many in which batches shift, and again as many for a smooth part if there is one.
ROUNDS = 10
#: The default weights of the paper, which the setting ``prior`` refers to.
DEFAULT_WEIGHTS = Weights()
#: More batches take minutes, since each is registered: a sentence tells so before it begins.
MANY_BATCHES = 2_000


@dataclass(frozen=True, repr=False)
class PopulationTarget(Changed):
    r"""Moves matched populations of different batches to each other; unmatched ones follow their batch.

    :math:`t_i = z_i + v_{bk}` for a cell of population k of batch b, with the displacement :math:`v` of
    :mod:`.registration`. The three weights and the rounds of :class:`BatchProx` are those of the
    registration: ``lambda_id`` pulls displacements to zero, ``mu`` to those of the previous round, and
    ``lambda_target`` is the weight of the evidence.

    Parameters
    ----------
    conditioned
        One adapter row per population, where each cell follows the populations near it. ``False`` is the
        paper's adapter, one row per batch, fitted to the same target.
    seed
        Seed of the sample of cells and of the clustering.
    force
        Also move batches whose geometry gives no evidence that they share populations with others.
    settings
        All constants.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> batch = np.repeat(["a", "b"], 200)
    >>> Z = rng.normal(size=(400, 5)) + 12.0 * np.eye(5)[rng.integers(0, 4, 400)]  # four types
    >>> Z[batch == "b"] += 2.0
    >>> from scbatchprox import BatchProx, PopulationTarget
    >>> model = BatchProx(target=PopulationTarget(seed=1)).fit(Z, batch=batch)
    >>> refined = model.transform(Z, batch=batch)
    >>> bool(abs(refined[batch == "b"].mean() - refined[batch == "a"].mean()) < 0.5)
    True
    """

    conditioned: bool = True
    seed: int = 0
    force: bool = False
    settings: PopulationSettings = field(default_factory=PopulationSettings)
    registers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("seed", self.seed)
        for name in ("conditioned", "force"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise BadType(
                    "Expected ", Parameter(name), f" to be True or False, found {getattr(self, name)!r}."
                )  # fmt: skip
        if type(self.settings) is not PopulationSettings:
            raise BadType(f"Expected settings to be PopulationSettings, found {self.settings!r}.")

    @property
    def default_rounds(self) -> int:
        """Rounds to run by default."""
        return ROUNDS

    @property
    def bandwidth(self) -> float:
        """Bandwidth of the mixture of rows, in units of the variance within populations."""
        return self.settings.bandwidth

    def describe(
        self, cells: Cells, known: Moments | None = None, population: Labels | None = None
    ) -> Moments:
        """Return the moments of populations, which are found or given; two passes over the cells."""
        if known is not None:
            self.check(known)
        if cells.labels.batches.size > MANY_BATCHES:
            warn_user(
                f"Expected up to {MANY_BATCHES:,} batches for ", Parameter("target='population'"),
                f", found {cells.labels.batches.size:,}: this may take minutes; ",
                Parameter("target='moment'"), " takes seconds.",
            )  # fmt: skip
        if population is not None:
            old = set() if known is None else set(known.batches.tolist())
            if old & set(cells.labels.batches.tolist()):
                raise BadValue(
                    "Expected given populations for new batches only, found some for a known batch: its "
                    "cells are assigned to the populations that it has."
                )
            return given(cells.labels, population, cells.moments)
        anchors = None
        if known is not None and known.anchors is not None:
            anchors = Anchors(known.batches, known.batch, known.anchors)
        found = anchors_for(cells.labels, cells.sample, self.seed, anchors, self.settings)
        return gathered(found, cells.moments(found), anchors)

    def check(self, moments: Moments) -> None:
        """Raise an error if moments are not those of populations."""
        if moments.anchors is None:
            raise BadType(
                "Expected moments of populations for ", Parameter("target='population'"),
                ", as BatchProx.describe returns them, found moments of whole batches.",
            )  # fmt: skip

    def rows(self, moments: Moments) -> Moments:
        """Return the moments that the rows of the target belong to: populations, or whole batches."""
        return moments if self.conditioned else moments.by_batch

    def aim(
        self,
        moments: Moments,
        weights: Weights,
        rounds: int | None,
        pooled: Pooled | None = None,
        exchange: Exchange = itself,
    ) -> Aim:
        """Register batches to each other."""
        assert rounds is not None  # Method rejects None
        if not _moves(weights, rounds):
            return self._unmoved(moments)
        found = register(
            moments.mean,
            moments.n,
            moments.start,
            float(moments.m2.sum()),
            self.settings,
            self._strengths(weights),
            rounds,
            self.force,
            pooled,
            exchange,
        )
        return self._aim(moments, found)

    def join(
        self,
        moments: Moments,
        pooled: Pooled,
        consensus: Consensus | None,
        weights: Weights,
        rounds: int | None,
    ) -> Aim:
        """Register one batch to a fixed consensus."""
        assert rounds is not None
        if not _moves(weights, rounds):
            return self._unmoved(moments)
        if consensus is None:
            raise BadValue(
                "Expected the consensus that the reference was registered to, found none: the model was "
                "written by version 0.1.0 or 0.2.0, or fitted with ", Parameter("rounds=0"), " or ",
                Parameter("lambda_target=0"), "; fit it again first (", Parameter("policy='refit'"), ").",
            )  # fmt: skip
        strengths = self._strengths(weights)
        found = register_to(consensus, moments.mean, moments.n, strengths, rounds, self.force)
        return self._aim(moments, found)

    def _strengths(self, weights: Weights) -> Strengths:
        evidence = weights.lambda_target / DEFAULT_WEIGHTS.lambda_target
        return Strengths(
            self.settings.prior * (weights.lambda_id / DEFAULT_WEIGHTS.lambda_id) / evidence,
            self.settings.prior * (weights.mu / DEFAULT_WEIGHTS.mu) / evidence,
        )

    def _unmoved(self, moments: Moments) -> Aim:
        decision = np.full(moments.batches.size, Decision.NO_EFFECT, np.int64)
        trace = Trace.of([np.nan], [0.0])
        return self._aim(
            moments, Registered(np.zeros_like(moments.mean), {}, decision, trace, None)
        )

    def _aim(self, moments: Moments, found: Registered) -> Aim:
        """Rows that are displaced: the registration has already applied the penalties."""
        rows, displacement = self.rows(moments), found.displacement
        if not self.conditioned:
            share = (moments.n / rows.n[moments.batch])[:, None]
            displacement = np.add.reduceat(share * displacement, moments.start[:-1])
        target = Target(rows.mean, rows.mean + displacement, np.ones_like(rows.mean), displacement)
        removed = length(rows, displacement)
        evidence = Evidence.of(rows.batches, found.decision, removed=removed, **found.numbers)
        return Aim(target, found.consensus, evidence, found.trace)


def _moves(weights: Weights, rounds: int) -> bool:
    """Whether these options can move any batch."""
    return weights.lambda_target > 0 and rounds > 0
