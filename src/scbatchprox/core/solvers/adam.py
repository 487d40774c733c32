r"""The optimiser of the paper: Adam on mini-batches at every client, then FedAvg.

The gradient on a mini-batch only depends on its :math:`(n, \sum z, \sum z^2)`, here relative to the mean
of the batch. So the cost of a step is proportional to the entries of the adapter, and no deep-learning
framework is needed. A client has a copy of the whole adapter; the proximal and identity terms act on all
of it. Adam divides by the size of the gradient. So from the second round on, rows that a client has no data
for move too: an artefact of the paper's optimiser that the exact solver does not have.

Where a row without data goes only depends on the number of steps. So a client computes its own row, and the
others are computed once for all clients with as many steps: the same bits as with a copy for each client, at
a cost that grows with the number of batches and not with its square.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, ClassVar

import numpy as np

from ...errors import BadValue, Parameter
from ...kernels.blocks import native, split
from ...kernels.loops import compiled
from ...kernels.threads import get_num_threads, parallel_map
from ...progress import Progress, silent
from ..checks import check_number, check_rounds
from ..labels import Labels
from ..problem import Problem, RelativeRows, Solution
from ..sampling import hashes_of
from ..shown import Changed

__all__ = ["Adam"]

log = logging.getLogger(__name__)

#: Values that a loop works on at a time, some ten milliseconds: between two loops, Ctrl-C is obeyed.
AT_A_TIME = 1 << 22
#: Seconds that a run may take without an estimate of its end.
UNANNOUNCED = 10.0


@dataclass(frozen=True, repr=False)
class Adam(Changed):
    """Adam (Kingma & Ba 2015) with a fresh state for every client and round.

    Attributes
    ----------
    lr, betas, adam_eps
        Step size, decay rates and the constant in the denominator.
    local_epochs
        Passes over its own cells that a client makes in a round.
    batch_size
        Cells in a mini-batch; the last one of an epoch may be smaller.
    seed
        Seed of the shuffling. The random generator of a client in a round and epoch also depends on the
        content of its cells, but not on its name, on other batches, or on the order of its cells. So a
        client has the same result on any machine.

    Examples
    --------
    >>> import numpy as np
    >>> Z = np.array([[0.0], [2.0], [5.0], [7.0]] * 10)
    >>> batch = ["a", "a", "b", "b"] * 10
    >>> from scbatchprox import Adam, BatchProx
    >>> model = BatchProx(target="moment", solver=Adam(local_epochs=5, seed=1))
    >>> model.fit(Z, batch=batch).history_.round.tolist()
    [0.0, 1.0, 2.0, 3.0]
    """

    needs_cells: ClassVar[bool] = True

    lr: float = 5e-2
    local_epochs: int = 3
    batch_size: int = 256
    betas: tuple[float, float] = (0.9, 0.999)
    adam_eps: float = 1e-8
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("lr", "adam_eps"):
            check_number(name, getattr(self, name), positive=True)
        for name, least in (("local_epochs", 1), ("batch_size", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or value < least:
                raise BadValue(
                    "Expected ", Parameter(name), f" to be a whole number >= {least}, found {value!r}."
                )  # fmt: skip
        pair = isinstance(self.betas, tuple | list) and len(self.betas) == 2
        if not pair or not all(0 <= beta < 1 for beta in self.betas):
            raise BadValue(f"Expected two betas in [0, 1), found {self.betas!r}.")
        object.__setattr__(self, "betas", tuple(self.betas))  # JSON has lists

    def permutation(self, cells: np.ndarray, t: int, epoch: int) -> np.ndarray:
        """Return the order in which a client visits its cells (n, d) in an epoch of round ``t``."""
        return self._order(ClientCells.of(hashed(cells), np.arange(len(cells))), t, epoch)

    def _order(self, own: ClientCells, t: int, epoch: int) -> np.ndarray:
        # What SeedSequence(self.seed, spawn_key=...) makes of these words, in a quarter of the time.
        words = _words(self.seed)
        words += [0] * (4 - len(words))
        words += [own.digest >> 32, own.digest & 0xFFFFFFFF, t, epoch]
        sequence = np.random.SeedSequence(np.array(words, np.uint32))
        return own.rows[np.random.default_rng(sequence).permutation(own.rows.size)]

    def solve(
        self,
        problem: Problem,
        rounds: int | None,
        Z: Any = None,
        labels: Labels | None = None,
        progress: Progress = silent,
    ) -> Solution:
        """Run ``rounds`` rounds from the identity on the cells ``Z``; ``progress`` is called after each."""
        rounds = check_rounds(rounds)
        if rounds is None:
            raise BadValue(
                "Expected a number of rounds for the adam solver, found None; the fixed point (",
                Parameter("rounds=None"), ") is available with ", Parameter("solver='exact'"), ".",
            )  # fmt: skip
        if Z is None or labels is None:
            raise BadValue("Expected cells for the adam solver, found moments only.")
        Z = native(Z)
        own = parallel_map(partial(ClientCells.of, hashed(Z)), labels.rows())
        return Solution.of(problem, self._rounds(problem, rounds, Z, own, progress))

    def _rounds(
        self,
        problem: Problem,
        rounds: int,
        Z: np.ndarray,
        own: list[ClientCells],
        progress: Progress,
    ) -> Iterator[tuple[float, RelativeRows]]:
        """Yield the rows after each round."""
        theta = np.stack([np.ones_like(problem.mean), np.zeros_like(problem.mean)])
        yield 0, problem.identity()
        for t in range(rounds):
            started = time.monotonic()
            theta = self._round(problem, t, Z, own, theta)
            progress("rounds", t + 1, rounds)
            left = (rounds - t - 1) * (time.monotonic() - started)
            if t == 1 and left > UNANNOUNCED:  # the loops may have been compiled in the first one
                log.warning(
                    "scbatchprox: %s more rounds of adam take about %.0f seconds", rounds - 2, left
                )
            yield t + 1, problem.rows(*theta)

    def _round(
        self, problem: Problem, t: int, Z: np.ndarray, own: list[ClientCells], theta: np.ndarray
    ) -> np.ndarray:
        """The average of all clients' copies of the adapter ``theta`` (2, B, d) after round ``t``."""
        n_batches, stop = len(own), Event()
        rows, total = np.empty_like(theta), np.zeros_like(theta)
        goal = problem.goal
        sizes = np.array([self._mini_batches(one) for one in own])
        steps, which = np.unique(self.local_epochs * sizes, return_inverse=True)

        def clients(some: tuple[int, int]) -> None:
            for b in range(*some):
                data = problem.mean[b], goal.u[b], goal.v[b]
                run = _Run(self, problem, theta[:, b : b + 1])
                rows[:, b] = self._own_row(run, data, t, Z, own[b], stop)

        def average(some: tuple[int, int]) -> None:
            at = slice(*some)
            copies = self._without_data(problem, theta[:, at], steps, stop)
            # Added in the order of the batches, so that the rounding does not depend on the threads.
            for b in range(n_batches):
                if stop.is_set():
                    return
                weighted = problem.share[b] * copies[which[b]]
                if at.start <= b < at.stop:
                    weighted[:, b - at.start] = problem.share[b] * rows[:, b]
                total[:, at] += weighted

        threads = get_num_threads()
        parallel_map(clients, split(n_batches, 4 * threads), stop)
        # A few rows at a time, since there is a copy of them for each number of steps.
        parts = -(-steps.size * theta.size // AT_A_TIME)
        parallel_map(average, split(n_batches, max(threads, parts)), stop)
        return total

    def _mini_batches(self, own: ClientCells) -> int:
        return -(-own.rows.size // self.batch_size)

    def _own_row(
        self,
        run: _Run,
        data: tuple[np.ndarray, np.ndarray, np.ndarray],
        t: int,
        Z: np.ndarray,
        own: ClientCells,
        stop: Event,
    ) -> np.ndarray:
        """Run round ``t`` of a client with its cells of ``Z``; return its own row (2, d).

        ``data`` are the mean of its cells and its goal.
        """
        mean = data[0]
        some = max(1, AT_A_TIME // (self.batch_size * mean.size))
        sums = np.empty((min(some, self._mini_batches(own)), 2, mean.size))
        for epoch in range(self.local_epochs):
            order = self._order(own, t, epoch)
            for lo in range(0, order.size, some * self.batch_size):
                if stop.is_set():
                    return run.theta[:, 0]
                part = order[lo : lo + some * self.batch_size]
                means = sums[: -(-part.size // self.batch_size)]
                _mini_batch_means(Z, part, mean, self.batch_size, means)
                run.step(means, *data)
        return run.theta[:, 0]

    def _without_data(
        self, problem: Problem, theta: np.ndarray, steps: np.ndarray, stop: Event
    ) -> np.ndarray:
        """Where rows end (k, 2, B, d) that a client has no data for, after each of k numbers of steps."""
        run = _Run(self, problem, theta)
        found = np.empty((steps.size, *theta.shape))
        none = np.empty(0)
        some = max(1, AT_A_TIME // theta.size)
        for k, end in enumerate(steps):
            while run.done < end and not stop.is_set():
                run.step(np.empty((min(some, end - run.done), 2, 0)), none, none, none)
            found[k] = run.theta
        return found


class _Run:
    """Adam on some rows of the adapter, of which the first may have data."""

    def __init__(self, options: Adam, problem: Problem, start: np.ndarray) -> None:
        self.start = np.ascontiguousarray(start)
        self.theta = self.start.copy()
        self.done = 0
        self._grad = np.empty_like(self.theta)
        self._state = np.zeros((2, *self.theta.shape))  # first and second moment of the gradient
        self._weights = problem.a, problem.weights.mu, problem.nu
        self._options = options.lr, *options.betas, options.adam_eps

    def step(self, sums: np.ndarray, mean: np.ndarray, u: np.ndarray, v: np.ndarray) -> None:
        """One step for each mini-batch."""
        _adam_steps(
            self.theta, self.start, self._state, self._grad, sums, self.done, 0, mean, u, v,
            self._weights, self._options,
        )  # fmt: skip
        self.done += len(sums)


@dataclass(frozen=True, eq=False)
class ClientCells:
    """The cells of a client, sorted by the hash of their values.

    Attributes
    ----------
    rows
        (n,) row numbers. Equal cells have equal hashes; their order does not matter.
    digest
        A 64-bit hash of all cells together.
    """

    rows: np.ndarray
    digest: int

    @classmethod
    def of(cls, hashes: np.ndarray, rows: np.ndarray) -> ClientCells:
        """Sort ``rows``, in place since there are as many as cells, by the hashes of all cells."""
        own = hashes[rows]
        rows[:] = rows[np.argsort(own, kind="stable")]
        return cls(rows, int(own.sum(dtype=np.uint64)))


def hashed(Z: np.ndarray) -> np.ndarray:
    """The hashes of all cells; equal float32 and float64 values have the same."""
    return hashes_of(Z, dtype=np.float64)


def _words(number: int) -> list[int]:
    """The 32-bit words of a number, the lowest first."""
    return [number & 0xFFFFFFFF, *(_words(number >> 32) if number >> 32 else [])]


@compiled("out")
def _mini_batch_means(
    Z: np.ndarray, order: np.ndarray, mean: np.ndarray, size: int, out: np.ndarray
) -> None:
    """Mean deviation, and mean squared deviation, from the batch's mean for each mini-batch."""
    d = Z.shape[1]
    out[:] = 0.0
    for k in range(out.shape[0]):
        lo, hi = k * size, min((k + 1) * size, order.shape[0])
        s1, s2 = out[k, 0], out[k, 1]
        for i in range(lo, hi):
            z = Z[order[i]]
            for j in range(d):
                x = np.float64(z[j]) - mean[j]
                s1[j] += x
                s2[j] += x * x
        for j in range(d):
            s1[j] /= hi - lo
            s2[j] /= hi - lo


@compiled("theta", "state", "grad")
def _adam_steps(
    theta: np.ndarray,
    theta_t: np.ndarray,
    state: np.ndarray,
    grad: np.ndarray,
    sums: np.ndarray,
    done: int,
    b: int,
    m: np.ndarray,
    goal_u: np.ndarray,
    goal_v: np.ndarray,
    weights: tuple[float, float, float],
    options: tuple[float, float, float, float],
) -> None:
    """One Adam step per mini-batch on rows ``theta`` (2, B, d) of the adapter.

    Row ``b`` has data, unless ``m`` is empty. ``grad`` is a buffer of the same shape.
    """
    a, mu, nu = weights
    lr, beta1, beta2, eps = options
    _, n_batches, d = theta.shape
    for k in range(sums.shape[0]):
        for part in range(2):
            for c in range(n_batches):
                for j in range(d):
                    start = 1.0 - part
                    x = theta[part, c, j]
                    grad[part, c, j] = 2.0 * (mu * (x - theta_t[part, c, j]) + nu * (x - start))
        for j in range(m.shape[0]):
            u = theta[0, b, j] - 1.0
            # The distance of a cell z = m + x from its target is e_u x + e_v.
            e_u = u - goal_u[j]
            e_v = theta[1, b, j] + m[j] * u - goal_v[j]
            x1, x2 = sums[k, 0, j], sums[k, 1, j]
            along_x, along_1 = e_u * x2 + e_v * x1, e_u * x1 + e_v
            grad[0, b, j] += 2.0 * a * (along_x + m[j] * along_1)
            grad[1, b, j] += 2.0 * a * along_1
        step = done + k + 1
        unbias1, unbias2 = 1.0 - beta1**step, 1.0 - beta2**step
        for part in range(2):
            for c in range(n_batches):
                for j in range(d):
                    g = grad[part, c, j]
                    first = beta1 * state[0, part, c, j] + (1.0 - beta1) * g
                    second = beta2 * state[1, part, c, j] + (1.0 - beta2) * g * g
                    state[0, part, c, j], state[1, part, c, j] = first, second
                    denominator = np.sqrt(second / unbias2) + eps
                    theta[part, c, j] -= lr * (first / unbias1) / denominator
