"""The paper's rounds, simulated: clients at several sites that know their own cells and sums over all.

Every client has a copy of the whole adapter, and a server averages the copies, weighted by numbers of cells.
The result must be that of the local solvers, which see all cells.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

import oracles
from adam_copies import client
from data import labels_of, make_cells
from in_step import in_process
from scbatchprox import Adam, BatchProx, Moments, MomentTarget, Pooled, Problem, Target, Weights
from scbatchprox.core.solvers.adam import ClientCells, hashed
from scbatchprox.federated.fit import pooled_moments

SIZES = [(300, 41), (257,), (60, 33, 20), (90,)]
ROUNDS = 3


@dataclass
class Hospital:
    """A site: its own cells, and what it learns from the sum over all sites."""

    Z: np.ndarray
    labels: np.ndarray
    pooled: Pooled | None = None

    @property
    def moments(self):
        return Moments.of(self.Z, self.labels)

    def cells(self, batch):
        return self.Z[self.labels == batch]


def hospitals(rng, d=4, offset=0.0):
    """Sites whose batches are not in the order of the sites."""
    sizes = [size for some in SIZES for size in some]
    c = make_cells(rng, sizes, d, offset)
    names = np.array([f"{'cadb'[i]}/{k}" for i, some in enumerate(SIZES) for k in range(len(some))])
    labels = names[c.codes]
    found = [
        Hospital(c.Z[mine], labels[mine])
        for prefix in "cadb"
        for mine in [np.char.startswith(labels, prefix)]
    ]
    for site, pooled in zip(
        found, in_process([partial(pooled_moments, site.moments) for site in found]), strict=True
    ):
        site.pooled = pooled
    return c.Z, labels, found


def order_of(sites):
    return sorted(batch for site in sites for batch in site.moments.batches.tolist())


# --- exact clients --------------------------------------------------------------------------------


def exact_client(site, batch, order, theta, weights, eps=1e-6):
    """A client solves its problem on its own cells, with a copy of all rows."""
    z = site.cells(batch)
    scale = (site.pooled.std + eps) / (z.std(0) + eps)
    targets = site.pooled.mean + scale * (z - z.mean(0))
    at = order.index(batch)
    return oracles.client_solve(at, theta, z, np.full(len(z), at), targets, *weights)


@pytest.mark.parametrize("weights", [(0.5, 1e-3, 1e-3), (2.0, 0.1, 0.5), (0.5, 0.0, 1e-3)], ids=str)
@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_exact_clients_at_sites_are_the_exact_solver(rng, weights, offset):
    Z, labels, sites = hospitals(rng, offset=offset)
    order = order_of(sites)
    theta = np.ones((len(order), 4)), np.zeros((len(order), 4))
    for _ in range(ROUNDS):
        total = np.zeros((2, len(order), 4))
        for site in sites:  # in any order
            for batch in site.moments.batches.tolist():
                copy = exact_client(site, batch, order, theta, weights)
                total += len(site.cells(batch)) / site.pooled.n_cells * np.stack(copy)
        theta = total[0], total[1]
    names = dict(zip(("lambda_target", "mu", "lambda_id"), weights, strict=True))
    central = BatchProx(**{"target": "moment", "rounds": ROUNDS} | names).fit(Z, batch=labels)
    assert central.batches_.tolist() == order
    np.testing.assert_allclose(theta[0], central.scale_, atol=1e-10)
    np.testing.assert_allclose(theta[1], central.shift_, atol=1e-10 * (1 + offset))
    # The federated fit has the same rows, without any round.
    for site in sites:
        model = BatchProx(**{"target": "moment", "rounds": ROUNDS} | names).fit_pooled(
            site.moments, site.pooled
        )
        at = [order.index(batch) for batch in model.batches_.tolist()]
        np.testing.assert_allclose(model.scale_, theta[0][at], atol=1e-10)
        np.testing.assert_allclose(model.shift_, theta[1][at], atol=1e-10 * (1 + offset))


# --- Adam -----------------------------------------------------------------------------------------


def site_problem(site, order, weights):
    """The problem of a site: rows of other sites are NaN, so that nothing can depend on them."""
    own, d = site.moments, site.moments.n_dims
    known = Problem.of(
        own, MomentTarget()(own, site.pooled), weights, site.pooled.n_cells, site.pooled.n_batches
    )
    at = [order.index(batch) for batch in own.batches.tolist()]

    def wide(values):
        out = np.full((len(order), *np.shape(values)[1:]), np.nan)
        out[at] = values
        return out

    target = Target(*(wide(getattr(known.target, name)) for name in ("mean", "center", "scale")))
    assert target.mean.shape == (len(order), d)
    return Problem(
        wide(known.mean), wide(known.var), wide(known.share), known.n_batches, target, weights
    )


def adam_rounds(sites, solver, weights):
    order = order_of(sites)
    home = {batch: site for site in sites for batch in site.moments.batches.tolist()}
    problems = {id(site): site_problem(site, order, weights) for site in sites}
    scale = np.ones((len(order), sites[0].moments.n_dims))
    shift = np.zeros_like(scale)
    for t in range(ROUNDS):
        total = np.zeros((2, *scale.shape))
        for at, batch in enumerate(order):  # copies are added in the order of the names
            site = home[batch]
            problem = problems[id(site)]
            own = ClientCells.of(hashed(site.Z), np.flatnonzero(site.labels == batch))
            total += problem.share[at] * client(solver, problem, at, t, site.Z, own, scale, shift)
        scale, shift = total
    return order, scale, shift


@pytest.mark.parametrize("options", [{}, dict(lr=1e-2, batch_size=50, local_epochs=2)], ids=str)
def test_adam_clients_at_sites_are_the_adam_solver_bit_for_bit(rng, options):
    Z, labels, sites = hospitals(rng)
    solver, weights = Adam(seed=3, **options), Weights()

    # With the sums over all sites, in double precision: the local solver given the same sums.
    order, scale, shift = adam_rounds(sites, solver, weights)
    together = Moments.of(Z, labels)
    problem = Problem.of(together, MomentTarget()(together, sites[0].pooled), weights)
    local = solver.solve(problem, ROUNDS, Z, labels_of(labels))
    # The estimator keeps rows relative to the means: the same conversion for both.
    for found, expected in zip(
        problem.scale_shift(problem.rows(scale, shift)), (local.scale, local.shift), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert order == together.batches.tolist()

    # And with the pooled moments that a central fit computes: the whole estimator.
    for site in sites:
        site.pooled = together.pooled()
    _, scale, shift = adam_rounds(sites, solver, weights)
    model = BatchProx(solver=solver, rounds=ROUNDS, target="moment").fit(Z, batch=labels)
    found = problem.scale_shift(problem.rows(scale, shift))
    np.testing.assert_array_equal(found[0], model.scale_)
    np.testing.assert_array_equal(found[1], model.shift_)


def test_adam_clients_are_textbook_clients(rng):
    """The same rounds by the oracle, on raw cells."""
    Z, labels, sites = hospitals(rng)
    solver = Adam(seed=3)
    order, scale, shift = adam_rounds(sites, solver, Weights())
    codes = np.searchsorted(order, labels)

    def visits(b, t, epoch, n):
        return solver.permutation(Z[codes == b], t, epoch)

    path = oracles.textbook_adam(Z, codes, ROUNDS, visits)
    np.testing.assert_allclose(scale, path[-1][0], atol=1e-9)
    np.testing.assert_allclose(shift, path[-1][1], atol=1e-9)
