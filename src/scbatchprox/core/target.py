"""Targets: where rows should go, what was found out about batches on the way, and the rules that tell both.

A rule is given :class:`Cells`, moments, weights and an :data:`Exchange`. It returns an :class:`Aim`: a target
and, if it registered batches, the evidence on each of them, and a trace of the rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import pandas as pd

from ..choices import LAMBDA_ID, LAMBDA_TARGET, MU
from ..errors import BadValue, Parameter
from ..kernels.arrays import Floats, Ints
from ..kernels.threads import one_numpy_thread
from .adapter import Adapter
from .checks import check_number, some_of
from .labels import Labels, among, union
from .moments import Anchors, Moments, Pooled
from .sampling import Sample
from .shown import PrintsFacts, count

__all__ = [
    "Aim", "Cells", "Decision", "Evidence", "Exchange", "Rounds", "Target", "TargetRule", "Trace", "Weights",
    "itself", "one_thread_between",
]  # fmt: skip

#: Squares of weights must not overflow, nor their products with variances.
LARGEST = 1e100


@dataclass(frozen=True)
class Weights:
    """The weights of the three terms: the pull to the target, FedProx, and the identity.

    Examples
    --------
    >>> from scbatchprox import Weights
    >>> Weights(mu=0.0)
    Weights(lambda_target=0.5, mu=0.0, lambda_id=0.001)
    """

    lambda_target: float = LAMBDA_TARGET
    mu: float = MU
    lambda_id: float = LAMBDA_ID

    def __post_init__(self) -> None:
        given = {"lambda_target": self.lambda_target, "mu": self.mu, "lambda_id": self.lambda_id}
        for name, value in given.items():
            check_number(name, value)
            if value > LARGEST:
                raise BadValue(
                    "Expected ", Parameter(name), f" of at most {LARGEST:g}, found {value!r}."
                )
            if 0 < value < 1 / LARGEST:
                raise BadValue(
                    "Expected ", Parameter(name), f" of 0, or at least {1 / LARGEST:g}, found {value!r}."
                )  # fmt: skip
        if not any(given.values()):
            raise BadValue(
                "Expected at least one of ", Parameter("lambda_target"), ", ", Parameter("mu"), " and ",
                Parameter("lambda_id"), " to be positive, found all three zero: every adapter would be a "
                "solution.",
            )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Target(PrintsFacts):
    r"""An affine map per row, relative to the row's mean: ``t = center + scale * (z - mean)``.

    It holds :math:`\hat\mu_b` and its image instead of a shift. So the solvers work on embeddings far from
    the origin without cancellation.

    Attributes
    ----------
    mean
        (R, d) mean of each row, :math:`\hat\mu_b`.
    center
        (R, d) target position of the mean; :math:`\hat\mu` in every row for the paper's target.
    scale
        (R, d) :math:`r_b`.
    exact
        (R, d) the shift, if it is known without the rounding of positions.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [2.0], [5.0], [7.0]])
    >>> batch = ["a", "a", "b", "b"]
    >>> from scbatchprox import Moments, MomentTarget
    >>> target = MomentTarget(variance_matching=False)(Moments.of(Z, batch))
    >>> target.center.ravel().tolist(), target.shift.ravel().tolist()
    ([3.5, 3.5], [2.5, -2.5])
    """

    mean: Floats
    center: Floats
    scale: Floats
    exact: Floats | None = None

    def _facts(self) -> str:
        return f"{count(len(self.mean), 'row')}, {count(self.mean.shape[1], 'coordinate')}"

    @property
    def shift(self) -> Floats:
        """(R, d) :math:`c_b`, so that ``t = scale * z + shift``."""
        return self.center - self.scale * self.mean if self.exact is None else self.exact


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
class Rounds(PrintsFacts):
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
class Evidence(PrintsFacts):
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


# A computation that needs sums over all batches, wherever these are, is given an exchange: a function that
# takes the sums of its own batches, and returns those of all. With all batches in one process the two are the
# same. So there is one code for both cases. An exchange may raise to stop the computation. Started again and
# given the same sums, it goes the same way.

#: Takes (n,) sums over own batches and returns the sums over all batches; it may raise to stop.
Exchange = Callable[[Floats], Floats]


def itself(own: Floats) -> Floats:
    """The exchange of a process that holds all batches."""
    return own


@contextmanager
def one_thread_between(exchange: Exchange) -> Iterator[Exchange]:
    """One thread for numpy's matrix products inside; the exchange to use there.

    Not during an exchange: it may wait for other sites, and other fits of this process may end meanwhile.
    """
    with ExitStack() as inside:
        inside.enter_context(one_numpy_thread())

        def outside(own: Floats) -> Floats:
            inside.close()
            try:
                return exchange(own)
            finally:
                inside.enter_context(one_numpy_thread())

        yield outside


class Cells(Protocol):
    """Labelled cells in memory, in a Dask array, or in a file."""

    @property
    def labels(self) -> Labels:
        """The batch of each cell."""
        ...

    def sample(self, most: Ints, seed: int = 0) -> Sample:
        """Up to ``most`` (B,) cells of each batch, chosen by hashes of the cells, which must be finite."""
        ...

    def small_sample(self, most: Ints, seed: int = 0) -> Sample:
        """Like :meth:`sample`, but possibly other cells if that is faster; cells are known to be finite."""
        ...

    def moments(self, by: Labels | Anchors | None = None) -> Moments:
        """Moments of batches, of other groups, or of the cells nearest to each anchor."""
        ...

    def mapped(
        self, adapter: Adapter, verb: str, labels: Labels
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the cells mapped by ``adapter.apply`` or ``adapter.inverse``, some rows at a time."""
        ...


class Aim(NamedTuple):
    """A target, and how it was found if batches were registered; otherwise the rest is ``None``.

    With ``evidence``, the rows of the adapter are those of the target: the weights and rounds have been used
    to find it, and no solver applies them again.
    """

    target: Target
    consensus: Any = None  # what batches were registered to
    evidence: Evidence | None = None  # on each batch
    trace: Trace | None = None  # of the rounds


class TargetRule(Protocol):
    """A rule that describes cells by moments and computes a target from these."""

    #: Rounds to run by default; ``None`` is the fixed point.
    @property
    def default_rounds(self) -> int | None: ...  # noqa: D102

    #: Whether finding the target uses the weights and rounds. Otherwise the solver uses them.
    @property
    def registers(self) -> bool: ...  # noqa: D102

    #: Bandwidth of the mixture of rows, in units of the variance within rows; only for rows with anchors.
    @property
    def bandwidth(self) -> float: ...  # noqa: D102

    def describe(
        self, cells: Cells, known: Moments | None = None, population: Labels | None = None
    ) -> Moments:
        """Return moments of cells; batches in ``known`` are described by the same rows as there."""
        ...

    def check(self, moments: Moments) -> None:
        """Raise an error if moments are not of the kind that :meth:`describe` returns."""
        ...

    def rows(self, moments: Moments) -> Moments:
        """Return the moments that the rows of the target belong to."""
        ...

    def aim(
        self,
        moments: Moments,
        weights: Weights,
        rounds: int | None,
        pooled: Pooled | None = None,
        exchange: Exchange = itself,
    ) -> Aim:
        """Return the target of every row of batches that are fitted together.

        ``pooled`` describes all batches, if ``moments`` are those of some of them. ``exchange`` adds up
        other sums over all batches that the target needs.
        """
        ...

    def join(
        self,
        moments: Moments,
        pooled: Pooled,
        consensus: Any,
        weights: Weights,
        rounds: int | None,
    ) -> Aim:
        """Return the target of every row of new batches, given a fixed reference, and evidence on them."""
        ...
