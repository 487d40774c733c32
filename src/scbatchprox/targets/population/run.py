"""Rounds of registration: batches exchange sums at centres, and update their displacements.

Every ``yield`` is a sum over all batches everywhere: see :mod:`scbatchprox.core.exchange`.
"""

from __future__ import annotations

from typing import Self

import numpy as np

from ...core.exchange import Rounds
from ...kernels.arrays import Floats, Ints
from .batches import Batches
from .consensus import Strengths
from .sums import Sums, added

__all__ = ["Run"]


class Run:
    """Rounds of registration from given shifts (B, d), for several seeds (S,) at once.

    Batches are registered to each other, or one batch to ``fixed`` sums (S, K).

    Attributes
    ----------
    stacks
        The batches, shifted to their start.
    fields
        For each stack, (S, b, P, d) displacements relative to the start.
    assignments
        For each stack, the weights of its populations at the centres.
    all_sums
        (S, K) sums of all batches at the centres.
    done, matched
        Rounds so far, and (B, S) which part of each batch met other batches in the last of them.
    """

    def __init__(
        self,
        batches: Batches,
        start: Floats,
        strengths: Strengths,
        seeds: Ints,
        fixed: Sums | None = None,
    ) -> None:
        self.batches, self.strengths, self.settings = batches, strengths, batches.settings
        self.seeds, self.fixed, self.start = seeds, fixed, start
        # Fields are relative to the start, so the identity term pulls batches to the start.
        self.stacks = [
            stack.shifted(shift)
            for stack, shift in zip(batches.stacks, batches.in_stacks(start), strict=True)
        ]
        self.fields = [np.zeros((len(seeds), *stack.x.shape)) for stack in self.stacks]
        self.done, self.matched = 0, np.zeros((len(start), len(seeds)))

    def iterate(self, rounds: int) -> Rounds[Self]:
        """Run the coarse rounds, in which batches only shift, then ``rounds`` with a smooth part.

        Centres are seeded again every few rounds, unless they are fixed.
        """
        settings = self.settings
        steps = [(t, False) for t in settings.coarse] + [(settings.temperature, True)] * rounds
        centres = Sums(np.zeros((0, 0)), np.zeros((0, 0, 0)))
        for count, (temperature, smooth) in enumerate(steps):
            if self.fixed is not None:
                centres = self.fixed
            elif count % settings.renew == 0:
                centres = yield from self._seeded(count)
            yield from self._exchange(centres, temperature)
            self.fields = [
                stack.updated(field, assigned, self.all_sums, temperature, self.strengths, smooth)
                for stack, field, assigned in zip(
                    self.stacks, self.fields, self.assignments, strict=True
                )
            ]
            self.matched = self.batches.by_batch([
                stack.met(assigned.own, self.all_sums).T
                for stack, assigned in zip(self.stacks, self.assignments, strict=True)
            ])  # fmt: skip
            self.done += 1
            centres = self.all_sums
        # Final sums: fits are computed from them, and later batches are registered to them.
        yield from self._exchange(
            centres if self.fixed is None else self.fixed, settings.temperature
        )
        return self

    @property
    def displacement(self) -> Floats:
        """(S, P, d) displacements of all populations so far."""
        shifts = self.batches.in_stacks(self.start)
        parts = [
            np.moveaxis(shift[:, None] + v, 0, 2)
            for shift, v in zip(shifts, self.fields, strict=True)
        ]
        return np.asarray(np.moveaxis(self.batches.by_population(parts), 1, 0))

    @property
    def shift(self) -> Floats:
        """(B, d) displacements, for the first seed, of batches that have only shifted so far."""
        return self.start + self.batches.by_batch([field[0, :, 0] for field in self.fields])

    def fits(self, shift: Floats, flip: Floats | None = None) -> Floats:
        """(B,) how well each batch, shifted by ``shift`` (B, d), fits the other batches of this run.

        For the first seed. ``flip`` (d,) first mirrors it about its mean in the coordinates with -1.
        """
        parts = []
        for stack, by, assigned in zip(
            self.batches.stacks, self.batches.in_stacks(shift), self.assignments, strict=True
        ):
            unshifted = stack if flip is None else stack.mirrored(flip)
            rest = self.all_sums.without(assigned.own)
            parts.append(unshifted.shifted(by).fit(rest)[0])
        return self.batches.by_batch(parts)

    def _exchange(self, centres: Sums, temperature: float) -> Rounds[None]:
        """Add up the sums of all batches: the only data that batches exchange in a round."""
        self.assignments = [
            stack.assigned(field, centres, temperature)
            for stack, field in zip(self.stacks, self.fields, strict=True)
        ]
        own = added(assigned.sums for assigned in self.assignments)
        if self.fixed is None:
            self.all_sums = yield from own.of_all()
        else:
            self.all_sums = added([self.fixed, own])

    def _seeded(self, count: int) -> Rounds[Sums]:
        """New centres for the current positions of populations, from sums alone.

        Random planes through the mean divide space into parts. The means of the populations in each part
        are the start of a few steps of k-means.
        """
        settings, pairs = self.settings, list(zip(self.stacks, self.fields, strict=True))
        wanted = max(settings.few_centres, settings.centres * self.batches.everyone.mean_size)
        size = (self.stacks[0].x.shape[2], int(np.ceil(np.log2(wanted))))
        planes = np.stack([
            np.random.default_rng([seed, count]).normal(size=size) for seed in self.seeds
        ])  # fmt: skip
        middle = np.zeros(planes.shape[:2])
        if settings.recentre:
            whole = added(stack.divided(v, middle, planes[:, :, :0]) for stack, v in pairs)
            middle = (yield from whole.of_all()).mean[:, 0]
        parts = added(stack.divided(v, middle, planes) for stack, v in pairs)
        centres = yield from parts.of_all()
        for _ in range(settings.steps):
            nearest = added(stack.kmeans_step(v, centres) for stack, v in pairs)
            centres = (yield from nearest.of_all()).compact()
        return centres
