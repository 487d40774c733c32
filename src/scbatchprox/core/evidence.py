"""What a target found out about batches: the evidence on each of them, and a trace of the rounds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Self

import numpy as np
import pandas as pd

from ..errors import BadValue
from ..kernels.arrays import Floats, Ints
from .checks import some_of
from .labels import among, union
from .shown import Facts, count

__all__ = ["Decision", "Evidence", "Trace"]


class Decision(IntEnum):
    """What was decided on a batch.

    ``NO_EFFECT``: it stays where it is. ``REMOVED``: its displacement was applied. ``WEAK``: this too, but
    its own evidence is weak. ``ALONE``: nothing shows that it shares populations with others, so it stays.

    Examples
    --------
    >>> from scbatchprox import Decision
    >>> Decision(2).words
    'weak'
    """

    NO_EFFECT = 0
    REMOVED = 1
    WEAK = 2
    ALONE = 3

    @property
    def words(self) -> str:
        """The name, as tables show it."""
        return self.name.lower().replace("_", " ")


@dataclass(frozen=True, eq=False, repr=False)
class Rounds(Facts):
    """Numbers of each round of a fit, the common base of :class:`Trace` and ``History``."""

    round: Floats

    @classmethod
    def none(cls) -> Self:
        """Return those of no round."""
        return cls(*(np.zeros(0) for _ in fields(cls)))

    def frame(self) -> pd.DataFrame:
        """Return a table with one line per round."""
        return pd.DataFrame(vars(self))

    def _facts(self) -> str:
        return self._ended() if self.round.size else "no rounds"

    def _ended(self) -> str:
        raise NotImplementedError


@dataclass(frozen=True, eq=False, repr=False)
class Trace(Rounds):
    """One entry per round of a registration, starting before the first. NaN is not known.

    The numbers are of all batches that are fitted together, also of those that other sites hold.

    Attributes
    ----------
    round
        0, 1, 2, ...; rounds of the smooth part, if there is one, come after those of the shift.
    matched
        Part of a batch that met other batches in the round, mean over batches; NaN before the first.
    agreement
        How well the displacements of a batch agree, mean over batches; NaN if the target does not know.
    movement
        Root mean squared displacement of populations after the round, weighted by their cells. Round 0 has
        the displacements that the rounds start from.

    Examples
    --------
    >>> import numpy as np
    >>> from scbatchprox import BatchProx
    >>> rng = np.random.default_rng(0)
    >>> Z = rng.normal(size=(400, 5)) + 12.0 * np.eye(5)[rng.integers(0, 4, 400)]  # four types
    >>> batch = np.repeat(["a", "b"], 200)
    >>> Z[batch == "b"] += 2.0
    >>> trace = BatchProx(rounds=2).fit(Z, batch=batch).history_
    >>> trace.frame()["round"].tolist()
    [0.0, 1.0, 2.0]
    >>> bool(trace.movement[-1] > 0.5)
    True
    """

    matched: Floats
    agreement: Floats
    movement: Floats

    def _ended(self) -> str:
        movement = f"populations moved by {self.movement[-1]:.3g}"
        matched = self.matched[-1]
        met = "" if np.isnan(matched) else f", {matched:.0%} of a batch met others"
        return f"{count(int(self.round[-1]), 'round')}, {movement}{met}"

    @classmethod
    def of(cls, matched: Any, movement: Any, agreement: Any = None) -> Trace:
        """Return the trace of rounds 0, 1, 2, ...; without ``agreement`` it is not known."""
        matched, movement = (np.array(values, float) for values in (matched, movement))
        unknown = np.full(matched.shape, np.nan)
        agreement = unknown if agreement is None else np.array(agreement, float)
        return cls(np.arange(matched.size, dtype=float), matched, agreement, movement)


@dataclass(frozen=True, eq=False, repr=False)
class Evidence(Facts):
    """What a target knows of each batch, and what it decided. NaN is not known.

    Attributes
    ----------
    batches
        (B,) labels, sorted.
    matched
        (B,) part of the batch that meets other batches.
    agreement, smooth
        (B,) agreement of the displacements on the shift of the batch, and on the smooth part of its field.
    evidence
        (B,) what was compared with the setting ``evidence`` when the batch was decided on.
    support, chance
        (B,) how well the batch meets the others, and how well turned copies of it do.
    gain
        (B,) how many times better it meets the others than without its shift; NaN without one.
    removed
        (B,) root mean squared displacement that was applied, before ``strength``.
    composition
        (B,) how far the composition of the batch differs from that of the others.
    decision
        (B,) numbers of :class:`Decision`.

    Examples
    --------
    >>> from scbatchprox import Decision, Evidence
    >>> found = Evidence.of(["a", "b"], [Decision.REMOVED, Decision.ALONE], removed=[2.0, 0.0])
    >>> found.frame()[["removed", "decision"]].values.tolist()
    [[2.0, 'removed'], [0.0, 'alone']]
    """

    batches: np.ndarray
    matched: Floats
    agreement: Floats
    smooth: Floats
    evidence: Floats
    support: Floats
    chance: Floats
    gain: Floats
    removed: Floats
    composition: Floats
    decision: Ints

    def __post_init__(self) -> None:
        shapes = {np.shape(value) for value in vars(self).values()}
        if shapes != {(self.batches.size,)}:
            raise BadValue(f"Expected one number per batch in evidence, found {sorted(shapes)}.")
        known = [int(decision) for decision in Decision]
        if self.decision.dtype.kind != "i" or not np.isin(self.decision, known).all():
            raise BadValue(
                f"Expected decisions of {some_of(known)}, found {some_of(self.decision.tolist())}."
            )

    def _facts(self) -> str:
        told = [
            f"{number:,} {one.words}"
            for one in Decision
            if (number := (self.decision == one).sum())
        ]
        return ", ".join([count(self.batches.size, "batch", "batches"), *told])

    @classmethod
    def of(cls, batches: Any, decision: Any, **known: Any) -> Evidence:
        """Return evidence with some numbers; the others are not known."""
        batches = np.asarray(batches)
        numbers = {name: np.full(batches.shape, np.nan) for name in cls.numbers()}
        numbers |= {name: np.asarray(values, float) for name, values in known.items()}
        return cls(batches, **numbers, decision=np.asarray(decision, np.int64))

    @classmethod
    def none(cls) -> Evidence:
        """Return the evidence on no batch."""
        return cls.of(np.zeros(0), np.zeros(0, np.int64))

    @classmethod
    def numbers(cls) -> list[str]:
        """Names of the numbers: all but the labels and the decision."""
        return [name for name in cls.__dataclass_fields__ if name not in ("batches", "decision")]

    def select(self, batches: Iterable[Any]) -> Evidence:
        """Return the evidence on some batches; those it does not have are left out."""
        keep = among(self.batches, batches)
        return Evidence(**{name: values[keep] for name, values in vars(self).items()})

    def without(self, batch: Hashable) -> Evidence:
        """Return the evidence on all batches but one."""
        return self.select([b for b in self.batches.tolist() if b != batch])

    def joined(self, other: Evidence) -> Evidence:
        """Return the evidence on the batches of both, which must not share any."""
        if not (self.batches.size and other.batches.size):
            return self if self.batches.size else other
        union(self.batches, other.batches)  # labels of another type are an error
        both = {
            name: np.concatenate([mine, vars(other)[name]]) for name, mine in vars(self).items()
        }
        order = np.argsort(both["batches"])
        return Evidence(**{name: values[order] for name, values in both.items()})

    def frame(self) -> pd.DataFrame:
        """Return the evidence as a table with one line per batch, decisions in words."""
        values = {name: getattr(self, name) for name in self.numbers()}
        words = [Decision(one).words for one in self.decision.tolist()]
        index = pd.Index(self.batches.tolist(), name="batch")
        return pd.DataFrame(values | {"decision": np.array(words, object)}, index=index)
