"""Targets: where rows should go, the interface of rules that tell it, and what these are given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..choices import LAMBDA_ID, LAMBDA_TARGET, MU
from ..errors import BadValue, Parameter
from ..kernels.arrays import Floats, Ints
from ..kernels.threads import one_numpy_thread
from .adapter import Adapter
from .checks import check_number
from .evidence import Evidence, Trace
from .labels import Labels
from .moments import Anchors, Moments, Pooled
from .sampling import Sample
from .shown import Facts, count

__all__ = [
    "Aim",
    "Cells",
    "Exchange",
    "Target",
    "TargetRule",
    "Weights",
    "itself",
    "one_thread_between",
]


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
class Target(Facts):
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
