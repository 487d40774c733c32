r"""One round of registration: K centres that all batches share, and a displacement field for each batch.

The populations :math:`x_p` of batch b (means of :math:`n_p` cells) are displaced to
:math:`y_p = x_p + v_p`. With :math:`D_{pk} = \lVert y_p - c_k \rVert^2 / h^2`, where :math:`h^2` is the mean
squared spacing of populations, the weight of population p at centre k is

.. math:: W_{pk} = \underbrace{\operatorname{softmax}_k(-D_{pk}/\tau)}_{\text{k is nearest to p}}
    \;\underbrace{\operatorname{softmax}_{p \in b}(-D_{pk}/\tau)}_{\text{p is nearest to k of its batch}} .

Both conditions must hold, so a type that only one batch has is not matched to another type. The mean of a
batch at a centre, :math:`m_{bk}`, is pulled to the mean of all *other* batches there, :math:`c_k^{-b}`. The
weight of the pull decreases with its length. The displacements of a batch are a field: a shift and a smooth
part, a Gaussian process over its populations. So unmatched populations follow their batch.

Batches only exchange sums: (K,) masses and (K, d) totals (:class:`.sums.Sums`). :meth:`Stack.assigned`
computes those of some batches, and :meth:`Stack.updated` moves these batches, given the sums of all. A sum
over sites or a saved consensus can supply the latter. Several independent sets of centres (seedings) are
computed at once: the first axis, S, of every array that depends on centres.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ...kernels.arrays import Floats
from .settings import PopulationSettings
from .sums import NONE, Sums

__all__ = ["Assignment", "Stack", "Strengths", "squares"]

#: Part of a population's weight that its nearest centres get even if another population is nearer to them.
#: So every population counts at some centre.
LEAK = 1e-6
#: A population this near to a plane, in spacings, lies on it. In a run that starts from a common mean,
#: batches with a single population lie on all planes, and rounding must not decide on which side they are.
TIE = 1e-6
#: Added to denominators that may be zero.
TINY = 1e-300


@dataclass(frozen=True)
class Strengths:
    """Weights of two terms of a round, relative to the weight of the evidence.

    Attributes
    ----------
    prior
        Of the identity term, which pulls the field to zero.
    damping
        Of the proximal term, which pulls the field to that of the previous round.
    """

    prior: float
    damping: float


class Assignment(NamedTuple):
    """Weights of the populations of some batches at the centres, and the sums of each batch."""

    weight: Floats  # (S, B, P, K)
    own: Sums  # (S, B, K), (S, B, K, d)

    @property
    def sums(self) -> Sums:
        """Sums over the batches."""
        return Sums(self.own.mass.sum(1), self.own.total.sum(1))


@dataclass(frozen=True, eq=False)
class Stack:
    """Some batches with similar numbers of populations, stacked into arrays.

    Attributes
    ----------
    x
        (B, P, d) positions of populations, relative to an origin that all batches share; padded with
        zeros for batches with fewer than P.
    weight
        (B, P) weights, 0 for padding; the sum over a batch is its number of populations.
    kernel
        (B, P, P) covariance of the field: 1 for the shift, plus that of the smooth part.
    laplacian
        (B, P, P) the quadratic form x' L x is the weighted sum of squared distances between neighbours.
    unit
        :math:`h^2`.
    """

    x: Floats
    weight: Floats
    kernel: Floats
    laplacian: Floats
    unit: float
    settings: PopulationSettings

    @classmethod
    def of(cls, x: Floats, weight: Floats, unit: float, settings: PopulationSettings) -> Stack:
        """Batches with populations at ``x``."""
        share = weight / weight.sum(1, keepdims=True)
        centred = x - np.einsum("bp,bpd->bd", share, x)[:, None]  # so that squares do not cancel
        D = squares(centred, centred)
        kernel = 1.0 + np.exp(-D / (2.0 * settings.length * unit))
        return cls(x, weight, kernel, _laplacian(D, weight, settings.neighbours), unit, settings)

    @property
    def share(self) -> Floats:
        """(B, P) weights with sum 1 in each batch."""
        return np.asarray(self.weight / self.weight.sum(1, keepdims=True))

    def means(self) -> Floats:
        """(B, d) weighted means of the batches."""
        return np.asarray(np.einsum("bp,bpd->bd", self.share, self.x))

    def shifted(self, shift: Floats) -> Stack:
        """The batches shifted by ``shift`` (B, d)."""
        return replace(self, x=self._without_padding(self.x + shift[:, None]))

    def mirrored(self, flip: Floats) -> Stack:
        """The batches mirrored about their means in the coordinates where ``flip`` (d,) is -1."""
        means = self.means()[:, None]
        return replace(self, x=self._without_padding(means + flip * (self.x - means)))

    def divided(self, v: Floats, middle: Floats, planes: Floats) -> Sums:
        """Sums of the populations in each part of space that planes (S, d, m) through ``middle`` divide."""
        y, m = self.x + v, planes.shape[2]
        side = np.matmul(y - middle[:, None, None], planes[:, None]) > TIE * np.sqrt(self.unit)
        return _by_group(y, self.weight, side @ (1 << np.arange(m)), 1 << m)

    def kmeans_step(self, v: Floats, centres: Sums) -> Sums:
        """Sums of the populations nearest to each centre."""
        y = self.x + v
        D = squares(y, centres.mean[:, None])
        nearest = np.where(centres.nonempty[:, None, None], D, np.inf).argmin(3)
        return _by_group(y, self.weight, nearest, centres.mass.shape[1])

    def assigned(self, v: Floats, centres: Sums, temperature: float) -> Assignment:
        """Weights at the centres of populations displaced by ``v`` (S, B, P, d), and their sums."""
        y = self.x + v
        L = squares(y, centres.mean[:, None])
        L *= -1.0 / (self.unit * temperature)
        np.copyto(L, -np.inf, where=~centres.nonempty[:, None, None])
        nearest_centre = _softmax(L, 3)
        np.copyto(L, -np.inf, where=self.weight[..., None] <= 0)
        W = _softmax(L, 2)
        W *= nearest_centre
        H = W + LEAK * nearest_centre
        H *= self.weight[..., None]
        return Assignment(W, Sums(H.sum(2), np.matmul(np.swapaxes(H, 2, 3), y)))

    def updated(
        self,
        v: Floats,
        assigned: Assignment,
        all_sums: Sums,
        temperature: float,
        strengths: Strengths,
        smooth: bool,
    ) -> Floats:
        """(S, B, P, d) displacements after one round.

        ``all_sums`` are those of all batches, including these.
        """
        rest = all_sums.without(assigned.own)
        pull = np.where(rest.nonempty[..., None], rest.mean - assigned.own.mean, 0.0)
        length = np.einsum("sbkd,sbkd->sbk", pull, pull)
        length *= self.settings.temperature / (self.unit * temperature)
        strength = rest.mass / np.maximum(all_sums.mass, NONE)[:, None]
        strength *= (1.0 + length) ** -self.settings.power
        weight = assigned.weight * strength[:, :, None]
        evidence = weight.sum(3)
        goal = np.matmul(weight, pull)
        goal /= np.maximum(evidence, NONE)[..., None]
        goal += v
        return self._field(v, goal, self.weight * evidence, strengths, smooth)

    def met(self, own: Sums, all_sums: Sums) -> Floats:
        """(S, B) part of each batch, 0 to 1, that lies where other batches are.

        It is the mean closeness of the batch to the others at each centre, weighted by its mass there.
        """
        rest = all_sums.without(own)
        apart = np.where(rest.nonempty[..., None], rest.mean - own.mean, np.inf)
        near = np.exp(-np.einsum("sbkd,sbkd->sbk", apart, apart) / self.unit)
        return np.asarray((own.mass * near).sum(2) / np.maximum(own.mass.sum(2), NONE))

    def nearest(self, v: Floats, centres: Sums) -> tuple[Floats, np.ndarray]:
        """(S, B, P) distances of populations to the nearest centre, in units of the spacing, and its number.

        ``centres`` are those of all batches (S, 1, K), or for each batch those of all others (S, B, K).
        """
        D = squares(self.x + v, centres.mean)
        D = np.where(centres.nonempty[:, :, None], D, np.inf)
        return np.sqrt(D.min(3) / self.unit), D.argmin(3)

    def fit(self, rest: Sums) -> Floats:
        """(S, B) how well batches fit the centres of all others (S, B, K), 0 to 2.

        It is the mean closeness of populations to their nearest centre plus that of centres to their
        nearest population.
        """
        near = np.exp(-squares(self.x[None], rest.mean) / self.unit)
        near *= (rest.nonempty[:, :, None]) & (self.weight[..., None] > 0)
        populations = (self.share * near.max(3)).sum(2)
        centres = (rest.mass * near.max(2)).sum(2) / np.maximum(rest.mass.sum(2), NONE)
        return np.asarray(populations + centres)

    def _without_padding(self, x: Floats) -> Floats:
        return np.where(self.weight[..., None] > 0, x, 0.0)

    def _field(
        self, v: Floats, goal: Floats, weight: Floats, strengths: Strengths, smooth: bool
    ) -> Floats:
        r"""The field nearest to ``goal``, with penalties for its size and for its change.

        .. math:: \min_f \sum_p w_p \lVert f_p - g_p \rVert^2 + \rho \lVert f \rVert^2
            + \delta \lVert f - v \rVert^2

        in the norm of the Gaussian process. The solution is
        :math:`\alpha v + K (W K + (\rho + \delta) I)^{-1} W (g - \alpha v)`,
        :math:`\alpha = \delta / (\rho + \delta)`.
        """
        noise = strengths.prior + strengths.damping
        prior_mean = v * (strengths.damping / noise if noise > 0 else 0.0)
        noise = max(noise, NONE)
        goal -= prior_mean
        goal *= weight[..., None]
        if not smooth:
            total = weight.sum(2)[..., None, None]
            return np.asarray(prior_mean + goal.sum(2, keepdims=True) / (total + noise))
        A = weight[..., None] * self.kernel
        index = np.arange(A.shape[2])
        A[..., index, index] += noise
        field = prior_mean + np.matmul(self.kernel, np.linalg.solve(A, goal))
        return self._contraction_limited(field)

    def _contraction_limited(self, v: Floats) -> Floats:
        """The field, with a reduced smooth part if it brings neighbours in a batch too close together.

        Along ``mean + theta * (v - mean)`` the squared distance of neighbours is a parabola in theta. The
        result has the largest theta up to 1 that leaves the part ``settings.apart`` of the squared distance.
        """
        x, Lv = self.x - self.means()[:, None], np.matmul(self.laplacian, v)
        xx = np.einsum("bpd,bpd->b", x, np.matmul(self.laplacian, x))
        xv, vv = np.einsum("bpd,sbpd->sb", x, Lv), np.einsum("sbpd,sbpd->sb", v, Lv)
        discriminant = xv**2 - vv * (1.0 - self.settings.apart) * xx
        root, square = np.sqrt(np.maximum(discriminant, 0.0)), np.maximum(vv, NONE * xx + TINY)
        low, high = (-xv - root) / square, (-xv + root) / square
        limited = (discriminant > 0) & (xv < 0) & (low < 1.0) & (high > 1.0)
        if not limited.any():
            return v
        mean = np.einsum("bp,sbpd->sbd", self.share, v)[:, :, None]
        theta = np.where(limited, low, 1.0)[..., None, None]
        return np.where(limited[..., None, None], mean + theta * (v - mean), v)


def squares(a: Floats, b: Floats) -> Floats:
    """(..., n, m) squared distances between rows that are centred at the origin."""
    # scipy's cdist takes no stacks: 2 to 5 times as long for 3 to 32 batches of 30 to 400, no more exact.
    D: Floats = np.matmul(a, np.swapaxes(b, -1, -2))
    D *= -2.0
    D += np.einsum("...pd,...pd->...p", a, a)[..., None]
    D += np.einsum("...pd,...pd->...p", b, b)[..., None, :]
    np.maximum(D, 0.0, out=D)
    return D


def _softmax(L: Floats, axis: int) -> Floats:
    """Softmax along an axis; zeros where all values are minus infinity."""
    # scipy's gives NaN there, and takes 0.9 to 1.9 times as long (1.2 on average of stacks as above).
    top = L.max(axis, keepdims=True)
    np.copyto(top, 0.0, where=np.isinf(top))
    E: Floats = np.exp(L - top)
    E /= np.maximum(E.sum(axis, keepdims=True), NONE)
    return E


def _laplacian(D: Floats, weight: Floats, neighbours: int) -> Floats:
    """Laplacian of the graph of each population and its nearest neighbours, from squared distances ``D``."""
    P = D.shape[1]
    exists, index = weight > 0, np.arange(P)
    distance = np.where(exists[:, :, None] & exists[:, None], D, np.inf)
    distance[:, index, index] = np.inf
    m = min(neighbours, P - 1)
    L = np.zeros_like(D)
    if m < 1:
        return L
    near = np.argpartition(distance, m - 1, axis=2)[:, :, :m]
    edge = np.isfinite(np.take_along_axis(distance, near, 2)) * weight[:, :, None]
    np.put_along_axis(L, near, -edge, 2)
    L += np.swapaxes(L, 1, 2)
    L[:, index, index] = -L.sum(2)
    return L


def _by_group(y: Floats, weight: Floats, group: np.ndarray, K: int) -> Sums:
    """Sums of populations at ``y`` (S, B, P, d) by group (S, B, P), a number below K."""
    S, d = len(y), y.shape[3]
    flat = (group + K * np.arange(S)[:, None, None]).ravel()
    weighted = (weight[..., None] * y).reshape(-1, d)
    order = np.argsort(flat, kind="stable")
    found, start = np.unique(flat[order], return_index=True)
    total = np.zeros((S * K, d))
    total[found] = np.add.reduceat(weighted[order], start)
    each = np.broadcast_to(weight, group.shape).ravel()
    mass: Floats = np.bincount(flat, weights=each, minlength=S * K).astype(np.float64)
    return Sums(mass.reshape(S, K), total.reshape(S, K, d))
