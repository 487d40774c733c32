r"""What a solver gets and returns: a problem, and its solution. The objective is a function of moments.

For a batch and a coordinate let :math:`m = \hat\mu_b` be the mean, :math:`u = \gamma - 1` the stretch and
:math:`v = \gamma m + \beta - m` the displacement of the mean. The mean squared distance to the target is
:math:`s^2 (u - u^*)^2 + (v - v^*)^2`, and the penalties act on :math:`u` and :math:`\beta = v - m u`.
The identity is :math:`u = v = 0`, so a batch that is on target does not move at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ..kernels.arrays import Floats, Ints
from ..progress import Progress, silent
from .labels import Labels
from .moments import Moments
from .shown import PrintsFacts, count
from .target import Rounds, Target, Trace, Weights

__all__ = ["History", "Problem", "RelativeRows", "Solution", "Solver", "Visited"]


class RelativeRows(NamedTuple):
    """Adapter rows relative to the batch means: stretch ``u = scale - 1``, displacement ``v`` of the mean."""

    u: Floats
    v: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Problem(PrintsFacts):
    r"""One refinement problem: per-batch moments, their target, and the weights.

    Attributes
    ----------
    mean, var
        (B, d) moments of each batch, :math:`m` and :math:`s^2`.
    share
        (B,) :math:`w_b = n_b / N`, the batch's weight in the average.
    n_batches
        The B of the identity term; more than the number of rows here if only some batches are solved for.
    target
        The target of each batch.
    weights
        Weights of the three terms.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [2.0], [5.0], [7.0]])
    >>> batch = ["a", "a", "b", "b"]
    >>> from scbatchprox import Exact, Moments, MomentTarget, Problem, Weights
    >>> moments = Moments.of(Z, batch)
    >>> problem = Problem.of(moments, MomentTarget()(moments), Weights())
    >>> problem.share.tolist()
    [0.5, 0.5]
    >>> problem.objective(problem.identity()) > problem.objective(problem.minimiser())
    True
    """

    mean: Floats
    var: Floats
    share: Floats
    n_batches: int
    target: Target
    weights: Weights

    def _facts(self) -> str:
        return f"{self.target._facts()}; {self.weights!r}"

    @classmethod
    def of(
        cls,
        moments: Moments,
        target: Target,
        weights: Weights,
        n_cells: Ints | int | None = None,
        n_batches: int | None = None,
    ) -> Problem:
        """Return the problem of fitting rows to their target.

        Shares are of the cells of ``moments``. ``n_cells`` (one number, or one per row) and ``n_batches``
        replace the numbers of cells and batches if these rows are only a part.
        """
        share = moments.n / (moments.n_cells if n_cells is None else n_cells)
        among = moments.batches.size if n_batches is None else n_batches
        return cls(moments.mean, moments.var, share, among, target, weights)

    @property
    def n_dims(self) -> int:
        """The number of coordinates d."""
        return int(self.mean.shape[1])

    @property
    def a(self) -> float:
        r""":math:`a = \lambda_{target} / d`, the weight of one coordinate's distance."""
        return self.weights.lambda_target / self.n_dims

    @property
    def nu(self) -> float:
        r""":math:`\nu = \lambda_{id} / (B d)`, the weight of one adapter entry's identity term."""
        return self.weights.lambda_id / (self.n_batches * self.n_dims)

    @property
    def goal(self) -> RelativeRows:
        """The target as adapter rows; both entries are zero where the batch is on target."""
        return RelativeRows(self.target.scale - 1.0, self.target.center - self.target.mean)

    def identity(self) -> RelativeRows:
        """Return the rows of the identity adapter, from which every solver starts."""
        return RelativeRows(np.zeros_like(self.mean), np.zeros_like(self.mean))

    def scale_shift(self, rows: RelativeRows) -> tuple[Floats, Floats]:
        r"""Return the adapter entries :math:`\gamma` and :math:`\beta` of ``rows``."""
        return 1.0 + rows.u, rows.v - self.mean * rows.u

    def rows(self, scale: Floats, shift: Floats) -> RelativeRows:
        r"""Return the rows of adapter entries :math:`\gamma` and :math:`\beta`."""
        u = scale - 1.0
        return RelativeRows(u, shift + self.mean * u)

    def distance(self, rows: RelativeRows) -> Floats:
        """Return the mean squared distance of each batch's cells to their targets (B, d)."""
        goal = self.goal
        return self.var * (rows.u - goal.u) ** 2 + (rows.v - goal.v) ** 2

    def objective(self, rows: RelativeRows) -> float:
        r"""Return the centralised objective :math:`F(\Theta)` of the paper."""
        beta = rows.v - self.mean * rows.u
        data = self.a * float(self.share @ self.distance(rows).sum(1))
        return data + self.nu * float((rows.u**2 + beta**2).sum())

    def gradient(self, rows: RelativeRows) -> tuple[Floats, Floats]:
        r"""Return :math:`\partial F / \partial\Gamma` and :math:`\partial F / \partial\Delta`."""
        goal = self.goal
        beta = rows.v - self.mean * rows.u
        aw = self.a * self.share[:, None]
        along_u, along_v = self.var * (rows.u - goal.u), rows.v - goal.v
        d_scale = 2.0 * (aw * (along_u + self.mean * along_v) + self.nu * rows.u)
        d_shift = 2.0 * (aw * along_v + self.nu * beta)
        return d_scale, d_shift

    def minimiser(self) -> RelativeRows:
        r"""Return the rows that minimise :math:`F`; unique if ``lambda_id > 0``."""
        return self.response(self.a * self.share[:, None], self.nu).of(self.goal)

    def response(self, a: Floats | float, p: float) -> Response:
        r"""Response of rows to a target term of weight ``a`` and a penalty of weight ``p``.

        :math:`\arg\min_y\ a\,[s^2 (u-u^*)^2 + (v-v^*)^2] + p\,[u^2 + \beta^2] = K y^*` with

        .. math::
            K = \frac{a}{D} \begin{bmatrix} (a+p) s^2 & p m \\ p m s^2 & a s^2 + p (1+m^2)
            \end{bmatrix}, \qquad D = a^2 s^2 + a p\,(1 + s^2 + m^2) + p^2 .

        D and the diagonal are sums of non-negative terms: nothing cancels for any mean. Without a penalty
        K is the identity, or where :math:`s = 0` its limit for p to 0: the smallest change of (scale,
        shift) that maps the batch to its target.
        """
        m, s2 = self.mean, self.var
        a = np.broadcast_to(np.asarray(a, float), m.shape)
        if p > 0:
            D = a**2 * s2 + a * p * (1.0 + s2 + m**2) + p**2
            k = a / D
            return Response(
                k * (a + p) * s2, k * p * m, k * p * m * s2, k * (a * s2 + p * (1.0 + m**2))
            )
        flat = s2 == 0
        return Response(
            np.where(flat, 0.0, 1.0),
            np.where(flat, m / (1.0 + m**2), 0.0),
            np.zeros_like(m),
            np.ones_like(m),
        )


class Response(NamedTuple):
    """A 2 x 2 matrix per batch and coordinate, acting on rows (u, v)."""

    uu: Floats
    uv: Floats
    vu: Floats
    vv: Floats

    def of(self, rows: RelativeRows) -> RelativeRows:
        """Apply the matrix."""
        return RelativeRows(
            self.uu * rows.u + self.uv * rows.v, self.vu * rows.u + self.vv * rows.v
        )

    def times(self, other: Response) -> Response:
        """The product of two matrices."""
        return Response(
            self.uu * other.uu + self.uv * other.vu,
            self.uu * other.uv + self.uv * other.vv,
            self.vu * other.uu + self.vv * other.vu,
            self.vu * other.uv + self.vv * other.vv,
        )

    @property
    def trace(self) -> Floats:
        """Sum of the two eigenvalues, both non-negative."""
        return self.uu + self.vv


#: For a solver that visits cells: the embedding, its labels, and what is called after every round.
Visited = tuple[Any, Labels] | tuple[Any, Labels, Progress]

#: A run has converged if its last round changed the adapter by less than this part of the total change.
CONVERGED = 1e-6


@dataclass(frozen=True, eq=False, repr=False)
class History(Rounds):
    r"""One entry per round, starting with the identity.

    Attributes
    ----------
    round
        0, 1, 2, ...; infinity for the fixed point.
    objective
        The centralised objective :math:`F(\Theta)`.
    distance
        Root mean squared distance of a cell to its target.
    step
        :math:`\lVert \Theta_t - \Theta_{t-1} \rVert_F`; zero for the identity.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [2.0], [5.0], [7.0]] * 10)
    >>> batch = ["a", "a", "b", "b"] * 10
    >>> from scbatchprox import BatchProx
    >>> history = BatchProx(target="moment", rounds=2).fit(Z, batch=batch).history_
    >>> history.frame()["round"].tolist()
    [0.0, 1.0, 2.0]
    >>> bool(history.distance[-1] < history.distance[0])
    True
    """

    objective: Floats
    distance: Floats
    step: Floats

    def _ended(self) -> str:
        distance = f"distance to the target {self.distance[0]:.3g} to {self.distance[-1]:.3g}"
        last = self.round[-1]
        return f"{'the fixed point' if np.isinf(last) else count(int(last), 'round')}, {distance}"


@dataclass(frozen=True, eq=False, repr=False)
class Solution(PrintsFacts):
    """Fitted rows of the adapter.

    Attributes
    ----------
    scale, shift
        (B, d) each.
    history
        Per round: of a solver, or the trace of a registration.
    converged
        Whether another round would change the adapter by less than one part in a million. ``False`` is
        not a failure: few rounds keep the refinement conservative.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [2.0], [5.0], [7.0]])
    >>> batch = ["a", "a", "b", "b"]
    >>> from scbatchprox import Exact, Moments, MomentTarget, Problem, Weights
    >>> moments = Moments.of(Z, batch)
    >>> problem = Problem.of(moments, MomentTarget()(moments), Weights())
    >>> solution = Exact().solve(problem, rounds=3)
    >>> solution.scale.shape, solution.converged
    ((2, 1), False)
    """

    scale: Floats
    shift: Floats
    history: History | Trace
    converged: bool

    def _facts(self) -> str:
        ended = "converged" if self.converged else "not converged"
        rows, coordinates = self.scale.shape
        size = f"{count(rows, 'row')}, {count(coordinates, 'coordinate')}"
        return f"{size}; {self.history._facts()}, {ended}"

    @classmethod
    def of(
        cls,
        problem: Problem,
        path: Iterable[tuple[float, RelativeRows]],
        converged: bool | None = None,
    ) -> Solution:
        """Return the last adapter of a path that starts at the identity; no other one is kept."""
        told: list[tuple[float, ...]] = []
        scale, shift = problem.scale_shift(problem.identity())
        for number, rows in path:
            last_scale, last_shift = scale, shift
            scale, shift = problem.scale_shift(rows)
            step = np.sqrt(((scale - last_scale) ** 2 + (shift - last_shift) ** 2).sum())
            distance = np.sqrt(problem.share @ problem.distance(rows).sum(1))
            told.append((number, problem.objective(rows), distance, step))
        history = History(*(np.array(numbers, float) for numbers in zip(*told, strict=True)))
        if converged is None:
            change = float(np.sqrt(((scale - 1.0) ** 2 + shift**2).sum()))
            converged = bool(history.step.size > 1 and history.step[-1] <= CONVERGED * change)
        return cls(scale, shift, history, converged)


class Solver(Protocol):
    """The interface of solvers, which fit adapter rows to a problem."""

    #: Whether the solver visits the cells again, so that they must be in memory.
    needs_cells: ClassVar[bool]

    def solve(
        self,
        problem: Problem,
        rounds: int | None,
        Z: Any = None,
        labels: Labels | None = None,
        progress: Progress = silent,
    ) -> Solution:
        """Run ``rounds`` rounds (``None``: the fixed point). The rest is for solvers that need cells."""
        ...
