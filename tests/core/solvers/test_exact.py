import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import oracles
from data import POSITIVE, WEIGHTS, cells, make_cells
from scbatchprox import BatchProx, Exact, Moments, MomentTarget, Problem, Weights

pytestmark = pytest.mark.filterwarnings("ignore:Expected batches of cells")


def fit(c, rounds, **options):
    return BatchProx(**{"target": "moment", "rounds": rounds} | options).fit(c.Z, batch=c.codes)


def assert_theta(model, theta, rtol=1e-8, atol=1e-8):
    np.testing.assert_allclose(model.scale_, theta[0], rtol=rtol, atol=atol)
    np.testing.assert_allclose(model.shift_, theta[1], rtol=rtol, atol=atol)


@given(cells(), st.integers(0, 6), POSITIVE, WEIGHTS, WEIGHTS, st.booleans())
def test_rounds_are_those_of_clients_and_server(c, rounds, lambda_target, mu, lambda_id, match):
    options = dict(lambda_target=lambda_target, mu=mu, lambda_id=lambda_id)
    path = oracles.federated_rounds(c.Z, c.codes, rounds, variance_matching=match, **options)
    model = fit(c, rounds, target=MomentTarget(variance_matching=match), **options)
    assert_theta(model, path[-1], rtol=1e-7, atol=1e-5)


@given(cells(min_size=1), POSITIVE, WEIGHTS)
def test_one_cell_and_constant_coordinates(c, mu, lambda_id):
    # Values whose sums are exact: r ~ 1e6 would magnify the rounding errors of the oracle.
    Z = np.round(c.Z * 16) / 16
    Z[:, 0] = 0.5
    c.Z = Z
    path = oracles.federated_rounds(c.Z, c.codes, 3, mu=mu, lambda_id=lambda_id)
    model = fit(c, 3, mu=mu, lambda_id=lambda_id)
    assert_theta(model, path[-1], rtol=1e-4, atol=1e-4)
    assert np.isfinite(model.transform(c.Z, batch=c.codes)).all()


@given(cells(), st.sampled_from([1e-4, 1e-3]), st.sampled_from([1e-3, 0.1, 2.0]))
def test_many_rounds_reach_the_fixed_point(c, mu, lambda_id):
    # Every round multiplies the distance to the fixed point by at most mu / (mu + nu), at most 0.95 here.
    many = fit(c, 1000, mu=mu, lambda_id=lambda_id)
    limit = fit(c, None, mu=mu, lambda_id=lambda_id)
    assert_theta(many, (limit.scale_, limit.shift_), rtol=1e-9, atol=1e-8)
    assert limit.converged_
    assert limit.history_.round.tolist() == [0, np.inf]


@given(cells(max_batches=3), WEIGHTS, WEIGHTS)
def test_fixed_point_is_one(c, mu, lambda_id):
    """One more exact round of clients and server does not change the fixed point."""
    model = fit(c, None, mu=mu, lambda_id=lambda_id)
    theta = (model.scale_, model.shift_)
    T = oracles.target_cells(c.Z, c.codes)
    n = np.bincount(c.codes)
    again = [
        oracles.client_solve(b, theta, c.Z, c.codes, T, 0.5, mu, lambda_id) for b in range(c.B)
    ]
    averaged = [sum(w * a[k] for w, a in zip(n / n.sum(), again, strict=True)) for k in (0, 1)]
    assert_theta(model, averaged, rtol=1e-6, atol=1e-5)


@given(cells())
def test_fixed_point_without_penalties_is_the_target(c):
    model = fit(c, None, mu=0, lambda_id=0)
    target = MomentTarget()(model.moments_)
    assert_theta(model, (target.scale, target.shift))


def test_fixed_point_of_a_constant_coordinate_without_penalties():
    Z = np.array([[3.0], [3.0], [0.0], [1.0]])
    model = fit_quiet(Z, list("aabb"), rounds=None, mu=0, lambda_id=0)
    many = fit_quiet(Z, list("aabb"), rounds=500, mu=0, lambda_id=0)
    np.testing.assert_allclose(model.scale_, many.scale_, rtol=1e-9)
    np.testing.assert_allclose(model.transform(Z, batch=list("aabb"))[:2], Z.mean())


def fit_quiet(Z, batch, **options):
    return BatchProx(**{"target": "moment"} | options).fit(Z, batch=batch)


@given(cells(min_size=1), WEIGHTS, WEIGHTS, st.sampled_from([0, 1, 3, None]))
def test_a_single_batch_does_not_move(c, mu, lambda_id, rounds):
    model = BatchProx(rounds=rounds, mu=mu, lambda_id=lambda_id, target="moment").fit(c.Z)
    np.testing.assert_array_equal(model.scale_, 1.0)
    np.testing.assert_array_equal(model.shift_, 0.0)
    np.testing.assert_array_equal(model.transform(c.Z), c.Z)


def test_no_rounds_are_the_identity(rng):
    c = make_cells(rng, [10, 20], 3)
    np.testing.assert_array_equal(fit(c, 0).transform(c.Z, batch=c.codes), c.Z)


def test_far_from_the_origin_nothing_cancels(rng):
    """A shift of all cells by 1e8 must not change the solution of a problem without penalties."""
    c = make_cells(rng, [300, 200], 3)
    far = c.Z + 1e8
    options = dict(rounds=3, mu=0, lambda_id=0)
    near = BatchProx(**{"target": "moment"} | options).fit_transform(c.Z, batch=c.codes)
    moved = BatchProx(**{"target": "moment"} | options).fit_transform(far, batch=c.codes) - 1e8
    np.testing.assert_allclose(moved, near, atol=1e-6)


def test_far_from_the_origin_it_still_solves_the_local_problems(rng):
    c = make_cells(rng, [40, 25], 2, offset=1e6)
    path = oracles.federated_rounds(c.Z, c.codes, 3)
    assert_theta(fit(c, 3), path[-1], rtol=1e-6, atol=1e-2)
    refined = path[-1][0][c.codes] * c.Z + path[-1][1][c.codes]
    np.testing.assert_allclose(fit(c, 3).transform(c.Z, batch=c.codes), refined, atol=1e-6)


@given(cells(max_batches=3), POSITIVE, st.integers(1, 6))
def test_history_describes_the_path(c, mu, rounds):
    assume(c.B > 1)
    model = fit(c, rounds, mu=mu)
    history = model.history_
    path = oracles.federated_rounds(c.Z, c.codes, rounds, mu=mu)
    T = oracles.target_cells(c.Z, c.codes)
    for t, (scale, shift) in enumerate(path):
        refined = scale[c.codes] * c.Z + shift[c.codes]
        value = oracles.central_objective((scale, shift), c.Z, c.codes, T, 0.5, 1e-3)
        assert history.objective[t] == pytest.approx(value, rel=1e-6, abs=1e-9)
        distance = np.sqrt(((refined - T) ** 2).sum(1).mean())
        assert history.distance[t] == pytest.approx(distance, rel=1e-5, abs=1e-6)
        if t:
            step = np.sqrt(
                sum(((a - b) ** 2).sum() for a, b in zip(path[t], path[t - 1], strict=True))
            )
            assert history.step[t] == pytest.approx(step, rel=1e-5, abs=1e-6)
    assert history.round.tolist() == list(range(rounds + 1))
    assert list(history.frame().columns) == ["round", "objective", "distance", "step"]


@given(cells(), POSITIVE, WEIGHTS, WEIGHTS, st.integers(1, 5))
def test_refinement_is_conservative(c, lambda_target, mu, lambda_id, rounds):
    """No batch ends further from its target than it began, and none overshoots (the paper's theorem)."""
    options = dict(lambda_target=lambda_target, mu=mu, lambda_id=lambda_id)
    model = fit(c, rounds, **options)
    T = oracles.target_cells(c.Z, c.codes)
    refined = model.transform(c.Z, batch=c.codes)
    for b in range(c.B):
        own = c.codes == b
        began, ended = (np.sqrt(((Z[own] - T[own]) ** 2).mean()) for Z in (c.Z, refined))
        assert ended <= began * (1 + 1e-9) + 1e-9


def test_converged_says_so(rng):
    c = make_cells(rng, [100, 80], 3)
    assert not fit(c, 3).converged_
    assert fit(c, 200).converged_


def test_solver_needs_no_cells(rng):
    c = make_cells(rng, [100, 80], 3)
    moments = Moments.of(c.Z, c.codes)
    problem = Problem.of(moments, MomentTarget()(moments), Weights())
    solution = Exact().solve(problem, 3)
    np.testing.assert_array_equal(solution.scale, fit(c, 3).scale_)


@pytest.mark.parametrize("rounds", [-1, 2.5, "3", True])
def test_rounds_must_make_sense(rng, rounds):
    with pytest.raises(ValueError, match="Expected rounds to be a whole number >= 0, or None"):
        fit(make_cells(rng, [3, 3], 2), rounds)


class TestAblations:
    """Table 3 of the paper, by choices of parameters."""

    def test_mean_only_moves_means_and_scales_nothing_without_penalties(self, rng):
        c = make_cells(rng, [60, 90], 4)
        model = fit(c, None, target=MomentTarget(variance_matching=False), mu=0, lambda_id=0)
        np.testing.assert_array_equal(model.scale_, 1.0)
        refined = model.transform(c.Z, batch=c.codes)
        for b in range(2):
            np.testing.assert_allclose(refined[c.codes == b].mean(0), c.Z.mean(0), atol=1e-9)

    def test_full_model_matches_spreads_better_than_mean_only(self, rng):
        c = make_cells(rng, [600, 900], 4)

        def gap(refined):
            return abs(np.log(refined[c.codes == 0].std(0) / refined[c.codes == 1].std(0))).mean()

        full = fit(c, None).transform(c.Z, batch=c.codes)
        mean_only = fit(c, None, target=MomentTarget(variance_matching=False)).transform(
            c.Z, batch=c.codes
        )
        assert gap(full) < 0.5 * gap(mean_only)

    def test_without_fedprox_one_round_is_enough(self, rng):
        c = make_cells(rng, [60, 90], 4)
        one, many = fit(c, 1, mu=0), fit(c, 50, mu=0)
        np.testing.assert_allclose(one.scale_, many.scale_, rtol=1e-12)

    def test_fedprox_shortens_the_first_round(self, rng):
        c = make_cells(rng, [60, 90], 4)
        moved = [fit(c, 1, mu=mu).movement()["moved"].sum() for mu in (1e-3, 1.0, 100.0)]
        assert moved[0] > moved[1] > moved[2] > 0

    def test_without_identity_the_rounds_end_at_the_target(self, rng):
        c = make_cells(rng, [60, 90], 4)
        model = fit(c, None, lambda_id=0)
        target = MomentTarget()(model.moments_)
        assert_theta(model, (target.scale, target.shift))
        held = fit(c, None, lambda_id=1.0)
        assert held.movement()["moved"].sum() < model.movement()["moved"].sum()


class TestVeryManyRounds:
    """Beyond the first thousand they are one step, which must be what one by one gives."""

    @pytest.mark.parametrize("rounds", [1001, 1002, 1003, 1500, 4096])
    @pytest.mark.parametrize(
        "options", [{}, {"mu": 0.0}, {"lambda_id": 0.0}, {"mu": 10.0}], ids=str
    )
    def test_are_those_of_a_loop(self, rng, rounds, options, monkeypatch):
        c = make_cells(rng, [300, 70, 3], 3)
        at_once = fit(c, rounds, **options)
        monkeypatch.setattr("scbatchprox.core.solvers.exact.LOOPED", rounds)
        loop = fit(c, rounds, **options)
        np.testing.assert_allclose(at_once.scale_, loop.scale_, rtol=1e-11)
        np.testing.assert_allclose(at_once.shift_, loop.shift_, rtol=1e-10, atol=1e-12)
        assert at_once.converged_ == loop.converged_
        assert at_once.history_.round[-2:].tolist() == [rounds - 1, rounds]
        objective = [model.history_.objective[-1] for model in (at_once, loop)]
        np.testing.assert_allclose(*objective, rtol=1e-7, atol=1e-20)

    def test_a_billion_end_at_the_fixed_point(self, rng):
        c = make_cells(rng, [300, 70], 3)
        model = fit(c, 10**9)
        limit = fit(c, None)
        assert model.converged_
        assert len(model.history_.round) < 1010
        np.testing.assert_allclose(model.scale_, limit.scale_, rtol=1e-9)
        np.testing.assert_allclose(model.shift_, limit.shift_, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["mu", "lambda_id", "lambda_target"])
@pytest.mark.parametrize("value", [1e101, 1e308])
def test_weights_whose_squares_overflow(rng, name, value):
    c = make_cells(rng, [30, 20], 2)
    with pytest.raises(ValueError, match=f"Expected {name} of at most 1e\\+100, found"):
        fit(c, 3, **{name: value})
    assert np.isfinite(fit(c, 3, **{name: 1e100}).scale_).all()
