"""Propositions "convex latent refinement objective" and "well-posed local latent optimization"."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import oracles
from data import POSITIVE, WEIGHTS, cells
from scbatchprox import Moments, MomentTarget, Problem, Weights


def problem_of(c, weights, rule=None):
    moments = Moments.of(c.Z, c.codes)
    return Problem.of(moments, (rule or MomentTarget())(moments), weights)


def some_theta(seed, c):
    rng = np.random.default_rng(seed)
    return rng.normal(1, 0.5, (c.B, c.d)), rng.normal(0, 2, (c.B, c.d))


@given(cells(), POSITIVE, WEIGHTS, st.integers(0, 99))
def test_value_is_the_sum_over_cells(c, lambda_target, lambda_id, seed):
    problem = problem_of(c, Weights(lambda_target, 1e-3, lambda_id))
    theta = some_theta(seed, c)
    T = oracles.target_cells(c.Z, c.codes)
    expected = oracles.central_objective(theta, c.Z, c.codes, T, lambda_target, lambda_id)
    assert problem.objective(problem.rows(*theta)) == pytest.approx(expected, rel=1e-8)


@given(cells(), POSITIVE, WEIGHTS, st.integers(0, 99))
def test_gradient_is_that_of_the_value(c, lambda_target, lambda_id, seed):
    problem = problem_of(c, Weights(lambda_target, 1e-3, lambda_id))
    scale, shift = some_theta(seed, c)
    d_scale, d_shift = problem.gradient(problem.rows(scale, shift))
    direction = np.random.default_rng(seed + 1).normal(size=(2, c.B, c.d))
    # F is quadratic: the central difference is exact up to rounding, for any step.
    ahead = problem.objective(problem.rows(scale + direction[0], shift + direction[1]))
    behind = problem.objective(problem.rows(scale - direction[0], shift - direction[1]))
    slope = (d_scale * direction[0] + d_shift * direction[1]).sum()
    size = max(abs(ahead), abs(behind))
    assert (ahead - behind) / 2 == pytest.approx(slope, rel=1e-7, abs=1e-10 * size)


@given(cells(), POSITIVE, POSITIVE)
def test_minimiser_is_that_of_least_squares(c, lambda_target, lambda_id):
    problem = problem_of(c, Weights(lambda_target, 1e-3, lambda_id))
    scale, shift = problem.scale_shift(problem.minimiser())
    T = oracles.target_cells(c.Z, c.codes)
    expected = oracles.central_minimiser(c.Z, c.codes, T, lambda_target, lambda_id)
    np.testing.assert_allclose(scale, expected[0], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(shift, expected[1], rtol=1e-6, atol=1e-5)


def test_minimiser_is_that_of_scipy_optimize(rng):
    from scipy.optimize import minimize

    from data import make_cells

    c = make_cells(rng, [20, 7, 30], 2)
    T = oracles.target_cells(c.Z, c.codes)

    def value(x):
        return oracles.central_objective(tuple(x.reshape(2, 3, 2)), c.Z, c.codes, T, 0.5, 0.2)

    start = np.stack([np.ones((3, 2)), np.zeros((3, 2))]).ravel()
    found = minimize(value, start, method="BFGS", options={"gtol": 1e-8}).x.reshape(2, 3, 2)
    problem = problem_of(c, Weights(0.5, 1e-3, 0.2))
    np.testing.assert_allclose(problem.scale_shift(problem.minimiser()), found, atol=1e-5)


@given(cells(), POSITIVE, POSITIVE, st.integers(0, 99))
def test_objective_is_strongly_convex_with_one_minimiser(c, lambda_target, lambda_id, seed):
    problem = problem_of(c, Weights(lambda_target, 1e-3, lambda_id))
    best = problem.minimiser()
    scale, shift = problem.scale_shift(best)
    lowest = problem.objective(best)
    rng = np.random.default_rng(seed)
    ds, dt = rng.normal(size=(2, c.B, c.d))
    for t in (1e-2, 1.0, -1.0, 30.0):
        value = problem.objective(problem.rows(scale + t * ds, shift + t * dt))
        # Strongly convex with modulus nu: F(x) >= F* + nu ||x - x*||^2.
        bound = lowest + problem.nu * t**2 * (ds**2 + dt**2).sum()
        assert value >= bound * (1 - 1e-9)


@given(cells(), POSITIVE, st.integers(0, 99))
def test_without_identity_it_is_convex_and_the_target_is_a_minimiser(c, lambda_target, seed):
    problem = problem_of(c, Weights(lambda_target, 1e-3, 0.0))
    assert problem.objective(problem.goal) == 0.0
    (a, b), t = [problem.rows(*some_theta(seed + k, c)) for k in (0, 1)], 0.3
    mid = type(a)(t * a.u + (1 - t) * b.u, t * a.v + (1 - t) * b.v)
    chord = t * problem.objective(a) + (1 - t) * problem.objective(b)
    assert problem.objective(mid) <= chord * (1 + 1e-12)
    np.testing.assert_allclose(problem.minimiser().u, problem.goal.u)


@given(cells(min_size=1), WEIGHTS, WEIGHTS, WEIGHTS, st.integers(0, 99))
def test_local_problem_is_well_posed(c, lambda_target, mu, lambda_id, seed):
    """With mu + nu > 0 the local Hessian is positive definite, and our client solve is its zero."""
    assume(mu + lambda_id > 0)
    weights = Weights(lambda_target, mu, lambda_id)
    problem = problem_of(c, weights)
    T = oracles.target_cells(c.Z, c.codes)
    b = seed % c.B
    theta_t = some_theta(seed, c)
    scale, shift = oracles.client_solve(b, theta_t, c.Z, c.codes, T, lambda_target, mu, lambda_id)
    p, held = mu + problem.nu, problem.rows(*theta_t)
    kappa = mu / p
    goal = problem.goal
    pull = problem.response(problem.a, p).of(
        type(goal)(goal.u - kappa * held.u, goal.v - kappa * held.v)
    )
    own = problem.scale_shift(type(goal)(kappa * held.u + pull.u, kappa * held.v + pull.v))
    np.testing.assert_allclose(own[0][b], scale[b], rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(own[1][b], shift[b], rtol=1e-6, atol=1e-5)
    # Every other row is at the minimum of its two penalties.
    others = np.arange(c.B) != b
    np.testing.assert_allclose(scale[others], 1 + kappa * held.u[others], rtol=1e-9)


@pytest.mark.parametrize("name", ["lambda_target", "mu", "lambda_id"])
@pytest.mark.parametrize("value", [-1e-3, np.nan, np.inf])
def test_weights_must_make_sense(name, value):
    with pytest.raises(ValueError, match=f"Expected {name} to be a finite number >= 0, found"):
        Weights(**{name: value})


def test_all_weights_zero_is_ill_posed():
    with pytest.raises(ValueError, match="found all three zero"):
        Weights(0, 0, 0)
