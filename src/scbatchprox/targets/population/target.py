"""The target that knows what a batch is made of: populations are registered to a consensus of all batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ...core.checks import check_whole
from ...core.labels import Labels
from ...core.moments import Moments
from ...core.populations import Populations
from ...core.problem import Weights
from ...errors import BadType, BadValue
from ...kernels.arrays import Floats
from ..base import Aim, Cells, Summary, Target
from ..moment import MomentTarget
from .consensus import Strengths
from .find import anchors_for
from .registration import Consensus, register, register_to
from .settings import PopulationSettings

__all__ = ["PopulationTarget"]

#: The paper's weights, for which the settings are made.
USUAL = Weights()


@dataclass(frozen=True)
class PopulationTarget:
    r"""Every population to where its like is in other batches; what has none follows its batch.

    :math:`t_i = z_i + v_{bk}` for a cell of population k of batch b, with the displacement :math:`v` of
    :mod:`.registration`. The three weights and the rounds of :class:`BatchProx` are those of the
    registration: ``lambda_id`` pulls displacements to zero, ``mu`` to those of the round before, and
    ``lambda_target`` is the weight of the evidence.

    Parameters
    ----------
    conditioned
        One adapter row per population (each cell follows those that it is close to); ``False`` is the
        paper's adapter, one row per batch, fitted to the same target.
    seed
        Of clustering and seeding, which are the same for the same seed.
    settings
        All constants.
    """

    conditioned: bool = True
    seed: int = 0
    settings: PopulationSettings = field(default_factory=PopulationSettings)
    registers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_whole("seed", self.seed)
        if not isinstance(self.conditioned, bool | np.bool_):
            raise BadType(f"Expected conditioned to be True or False, found {self.conditioned!r}.")
        if not isinstance(self.settings, PopulationSettings):
            raise BadType(f"Expected settings to be PopulationSettings, found {self.settings!r}.")

    @property
    def default_rounds(self) -> int:
        """Rounds to run unless someone says otherwise."""
        return self.settings.rounds

    def describe(
        self, cells: Cells, known: Summary | None = None, population: Labels | None = None
    ) -> Populations:
        """Look at cells: find the populations of each batch, or take those given; two passes."""
        if known is not None and not isinstance(known, Populations):
            raise BadType("Expected populations of the known batches, found moments of whole ones.")
        if population is not None:
            if known is not None and set(known.batches.tolist()) & set(
                cells.labels.batches.tolist()
            ):
                raise BadValue(
                    "Expected given populations for new batches only, found some for a batch that is "
                    "known: its cells join the populations that it has."
                )
            return Populations.given(cells.labels, population, cells.moments)
        anchors = None if known is None else known.anchors
        found = anchors_for(cells.labels, cells.sample, self.seed, anchors, self.settings)
        return Populations.at(found, cells.moments(found), anchors)

    def rows(self, summary: Populations) -> Moments:
        """What the rows of the target belong to: populations, or whole batches."""
        return summary.rows if self.conditioned else summary.by_batch

    def aim(self, summary: Populations, weights: Weights, rounds: int | None) -> Aim:
        """Register batches to each other."""
        assert rounds is not None  # whoever asks for a fixed point is told that there is none
        if not _moves(weights, rounds):
            return Aim(self._target(summary, np.zeros_like(summary.rows.mean)), None)
        move, consensus = self.registered(summary, weights, rounds)
        if _whole(summary):
            return Aim(_MEAN_ONLY(summary.rows), consensus)
        return Aim(self._target(summary, move), consensus)

    def registered(
        self, summary: Populations, weights: Weights, rounds: int
    ) -> tuple[Floats, Consensus]:
        """Displacements (P, d) of the populations of batches that are registered to each other."""
        rows = summary.rows
        width = float(rows.m2.sum() / summary.n_cells)
        return register(
            rows.mean,
            rows.n,
            summary.anchors.start,
            width,
            self.settings,
            self._strengths(weights),
            rounds,
            self.seed,
        )

    def join(
        self,
        summary: Populations,
        reference: Populations,
        consensus: Consensus | None,
        weights: Weights,
        rounds: int | None,
    ) -> Target:
        """Register each batch alone to a consensus that stays as it is."""
        assert rounds is not None
        if not _moves(weights, rounds):
            return self._target(summary, np.zeros_like(summary.rows.mean))
        if _whole(reference) and _whole(summary):
            return _MEAN_ONLY(summary.rows, reference.rows)
        if consensus is None:
            raise BadValue(
                "Expected the consensus that the reference was registered to, found none: the model was "
                "written by version 0.1.0, or fitted with rounds=0 or lambda_target=0; fit it anew first "
                "(policy='refit')."
            )
        strengths = self._strengths(weights)
        move = np.zeros_like(summary.rows.mean)
        for b in range(summary.batches.size):
            own = summary.anchors.own(b)
            rows = summary.rows
            move[own] = register_to(consensus, rows.mean[own], rows.n[own], strengths, rounds)
        return self._target(summary, move)

    def _strengths(self, weights: Weights) -> Strengths:
        evidence = weights.lambda_target / USUAL.lambda_target
        return Strengths(
            self.settings.prior * (weights.lambda_id / USUAL.lambda_id) / evidence,
            self.settings.damping * (weights.mu / USUAL.mu) / evidence,
        )

    def _target(self, summary: Populations, move: Floats) -> Target:
        """Rows that go all the way: the registration has held them back already."""
        rows = self.rows(summary)
        if not self.conditioned:
            at = summary.anchors.start[:-1]
            share = (summary.rows.n / rows.n[summary.anchors.batch])[:, None]
            move = np.add.reduceat(share * move, at)
        scale = np.ones_like(rows.mean)
        return Target(rows.mean, rows.mean + move, scale, np.ones(len(move), bool))


#: What this target is for batches that are one population each.
_MEAN_ONLY = MomentTarget(variance_matching=False)


def _whole(summary: Populations) -> bool:
    """Whether every batch is one population: nothing then tells populations from batches."""
    return summary.rows.n.size == summary.batches.size


def _moves(weights: Weights, rounds: int) -> bool:
    """Whether there is anything that moves batches."""
    return weights.lambda_target > 0 and rounds > 0
