r"""Where batches meet: the weights of populations at common centres, and the goals that follow from them.

The populations :math:`x_p` of batch b (means of :math:`n_p` cells) are displaced to
:math:`y_p = x_p + v_p`. With :math:`D_{pk} = \lVert y_p - c_k \rVert^2 / h^2`, where :math:`h` is the spacing
of the centres, the weight of population p at centre k is

.. math:: W_{pk} = \underbrace{\operatorname{softmax}_k(-D_{pk}/\tau)}_{\text{k is nearest to p}}
    \;\underbrace{\operatorname{softmax}_{p \in b}(\log n_p - D_{pk}/\tau)}
    _{\text{p is nearest to k of its batch}} .

Both conditions must hold, so a type that only one batch has is not matched to another type. The mean of a
batch at a centre, :math:`m_{bk}`, is pulled to the mean of all *other* batches there, :math:`c_k^{-b}`. The
weight of the pull decreases with its length. Batches only exchange sums: (K,) cells and (K, d) totals.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from ...core.checks import overflow_error
from ...kernels import matching
from ...kernels.arrays import Floats, Ints
from ...kernels.loops import add_rows

__all__ = [
    "NEGLIGIBLE",
    "NONE",
    "Batches",
    "Everyone",
    "Goals",
    "Met",
    "Stack",
    "Sums",
    "added",
    "composition",
    "meet",
    "nearest",
    "pull_weight",
    "spacing",
    "squares",
]

#: Numbers of cells and weights below this count as zero, and no smaller number is divided by.
NONE = 1e-9
#: If other batches have less than this part of the cells at a centre, only the batch itself is there.
NEGLIGIBLE = 1e-6
#: Denominators are at least this, also in single precision.
TINY = 1e-37
#: Exponents are at least this: products of exponentials are then normal numbers, which take less time.
LOWEST = -300.0
#: A squared distance that is larger than the median by this factor counts as no larger.
FAR = 16.0
#: A population this near to a plane, as a part of the spread, lies on it: rounding must not decide on which
#: side it is.
TIE = 1e-9
#: Squared distances over the variance within populations, at most, so that no sum of them overflows.
LARGEST = 1e150
#: Batches in a stack, at most: this limits the memory of its arrays.
STACK_SIZE = 64
#: With at least this many populations, runs are on threads. Below, Python's global lock prevents a gain.
MANY_POPULATIONS = 1500


class Sums(NamedTuple):
    """The number of cells at each centre, counted by their weights, and the sum of their positions."""

    mass: Floats  # (..., K)
    total: Floats  # (..., K, d)

    @property
    def mean(self) -> Floats:
        """(..., K, d) mean positions; meaningless where there are no cells."""
        return self.total / np.maximum(self.mass, NONE)[..., None]

    def without(self, own: Sums) -> Sums:
        """(b, K) sums of all other batches, for each of b batches; none at centres that only it has."""
        rest = self.mass - own.mass
        rest = np.where(rest > np.maximum(NEGLIGIBLE * self.mass, NONE), rest, 0.0)
        return Sums(rest, np.where(rest[..., None] > 0, self.total - own.total, 0.0))

    def centres(self, most: int | None = None) -> Floats:
        """(K, d) mean positions where there are cells; the ``most`` largest."""
        # Ties are decided by the distance from the origin: regions have no order that turns with the data.
        mean = self.mean
        order = np.lexsort((np.einsum("kd,kd->k", mean, mean), -self.mass))[:most]
        return mean[order[self.mass[order] > NONE]]


def added(parts: Iterable[Sums]) -> Sums:
    """The sum of all parts."""
    return reduce(lambda a, b: Sums(a.mass + b.mass, a.total + b.total), parts)


class Met(NamedTuple):
    """The batches of a stack at the centres."""

    weight: Floats  # (b, P, K)
    held: Floats  # (b, P, K) cells of each population by these weights
    own: Sums  # (b, K), (b, K, d)
    present: Floats  # (b, K) the cells that each centre is nearest to, softly
    nearest: np.ndarray  # (b, P) the centre that is nearest to each population


class Goals(NamedTuple):
    """Where the centres of a batch would go: for each centre a weight, a goal, its noise, and its place."""

    weight: Floats  # (b, K) cells there that are matched
    goal: Floats  # (b, K, d) displacement that the centre asks for
    noise: Floats  # (b, K, K) covariance of the goals by chance, per coordinate
    place: Floats  # (b, K, d) mean of the batch there, before it is displaced


@dataclass(frozen=True, eq=False)
class Stack:
    """Some batches with similar numbers of populations, stacked into arrays.

    Attributes
    ----------
    x
        (b, P, d) positions of populations, relative to an origin that all batches share; zero for padding.
    cells
        (b, P) cells of each population, 0 for padding.
    variance
        Within populations, per coordinate.
    """

    x: Floats
    cells: Floats
    variance: float

    @property
    def share(self) -> Floats:
        """(b, P) part of the cells of a batch."""
        return np.asarray(self.cells / self.cells.sum(1, keepdims=True))

    def means(self) -> Floats:
        """(b, d) means of the batches."""
        return np.asarray(np.einsum("bp,bpd->bd", self.share, self.x))

    def by_group(self, y: Floats, group: np.ndarray, n_groups: int, part: np.ndarray) -> Sums:
        """Sums of populations at ``y`` (b, P, d) by group (b, P), of the batches ``part`` (b,)."""
        n = (self.cells * part[:, None]).ravel()
        return Sums(*add_rows(y.reshape(n.size, -1), n, group.ravel().astype(np.int32), n_groups))

    def second_moments(self, y: Floats, part: np.ndarray) -> tuple[float, Floats, Floats]:
        """Cells, sum of positions, and squares (d, d) about the means of batches, of those in ``part``."""
        n, flat = (self.cells * part[:, None]).ravel(), y.reshape(-1, y.shape[2])
        about = (y - np.einsum("bp,bpd->bd", self.share, y)[:, None]).reshape(flat.shape)
        return float(n.sum()), n @ flat, about.T @ (n[:, None] * about)

    def covariances(
        self, y: Floats, centres: Floats, part: np.ndarray
    ) -> tuple[Floats, Floats, float]:
        """(d, d) sums of squares about the nearest centre and about the mean of the batch; their cells."""
        n, d = (self.cells * part[:, None]).ravel(), y.shape[2]
        about = y - centres[nearest(y, centres)]
        spread = y - np.einsum("bp,bpd->bd", self.share, y)[:, None]
        within, between = (
            flat.T @ (n[:, None] * flat) for flat in (about.reshape(-1, d), spread.reshape(-1, d))
        )
        return within, between, float(n.sum())

    def divided(
        self, y: Floats, middle: Floats, axes: Floats, spread: float, part: np.ndarray
    ) -> Sums:
        """Sums of the populations in each part of space that planes through ``middle`` divide.

        The planes are orthogonal to the columns of ``axes`` (d, m).
        """
        side = (y - middle) @ axes > TIE * spread
        m = axes.shape[1]
        return self.by_group(y, side @ (1 << np.arange(m)), 1 << m, part)

    def nearest(self, y: Floats, centres: Floats, part: np.ndarray) -> Sums:
        """Sums of the populations nearest to each centre (K, d): a step of k-means."""
        return self.by_group(y, nearest(y, centres), len(centres), part)

    def counts(self, y: Floats, centres: Floats) -> Floats:
        """(b, K) cells of the populations nearest to each centre."""
        K = len(centres)
        flat = nearest(y, centres) + K * np.arange(len(y))[:, None]
        found = np.bincount(flat.ravel(), weights=self.cells.ravel(), minlength=K * len(y))
        return found.astype(np.float64).reshape(len(y), K)

    def meet(self, y: Floats, centres: Floats, width: float, part: np.ndarray) -> Met:
        """Weights at the centres of populations at ``y``, and their sums; ``width`` is a squared length.

        Batches that are not ``part`` (b,) of the consensus count nothing.
        """
        met = meet(y, centres[None], self.cells, width)
        if not part.all():
            for array in (met.weight, met.held, *met.own):
                array[~part] = 0.0
        return met

    def goals(
        self, y: Floats, met: Met, all_sums: Sums, unit: float, moved: Floats | None = None
    ) -> Goals:
        """Goals of batches whose populations are at ``y``; pulls as long as ``unit`` squared count less.

        ``moved`` (b, 1, d) is their displacement, if it is the same for all populations of a batch.
        """
        cells = np.swapaxes(met.held, 1, 2)
        noise = np.matmul(cells, met.weight)
        mass, total = met.own
        place = np.matmul(cells, self.x) if moved is None else total - mass[..., None] * moved
        limits = self.variance, unit, NONE, NEGLIGIBLE
        weight, goal = matching.goals((mass, total), all_sums, place, noise, limits)
        return Goals(weight, goal, noise, place)


class Everyone(NamedTuple):
    """Numbers of cells and batches everywhere, and the variance within populations, per coordinate."""

    n_cells: float
    n_batches: float
    variance: float


class Batches:
    """Populations of batches in stacks. The batches of a stack have similar numbers of populations.

    Attributes
    ----------
    everyone
        Of all batches everywhere, if these are some of them.
    n_cells
        (B,) cells of each batch.
    stacks, members, rows
        The stacks; for each stack, (b,) which batches it holds, and (b, P) the populations of these
        batches, -1 where a batch has fewer than P.
    """

    def __init__(self, X: Floats, n: Ints, start: Ints, everyone: Everyone) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.einsum("ij,ij->", X, X) < LARGEST:
                raise overflow_error()
        sizes = np.diff(start)
        self.everyone, self.n_rows = everyone, len(X)
        self.n_cells = np.add.reduceat(n, start[:-1]).astype(float)
        self.rows: list[np.ndarray] = []
        self.stacks: list[Stack] = []
        self.members: list[np.ndarray] = []
        bucket = np.ceil(np.log2(sizes)).astype(int)
        for size in np.unique(bucket):
            similar = np.flatnonzero(bucket == size)
            for lo in range(0, similar.size, STACK_SIZE):
                members = similar[lo : lo + STACK_SIZE]
                index = start[members][:, None] + np.arange(sizes[members].max())
                exists = index < start[members + 1][:, None]
                rows = np.where(exists, index, -1)
                x = np.where(exists[:, :, None], X[rows], 0.0)
                cells = np.where(exists, n[rows], 0.0)
                self.members.append(members)
                self.rows.append(rows)
                self.stacks.append(Stack(x, cells, everyone.variance))

    @property
    def many(self) -> bool:
        """Whether there are so many populations that it takes less time on threads."""
        return self.n_rows >= MANY_POPULATIONS

    def by_population(self, parts: list[Any]) -> Any:
        """Values of all populations, in order, from the values of each stack."""
        out: np.ndarray = np.zeros((self.n_rows, *parts[0].shape[2:]), parts[0].dtype)
        for rows, part in zip(self.rows, parts, strict=True):
            out[rows[rows >= 0]] = part[rows >= 0]
        return out

    def by_batch(self, parts: list[np.ndarray]) -> Floats:
        """Values of all batches, in order, from the values of each stack."""
        out: np.ndarray = np.zeros((self.n_cells.size, *parts[0].shape[1:]), parts[0].dtype)
        for members, part in zip(self.members, parts, strict=True):
            out[members] = part
        return out

    def in_stacks(self, values: np.ndarray) -> list[np.ndarray]:
        """Values of batches, split into those of each stack."""
        return [values[members] for members in self.members]

    def means(self) -> Floats:
        """(B, d) means of the batches."""
        return self.by_batch([stack.means() for stack in self.stacks])


def composition(own: Floats, rest: Floats, cells: Floats) -> Floats:
    """(b,) how much the shares of centres differ between batches and all others: 0, equal, to 1, disjoint.

    The total variation between ``own`` (b, K) and ``rest`` (b, K) cells at the centres, less what chance
    explains. All ``cells`` (b, P) of a population are at one centre, so chance is that of drawing as many
    populations, not as many cells. NaN without others.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = cells.sum(1) ** 2 / (cells**2).sum(1)
        p, q = (part / part.sum(1, keepdims=True) for part in (own, rest))
        chance = np.sqrt(2.0 * q * (1.0 - q) / (np.pi * drawn[:, None])).sum(1) / 2.0
    total = np.abs(p - q).sum(1) / 2.0
    found: Floats = np.sqrt(np.maximum(total**2 - chance**2, 0.0))
    return found


def meet(
    y: Floats, centres: Floats, cells: Floats, width: float, absent: np.ndarray | None = None
) -> Met:
    """Weights :math:`W_{pk}` of populations at ``y`` (b, P, d), and their sums.

    ``centres`` (a, K, d) and ``cells`` (c, P) are each for as many of the b batches in order. With ``absent``
    (a, K), which tells where there is no centre, the nearest centres are not looked for.
    """
    groups, K, d = centres.shape
    both = np.empty((2, *y.shape[:2], K), y.dtype)
    if groups == 1:
        np.matmul(y, centres[0].T, out=both[0])
    else:  # one product for all that share their centres
        products = both[0].reshape(groups, -1, K)
        np.matmul(y.reshape(groups, -1, d), np.swapaxes(centres, 1, 2), out=products)
    squared = np.einsum("akd,akd->ak", centres, centres)
    if absent is not None:
        squared[absent] = np.inf
    lengths = np.einsum("bpd,bpd->bp", y, y)
    at = matching.exponents(both, lengths, squared, cells, width, LOWEST, absent is None)
    np.exp(both, out=both)
    mass, present = matching.weights(both, cells)
    total = np.matmul(np.swapaxes(both[1], 1, 2), y)
    return Met(both[0], both[1], Sums(mass, total), present, at)


def pull_weight(pull: Floats, unit: float) -> Floats:
    """(...,) the weight of pulls (..., d): 1 for the shortest, 1/4 at the squared length ``unit``."""
    found: Floats = (1.0 + np.einsum("...d,...d->...", pull, pull) / unit) ** -2.0
    return found


def spacing(centres: Floats) -> float:
    """Mean squared distance of a centre to the nearest other one; 1 if all are at one place.

    At most :data:`FAR` times the median counts: one batch that is far from all others must not decide what
    is near.
    """
    D = squares(centres, centres)
    np.fill_diagonal(D, np.inf)
    nearest = D.min(1)
    if len(centres) < 2:
        return 1.0
    found = float(np.minimum(nearest, FAR * np.median(nearest)).mean())
    return found or 1.0


def nearest(y: Floats, centres: Floats) -> np.ndarray:
    """(b, P) the centre (K, d) that is nearest to each population at ``y`` (b, P, d)."""
    score = np.matmul(y, centres.T)
    score -= 0.5 * np.einsum("kd,kd->k", centres, centres)
    return np.asarray(score.argmax(2))


def squares(a: Floats, b: Floats) -> Floats:
    """(..., n, m) squared distances between rows that are centred at the origin."""
    # scipy's cdist takes no stacks: 2 to 5 times as long for 3 to 32 batches of 30 to 400, no more exact.
    D: Floats = np.matmul(a, np.swapaxes(b, -1, -2))
    D *= -2.0
    D += np.einsum("...pd,...pd->...p", a, a)[..., None]
    D += np.einsum("...pd,...pd->...p", b, b)[..., None, :]
    np.maximum(D, 0.0, out=D)
    return D
