"""A round of registration on stacked arrays, compared with plain loops."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import consensus_oracles as oracles
from scbatchprox.targets.population.consensus import Stack, Strengths
from scbatchprox.targets.population.settings import PopulationSettings
from scbatchprox.targets.population.sums import Sums

SETTINGS = PopulationSettings()
KINDS = st.sampled_from(["spread", "coincide", "apart", "far"])
TEMPERATURES = st.sampled_from([1.0, 0.6, 0.3, 0.05])
WEIGHTS = st.sampled_from([0.0, 0.02, 0.2, 5.0])


class World:
    """Batches with unequal numbers of populations, some seedings of centres, and fields."""

    def __init__(self, seed, kind="spread", sizes=None, S=2, K=7, d=3, settings=SETTINGS):
        rng = np.random.default_rng(seed)
        self.rng, self.settings = rng, settings
        self.sizes = sizes or [1, *rng.integers(1, 9, 3)]
        self.unit = float(rng.uniform(0.5, 3.0))
        spread = np.sqrt(self.unit)
        self.x = [spread * 1.5 * rng.normal(size=(P, d)) for P in self.sizes]
        if kind == "coincide":
            for x in self.x:
                x[len(x) // 2 :] = x[0]
        if kind == "apart":
            self.x[-1] += 40.0 * spread
        if kind == "far":
            self.x = [x + 1e4 * spread * rng.normal(size=d) for x in self.x]
        self.w = [rng.uniform(0.2, 2.0, P) for P in self.sizes]
        smooth = [oracles.covariance(x, self.unit, settings.length) for x in self.x]
        self.v = [
            [0.1 * spread * C @ rng.normal(size=(len(C), d)) for C in smooth] for _ in range(S)
        ]
        places = np.concatenate(self.x)
        self.mass = rng.uniform(0.5, 4.0, (S, K))
        self.mass[0, 2] = self.mass[S - 1, K - 1] = 0.0
        at = places[rng.integers(0, len(places), (S, K))] + 0.5 * spread * rng.normal(
            size=(S, K, d)
        )
        self.total = self.mass[..., None] * at

    def padded(self, parts, fill=0.0):
        """(B, P, ...) padded with ``fill``."""
        P = max(self.sizes)
        return np.stack([
            np.r_[part, np.full((P - len(part), *np.shape(part)[1:]), fill)] for part in parts
        ])  # fmt: skip

    @property
    def stack(self):
        return Stack.of(self.padded(self.x), self.padded(self.w), self.unit, self.settings)

    @property
    def field(self):
        """Padded with arbitrary values."""
        return np.stack([self.padded(v, fill=0.37) for v in self.v])

    @property
    def sums(self):
        return Sums(self.mass, self.total)

    def centres(self, s):
        return list(zip(self.mass[s], self.total[s], strict=True))

    def each(self):
        """All pairs of a seeding and a batch."""
        return [(s, b) for s in range(len(self.v)) for b in range(len(self.sizes))]

    def points(self, s):
        """Positions and weights of all populations."""
        return [
            (p + f, a)
            for x, v, w in zip(self.x, self.v[s], self.w, strict=True)
            for p, f, a in zip(x, v, w, strict=True)
        ]

    def assignments(self, s, temperature):
        y = [x + v for x, v in zip(self.x, self.v[s], strict=True)]
        return [
            oracles.assigned(a, b, self.centres(s), self.unit, temperature)
            for a, b in zip(y, self.w, strict=True)
        ]

    def all_sums(self, s, temperature):
        """Sums over batches, in order."""
        own = [own for _, own in self.assignments(s, temperature)]
        return [(sum(b[k][0] for b in own), sum(b[k][1] for b in own)) for k in range(len(own[0]))]


def assert_sums(found, expected, atol=1e-9):
    np.testing.assert_allclose(found.mass, [m for m, _ in expected], rtol=1e-9, atol=atol)
    size = max(1.0, max(np.abs(t).max() for _, t in expected))
    np.testing.assert_allclose(found.total, [t for _, t in expected], rtol=1e-9, atol=atol * size)


@given(st.integers(0, 10_000), KINDS, TEMPERATURES)
def test_assignments_follow_their_definition(seed, kind, temperature):
    world = World(seed, kind)
    # The rounding error of squared distances from products is relative to the largest square.
    atol = 1e-9 if kind != "far" else 1e-5
    assigned = world.stack.assigned(world.field, world.sums, temperature)
    for s in range(2):
        for b, (W, own) in enumerate(world.assignments(s, temperature)):
            full = np.zeros((world.sizes[b], 7))
            for at, weight in W.items():
                full[at] = weight
            np.testing.assert_allclose(assigned.weight[s, b, : world.sizes[b]], full, atol=atol)
            assert_sums(Sums(assigned.own.mass[s, b], assigned.own.total[s, b]), own, atol)
        assert_sums(
            Sums(*(part[s] for part in assigned.sums)), world.all_sums(s, temperature), atol
        )


@given(st.integers(0, 10_000), KINDS, TEMPERATURES, WEIGHTS, WEIGHTS, st.booleans())
def test_updates_follow_their_definition(seed, kind, temperature, prior, damping, smooth):
    world = World(seed, kind if kind != "far" else "apart")
    if not smooth:  # in coarse rounds batches have only shifted so far
        world.v = [[np.repeat(v[:1], len(v), 0) for v in seeding] for seeding in world.v]
    strengths = Strengths(prior, damping)
    stack, field = world.stack, world.field
    assigned = stack.assigned(field, world.sums, temperature)
    moved = stack.updated(field, assigned, assigned.sums, temperature, strengths, smooth)
    for s, b in world.each():
        expected = oracles.updated(
            world.x[b],
            world.w[b],
            world.v[s][b],
            world.centres(s),
            world.all_sums(s, temperature),
            world.unit,
            temperature,
            world.settings,
            # Without any penalty the field of populations without evidence would not be unique.
            prior if prior + damping > 0 else 1e-12,
            damping,
            smooth,
        )
        atol = 1e-7 if prior + damping > 0 else 1e-4
        found = np.broadcast_to(moved[s, b], stack.x.shape[1:])[: world.sizes[b]]
        np.testing.assert_allclose(found, expected, atol=atol * np.sqrt(world.unit))


@given(st.integers(0, 10_000), st.sampled_from([0.3, 0.85, 0.999]), st.sampled_from([1, 2, 3]))
@settings(max_examples=25)
def test_fields_do_not_bring_neighbours_together(seed, apart, neighbours):
    world = World(seed, settings=replace(SETTINGS, apart=apart, neighbours=neighbours))
    moved = world.stack._contraction_limited(world.field)
    for s, b in world.each():
        expected = oracles.contraction_limited(
            world.x[b], world.w[b], world.v[s][b], apart, neighbours
        )
        np.testing.assert_allclose(moved[s, b, : world.sizes[b]], expected, atol=1e-7)


@given(st.integers(0, 10_000), KINDS)
def test_covariances_of_fields_follow_their_definition(seed, kind):
    world = World(seed, kind)
    kernel = world.stack.kernel
    for b, (x, P) in enumerate(zip(world.x, world.sizes, strict=True)):
        expected = oracles.covariance(x, world.unit, SETTINGS.length)
        np.testing.assert_allclose(
            kernel[b, :P, :P], expected, atol=1e-10 if kind != "far" else 1e-5
        )


@given(st.integers(0, 10_000), KINDS)
def test_fits_follow_their_definition(seed, kind):
    world = World(seed, kind)
    stack, zero = world.stack, np.zeros_like(world.field)
    rest = world.sums.without(stack.assigned(zero, world.sums, 0.3).own)
    found = stack.fit(rest)
    assert found.shape == (2, len(world.sizes))
    for s, b in world.each():
        centres = list(zip(rest.mass[s, b], rest.total[s, b], strict=True))
        expected = oracles.fit(world.x[b], world.w[b], centres, world.unit)
        assert found[s, b] == pytest.approx(expected, abs=1e-9 if kind != "far" else 1e-5)
        assert 0.0 <= found[s, b] <= 2.0 + 1e-12


@given(st.integers(0, 10_000))
def test_sums_without_a_batch(seed):
    world = World(seed, "apart")
    assigned = world.stack.assigned(world.field, world.sums, 0.3)
    rest = assigned.sums.without(assigned.own)
    for s, b in world.each():
        expected = oracles.without(world.all_sums(s, 0.3), world.assignments(s, 0.3)[b][1])
        assert_sums(Sums(rest.mass[s, b], rest.total[s, b]), expected)
    assert (rest.mass == 0).any()  # only the distant batch is at some centres


@given(st.integers(0, 10_000), KINDS)
def test_steps_of_k_means_follow_their_definition(seed, kind):
    world = World(seed, kind)
    found = world.stack.kmeans_step(world.field, world.sums)
    for s in range(2):
        expected = oracles.kmeans_step(world.points(s), world.centres(s))
        assert_sums(Sums(found.mass[s], found.total[s]), expected)
    assert found.mass.sum() == pytest.approx(2 * sum(w.sum() for w in world.w))


@given(st.integers(0, 10_000), KINDS, st.sampled_from([0, 1, 4]))
def test_divisions_by_planes_follow_their_definition(seed, kind, m):
    world = World(seed, kind)
    planes, middle = world.rng.normal(size=(2, 3, m)), world.rng.normal(size=(2, 3))
    found = world.stack.divided(world.field, middle, planes)
    assert found.mass.shape == (2, 2**m)
    for s in range(2):
        expected = oracles.divided(world.points(s), middle[s], planes[s])
        assert_sums(Sums(found.mass[s], found.total[s]), expected)


@given(st.integers(0, 10_000), KINDS)
def test_the_nearest_centre(seed, kind):
    world = World(seed, kind)
    centres = Sums(world.mass[:, None], world.total[:, None])
    distance, which = world.stack.nearest(world.field, centres)
    for s, b in world.each():
        at = oracles.nonempty(world.centres(s))
        for p in range(world.sizes[b]):
            squared = {
                k: oracles.distance2(world.x[b][p] + world.v[s][b][p], c) for k, c in at.items()
            }
            least = np.sqrt(min(squared.values()) / world.unit)
            assert distance[s, b, p] == pytest.approx(least, abs=1e-6 if kind != "far" else 1e-2)
            assert np.sqrt(squared[which[s, b, p]] / world.unit) == pytest.approx(least, abs=1e-2)


@given(st.integers(0, 10_000), st.integers(1, 30))
def test_more_padding_changes_nothing(seed, more):
    world = World(seed)
    padded = Stack.of(
        np.pad(world.padded(world.x), ((0, 0), (0, more), (0, 0))),
        np.pad(world.padded(world.w), ((0, 0), (0, more))),
        world.unit,
        world.settings,
    )
    field = np.pad(world.field, ((0, 0), (0, 0), (0, more), (0, 0)), constant_values=-5.0)
    results = []
    for stack, v in ((world.stack, world.field), (padded, field)):
        assigned = stack.assigned(v, world.sums, 0.3)
        results.append(stack.updated(v, assigned, assigned.sums, 0.3, Strengths(0.2, 0.2), True))
    for s, b in world.each():
        P = world.sizes[b]
        np.testing.assert_allclose(results[1][s, b, :P], results[0][s, b, :P], atol=1e-10)


@given(st.integers(0, 10_000), st.booleans())
def test_single_batches_move_as_in_a_stack(seed, smooth):
    """With the same sums, a stack of one batch has the same result as a stack of all."""
    world = World(seed)
    assigned = world.stack.assigned(world.field, world.sums, 0.6)
    strengths = Strengths(0.2, 0.1)
    together = world.stack.updated(world.field, assigned, assigned.sums, 0.6, strengths, smooth)
    for b, P in enumerate(world.sizes):
        single = Stack.of(world.x[b][None], world.w[b][None], world.unit, world.settings)
        v = world.field[:, b : b + 1, :P]
        own = single.assigned(v, world.sums, 0.6)
        found = single.updated(v, own, assigned.sums, 0.6, strengths, smooth)
        np.testing.assert_allclose(found[:, 0], together[:, b, :P], atol=1e-10)
