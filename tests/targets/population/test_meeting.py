"""A round of registration on stacked arrays, compared with plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import evidence_oracles as oracles
from scbatchprox import PopulationSettings
from scbatchprox.targets.population import run
from scbatchprox.targets.population.agreement import (
    CHOSEN,
    LENGTH,
    Strengths,
    shift_agreement,
    smooth_agreement,
    smooth_field,
    without_contraction,
)
from scbatchprox.targets.population.meeting import (
    Batches,
    Everyone,
    Goals,
    Stack,
    Sums,
    composition,
)

SEEDS = st.integers(0, 10_000)
KINDS = st.sampled_from(["spread", "coincide", "apart"])
TEMPERATURES = st.sampled_from([2.0, 0.6, 0.3])
WEIGHTS = st.sampled_from([0.0, 0.02, 0.2, 5.0])
CLOSE = dict(rtol=1e-10, atol=1e-10)


class World:
    """Batches with unequal numbers of populations, some of them inactive, displaced, at common centres."""

    def __init__(self, seed, kind="spread", K=6, d=3):
        rng = np.random.default_rng(seed)
        self.sizes = [1, *rng.integers(2, 9, 3).tolist()]
        self.x = [1.5 * rng.normal(size=(P, d)) for P in self.sizes]
        if kind == "coincide":
            for x in self.x:
                x[len(x) // 2 :] = x[0]
        if kind == "apart":
            self.x[-1] += 30.0
        self.n = [rng.integers(1, 30, P).astype(float) for P in self.sizes]
        self.v = [0.3 * rng.normal(size=x.shape) for x in self.x]
        self.y = [x + v for x, v in zip(self.x, self.v, strict=True)]
        places = np.concatenate(self.x)
        self.centres = places[rng.integers(0, len(places), K)] + 0.4 * rng.normal(size=(K, d))
        self.on = np.array([True, True, rng.random() < 0.5, True])
        self.unit, self.variance = float(rng.uniform(0.5, 3.0)), float(rng.uniform(0.1, 2.0))

    def padded(self, parts, fill=0.0):
        P = max(self.sizes)
        return np.stack([
            np.r_[part, np.full((P - len(part), *np.shape(part)[1:]), fill)] for part in parts
        ])  # fmt: skip

    @property
    def stack(self):
        return Stack(self.padded(self.x), self.padded(self.n), self.variance)

    @property
    def positions(self):
        """Padded with arbitrary values."""
        return self.padded(self.y, 0.37)

    @property
    def points(self):
        """Positions and cells of all populations of active batches."""
        batches = zip(self.y, self.n, self.on, strict=True)
        return [pair for y, n, on in batches if on for pair in zip(y, n, strict=True)]

    def met(self, temperature):
        """For each batch its weights and its sums; and the sums of all that are active."""
        K, each = len(self.centres), []
        for y, n, on in zip(self.y, self.n, self.on, strict=True):
            _, W = oracles.near_and_weights(y, n, self.centres, self.unit * temperature)
            W = (np.array(W) * on).tolist()
            each.append((W, oracles.sums(y, n, W, K)))
        everyone = [
            (sum(own[k][0] for _, own in each), sum(own[k][1] for _, own in each)) for k in range(K)
        ]
        return each, everyone


def as_sums(pairs):
    return Sums(np.array([mass for mass, _ in pairs]), np.array([total for _, total in pairs]))


def stacked(world, temperature):
    stack, y = world.stack, world.positions
    met = stack.meet(y, world.centres, world.unit * temperature, world.on)
    return stack, y, met, Sums(met.own.mass.sum(0), met.own.total.sum(0))


@given(SEEDS, KINDS, TEMPERATURES)
def test_weights_and_sums(seed, kind, temperature):
    world = World(seed, kind)
    _, _, met, everyone = stacked(world, temperature)
    each, expected = world.met(temperature)
    for b, (W, own) in enumerate(each):
        P = world.sizes[b]
        np.testing.assert_allclose(met.weight[b, :P], W, **CLOSE)
        assert not met.weight[b, P:].any()
        for found, one in zip((met.own.mass[b], met.own.total[b]), as_sums(own), strict=True):
            np.testing.assert_allclose(found, one, **CLOSE)
    for found, one in zip(everyone, as_sums(expected), strict=True):
        np.testing.assert_allclose(found, one, **CLOSE)


def goals_of(world, temperature, width):
    each, everyone = world.met(temperature)
    for (W, own), x, y, n in zip(each, world.x, world.y, world.n, strict=True):
        yield oracles.goals(x, y, n, W, own, everyone, world.variance, width)


@given(SEEDS, KINDS, TEMPERATURES)
def test_goals_and_their_agreement(seed, kind, temperature):
    world = World(seed, kind)
    stack, y, met, everyone = stacked(world, temperature)
    found = stack.goals(y, met, everyone, 1.7)
    shifts, agreement = shift_agreement(found)
    smooth = smooth_agreement(found, world.unit)
    for b, (weight, goal, noise, place) in enumerate(goals_of(world, temperature, 1.7)):
        for one, two in zip(found, (weight, goal, noise, place), strict=True):
            np.testing.assert_allclose(one[b], two, **CLOSE)
        expected, total, spread = oracles.shift(weight, goal, noise)
        np.testing.assert_allclose(agreement.total[b], total, **CLOSE)
        np.testing.assert_allclose(agreement.spread[b], spread, **CLOSE)
        if sum(oracles.shares(weight)) > 0.5 and 1 - max(oracles.shares(weight)) > 1e-6:
            np.testing.assert_allclose(shifts[b], expected, rtol=1e-8, atol=1e-9)
        total, spread = oracles.smooth(weight, goal, CHOSEN * noise, place, world.unit)
        np.testing.assert_allclose(smooth.total[b], total, **CLOSE)
        np.testing.assert_allclose(smooth.spread[b], spread, **CLOSE)


def test_agreement_is_unbiased_for_the_squared_shift():
    """Goals of known noise about one shift: S is on average what pairs of centres share."""
    rng = np.random.default_rng(0)
    T, K, d = 40_000, 5, 2
    root = 0.4 * rng.normal(size=(K, K))
    weight = rng.uniform(0.5, 2.0, K)
    w = weight / weight.sum()
    place = rng.normal(size=(T, K, d))
    for shift in (np.zeros(d), np.array([0.3, -0.4])):
        goal = shift + np.einsum("kj,tjd->tkd", root, rng.normal(size=(T, K, d)))
        goals = Goals(np.tile(weight, (T, 1)), goal, np.tile(root @ root.T, (T, 1, 1)), place)
        found, agreement = shift_agreement(goals)
        expected = (1.0 - (w**2).sum()) * shift @ shift / d
        error = agreement.total.std() / np.sqrt(T)
        assert abs(agreement.total.mean() - expected) < 4.0 * error
        # Shrinking does not change the direction, and never lengthens.
        mean = np.einsum("k,tkd->td", w, goal)
        assert (np.linalg.norm(found, axis=1) <= np.linalg.norm(mean, axis=1) + 1e-12).all()
        assert (np.einsum("td,td->t", found, mean) >= -1e-12).all()
        # Nothing is shared beyond the shift.
        known = goals._replace(noise=goals.noise / CHOSEN)
        beyond = smooth_agreement(known, 1.0).total
        assert abs(beyond.mean()) < 4.0 * beyond.std() / np.sqrt(T)


@given(SEEDS, KINDS, TEMPERATURES, WEIGHTS, WEIGHTS)
def test_the_smooth_field_is_that_of_least_squares(seed, kind, temperature, prior, damping):
    if prior + damping == 0.0:
        prior = 0.1  # without both the field is that of interpolation, where rounding decides
    world = World(seed, kind if kind != "coincide" else "spread")
    stack, _, met, everyone = stacked(world, temperature)
    v = world.padded(world.v, -2.0)
    strengths, width = Strengths(prior, damping), 0.9
    found = smooth_field(stack, v, met, everyone, world.unit, width, strengths)
    each, all_sums = world.met(temperature)
    for b, (W, own) in enumerate(each):
        P, n = world.sizes[b], world.n[b]
        told = oracles.population_goals(world.y[b], world.v[b], W, own, all_sums, width)
        goal = np.array([one for one, _ in told])
        weight = np.array([part for _, part in told]) * n / n.sum() * P
        length2 = LENGTH * world.unit
        expected = oracles.field(world.x[b], goal, weight, world.v[b], length2, prior, damping)
        np.testing.assert_allclose(found[b, :P], expected, rtol=0, atol=1e-6)
        assert not found[b, P:].any()


@given(SEEDS, KINDS, st.sampled_from([-0.4, 0.0, 0.4]))
def test_a_field_does_not_bring_neighbours_nearer(seed, kind, stretch):
    world = World(seed, kind)
    v = [v + stretch * x for v, x in zip(world.v, world.x, strict=True)]
    found = without_contraction(world.stack, world.padded(v, -2.0), world.unit)
    for b, (x, n) in enumerate(zip(world.x, world.n, strict=True)):
        about, moved = (oracles.about_neighbours(z, x, n, LENGTH * world.unit) for z in (x, v[b]))
        size = sum(m * a @ a for m, a in zip(n, about, strict=True))
        along = sum(m * a @ u for m, a, u in zip(n, about, moved, strict=True))
        part = along / size if size > 1e-9 else 0.0
        np.testing.assert_allclose(found[b, : len(x)], v[b] - min(part, 0.0) * about, atol=1e-8)
        assert not found[b, len(x) :].any()
    shifts = np.ones_like(world.stack.x)  # of whole batches: nothing comes nearer
    kept = without_contraction(world.stack, shifts, world.unit)
    np.testing.assert_allclose(kept[world.stack.cells > 0], 1.0, rtol=1e-12)


@given(SEEDS, KINDS)
def test_sums_of_populations(seed, kind):
    world = World(seed, kind)
    stack, y = world.stack, world.positions
    n, total, squares = stack.second_moments(y, world.on)
    assert n == sum(n for _, n in world.points)
    np.testing.assert_allclose(total, sum(n * y for y, n in world.points), **CLOSE)
    expected = np.zeros((3, 3))
    for y_b, n_b, on in zip(world.y, world.n, world.on, strict=True):
        own = list(zip(y_b, n_b, strict=True))
        expected += on * sum(
            n * np.outer(y - oracles.mean(own), y - oracles.mean(own)) for y, n in own
        )
    np.testing.assert_allclose(squares, expected, **CLOSE)
    step = stack.nearest(y, world.centres, world.on)
    counts = stack.counts(y, world.centres)
    for k in range(len(world.centres)):
        group = [(y, n) for y, n in world.points if oracles.nearest(y, world.centres) == k]
        assert step.mass[k] == oracles.cells(group)
        expected = sum((n * y for y, n in group), np.zeros(3))
        np.testing.assert_allclose(step.total[k], expected, **CLOSE)
        for b, (y_b, n_b) in enumerate(zip(world.y, world.n, strict=True)):
            own = [
                m for q, m in zip(y_b, n_b, strict=True) if oracles.nearest(q, world.centres) == k
            ]
            assert counts[b, k] == sum(own)
    within, spread, cells = stack.covariances(y, world.centres, world.on)
    inner, outer = np.zeros((2, 3, 3))
    for y_b, n_b, on in zip(world.y, world.n, world.on, strict=True):
        middle = oracles.mean(list(zip(y_b, n_b, strict=True)))
        for q, m in zip(y_b, n_b, strict=True):
            about = q - world.centres[oracles.nearest(q, world.centres)]
            inner += on * m * np.outer(about, about)
            outer += on * m * np.outer(q - middle, q - middle)
    assert cells == n
    np.testing.assert_allclose(within, inner, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(spread, outer, rtol=1e-9, atol=1e-9)


@given(SEEDS)
def test_composition(seed):
    world = World(seed)
    rng = np.random.default_rng(seed)
    own = np.stack([rng.multinomial(int(n.sum()), [0.2, 0.5, 0.3]) for n in world.n]).astype(float)
    rest = rng.uniform(0.0, 9.0, own.shape)
    found = composition(own, rest, world.padded(world.n))
    for b, n in enumerate(world.n):
        assert found[b] == pytest.approx(oracles.composition(own[b], rest[b], n), abs=1e-10)
    apart = composition(np.array([[5.0, 0.0]]), np.array([[0.0, 7.0]]), np.ones((1, 5)))
    assert apart[0] == pytest.approx(1.0)


@given(SEEDS, KINDS)
def test_centres_are_seeded_by_principal_axes(seed, kind):
    """In stacks of several sizes, without the batches that take no part."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 40, 6)
    X = rng.normal(size=(sizes.sum(), 4)) * [3.0, 2.0, 1.0, 0.5]
    if kind == "apart":
        X[: sizes[0]] += 20.0
    n, start = rng.integers(1, 30, len(X)), np.r_[0, np.cumsum(sizes)]
    batches = Batches(X, n, start, Everyone(float(n.sum()), 6.0, 1.0))
    assert sorted(np.concatenate(batches.members).tolist()) == list(range(6))
    settings = PopulationSettings(centre_cells=50, few_centres=5, most_centres=12)
    one = run.Run(batches, settings, Strengths(0.2, 0.2))
    one.active = np.array([True, False, True, True, True, True])
    on = one.active[np.repeat(np.arange(6), sizes)]
    K = int(np.clip(n[on].sum() / 50, 5, 12))
    K = min(K, max(run.FEWEST_CENTRES, round(on.sum() / 5)))
    n_axes = min(int(np.ceil(np.log2(K))) + 1, 4)
    points = list(zip(X[on], n[on].astype(float), strict=True))
    groups = [
        list(zip(X[lo:hi], n[lo:hi].astype(float), strict=True))
        for lo, hi, active in zip(start[:-1], start[1:], one.active, strict=True)
        if active
    ]
    found = one._seeded()
    expected = oracles.seeded(points, groups, K, n_axes, run.STEPS)
    assert found.shape == expected.shape
    order, other = (np.lexsort(np.round(part, 6).T) for part in (found, expected))
    np.testing.assert_allclose(found[order], expected[other], **CLOSE)


@given(SEEDS, KINDS)
def test_batches_count_alike_in_any_stack(seed, kind):
    """Stacks of one batch, without padding, have the sums of a stack of all."""
    world = World(seed, kind)
    stack, y, met, everyone = stacked(world, 0.3)
    together = stack.goals(y, met, everyone, 1.0)
    for b, P in enumerate(world.sizes):
        single = Stack(world.x[b][None], world.n[b][None], world.variance)
        own = single.meet(y[b : b + 1, :P], world.centres, world.unit * 0.3, world.on[b : b + 1])
        found = single.goals(y[b : b + 1, :P], own, everyone, 1.0)
        for one, two in zip(found, together, strict=True):
            np.testing.assert_allclose(one[0], two[b], **CLOSE)
