"""The paper's clients as they are described: each has a copy of the whole adapter."""

import numpy as np

from scbatchprox.core.solvers.adam import ClientCells, _adam_steps, _mini_batch_means, hashed


def client(solver, problem, b, t, Z, own, scale, shift):
    """Run round ``t`` of client ``b`` on its cells of ``Z``; return its copy of the adapter."""
    theta_t = np.stack([scale, shift])
    theta = theta_t.copy()
    grad, state = np.empty_like(theta), np.zeros((2, *theta.shape))
    mean, goal = problem.mean[b], problem.goal
    sums = np.empty((-(-own.rows.size // solver.batch_size), 2, mean.size))
    for epoch in range(solver.local_epochs):
        _mini_batch_means(Z, solver._order(own, t, epoch), mean, solver.batch_size, sums)
        _adam_steps(
            theta, theta_t, state, grad, sums, epoch * len(sums), b, mean, goal.u[b], goal.v[b],
            (problem.a, problem.weights.mu, problem.nu),
            (solver.lr, *solver.betas, solver.adam_eps),
        )  # fmt: skip
    return theta


def averaged(solver, problem, rounds, Z, codes):
    """Scale and shift after some rounds, with a copy for each client."""
    own = [ClientCells.of(hashed(Z), np.flatnonzero(codes == b)) for b in range(len(problem.mean))]
    theta = np.stack([np.ones_like(problem.mean), np.zeros_like(problem.mean)])
    for t in range(rounds):
        total = np.zeros_like(theta)
        for b, share in enumerate(problem.share):
            total += share * client(solver, problem, b, t, Z, own[b], *theta)
        theta = total
    return theta
