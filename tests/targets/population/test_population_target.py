"""The population target from end to end: what it promises, how it grows, and every door to it."""

import itertools
import json
from dataclasses import replace

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from anndata.io import write_elem
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks
from typer.testing import CliRunner

import population_oracles as oracles
from data import cells, make_cells
from scbatchprox import (
    Adapter,
    Atlas,
    BatchProx,
    Moments,
    MomentTarget,
    PopulationTarget,
    refine,
    refine_file,
    set_num_threads,
)
from scbatchprox.cells import file as stream
from scbatchprox.cells.memory import MemoryCells
from scbatchprox.cli.app import app
from scbatchprox.core.labels import Labels
from scbatchprox.core.problem import Weights
from scbatchprox.diagnosis.evidence import evidence
from scbatchprox.targets.population.settings import PopulationSettings

BOTH = pytest.mark.parametrize(
    "target",
    [PopulationTarget(), PopulationTarget(conditioned=False)],
    ids=["conditioned", "per batch"],
)
SHARED = [[0, 1, 2, 3], [0, 1, 2, 4]]


@pytest.fixture
def threads():
    yield set_num_threads
    set_num_threads(None)


def refined(Z, batch, population=None, **options):
    options = {"target": "population"} | options
    return BatchProx(**options).fit_transform(Z, batch=batch, population=population)


@pytest.mark.filterwarnings("ignore:Expected labels as batch")
@parametrize_with_checks(
    [BatchProx(target="population"), BatchProx(target=PopulationTarget(conditioned=False))]
)
def test_is_a_scikit_learn_estimator(estimator, check):
    check(estimator)


class TestOnePopulationABatch:
    """With one population a batch it is the paper's method, mean-only."""

    @given(
        cells(min_size=10, max_batches=8),
        st.booleans(),
        st.sampled_from([1, 3, 10]),
        st.sampled_from([0.0, 1e-3, 0.1]),
        st.sampled_from([0.0, 1e-3, 0.1]),
    )
    @settings(max_examples=120)
    def test_is_the_mean_only_moment_target(self, c, conditioned, rounds, mu, lambda_id):
        options = dict(rounds=rounds, mu=mu, lambda_id=lambda_id)
        one = BatchProx(target=PopulationTarget(conditioned=conditioned), **options)
        result = one.fit_transform(c.Z, batch=c.codes, population=["all"] * len(c.Z))
        plain = BatchProx(target=MomentTarget(variance_matching=False), **options)
        expected = plain.fit_transform(c.Z, batch=c.codes)
        size = max(1.0, np.abs(c.Z).max())
        np.testing.assert_allclose(result, expected, rtol=0, atol=1e-10 * size)
        np.testing.assert_allclose(one.scale_, plain.scale_, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(one.shift_, plain.shift_, rtol=1e-10, atol=1e-10 * size)
        np.testing.assert_allclose(
            one.history_.objective, plain.history_.objective, atol=1e-8 * size**2
        )

    @pytest.mark.parametrize("conditioned", [True, False])
    @pytest.mark.parametrize("rounds", [2, 10])
    def test_for_batches_that_come_later_too(self, rng, conditioned, rounds):
        c = make_cells(rng, [60, 30, 80, 25], 4, offset=10.0)
        models = [
            BatchProx(target=PopulationTarget(conditioned=conditioned), rounds=rounds),
            BatchProx(target=MomentTarget(variance_matching=False), rounds=rounds),
        ]
        for model, extra in zip(models, [{"population": 1}, {}], strict=True):
            for batches in ([0, 1], [2], [3]):
                rows = np.isin(c.codes, batches)
                given = {name: np.full(rows.sum(), x) for name, x in extra.items()}
                model.partial_fit(c.Z[rows], batch=c.codes[rows], **given)
        np.testing.assert_allclose(models[0].scale_, models[1].scale_, atol=1e-10)
        np.testing.assert_allclose(models[0].shift_, models[1].shift_, atol=1e-9)

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("n", [1, 2, 50])
    @BOTH
    def test_a_single_batch_stays(self, rng, target, n):
        Z = rng.normal(size=(n, 3))
        np.testing.assert_array_equal(refined(Z, ["a"] * n, target=target), Z)
        np.testing.assert_array_equal(refined(Z, ["a"] * n, ["x"] * n, target=target), Z)


def shared_and_private(seed, length=4.0, d=12, **options):
    """Two batches, three shared types, a known shift between them, and a type of its own for each."""
    rng = np.random.default_rng(seed)
    shift = oracles.direction(rng, d, length)
    return oracles.typed_cells(rng, SHARED, [0 * shift, shift], d=d, **options)


def check_stay(Z, result, kind, types, unit, part=0.03):
    for t in types:
        assert oracles.moved(Z, result, kind == t) < part * unit, f"type {t}"


def check_meet(Z, result, batch, kind, pairs, part):
    """Types of two batches, as ``(type, one, other)``, are closer than ``part`` of what they were."""
    for t, a, b in pairs:
        before, after = (oracles.gap(X, batch, kind, t, a, b) for X in (Z, result))
        assert after < part * before, f"type {t}"


def check_follow(Z, result, batch, kind, private, part=0.35):
    """Types that only one batch has go as the rest of it does, and stay apart from all others.

    ``private`` holds pairs of a type and its batch; ``part`` is of the way of the rest.
    """
    alone = [t for t, _ in private]
    for t, b in private:
        own, rest = (
            (result - Z)[(batch == b) & rows].mean(0) for rows in (kind == t, ~np.isin(kind, alone))
        )
        assert np.linalg.norm(rest) > 0
        assert np.linalg.norm(own - rest) < part * np.linalg.norm(rest), f"type {t}"
        types = np.unique(kind[batch == b])
        before, after = (
            pdist([X[(batch == b) & (kind == u)].mean(0) for u in types]) for X in (Z, result)
        )
        np.testing.assert_allclose(after, before, rtol=0.1, err_msg=f"batch {b}")
    check_apart(result, kind)


def check_apart(result, kind):
    """The nearest type centre of every cell, among refined cells, is that of its own type."""
    types, code = np.unique(kind, return_inverse=True)
    C = np.stack([result[kind == t].mean(0) for t in types])
    assert (oracles.squared_distances(result, C).argmin(1) == code).mean() > 0.999


PAIR = [(0, 0, 1), (1, 0, 1), (2, 0, 1)]
PRIVATE = [(3, 0), (4, 1)]


class TestWhatOnlyOneBatchHas:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize(("length", "part"), [(2.0, 0.65), (4.0, 0.35), (6.0, 0.35)])
    def test_follows_while_what_is_shared_meets(self, seed, length, part):
        """What is left is about the noise of populations, whatever the distance was."""
        Z, batch, kind = shared_and_private(seed, length)
        result = refined(Z, batch)
        check_meet(Z, result, batch, kind, PAIR, part)
        before, after = (
            np.mean([oracles.offset(X, batch, kind, *pair) for pair in PAIR], axis=0)
            for X in (Z, result)
        )
        assert np.linalg.norm(after) < 0.35 * np.linalg.norm(before)
        check_follow(Z, result, batch, kind, PRIVATE)

    @pytest.mark.parametrize("seed", range(4))
    def test_follows_almost_all_the_way_with_little_of_the_identity_term(self, seed):
        Z, batch, kind = shared_and_private(seed)
        result = refined(Z, batch, lambda_id=1e-5)
        check_meet(Z, result, batch, kind, PAIR, 0.35)
        check_follow(Z, result, batch, kind, PRIVATE, part=0.1)

    @pytest.mark.parametrize("seed", range(4))
    def test_sizes_may_differ(self, seed):
        n = [[300, 40, 150, 60], [60, 200, 40, 250]]
        Z, batch, kind = shared_and_private(seed, n=n)
        result = refined(Z, batch)
        check_meet(Z, result, batch, kind, PAIR, 0.4)
        check_follow(Z, result, batch, kind, PRIVATE)

    @pytest.mark.parametrize("seed", range(3))
    def test_in_a_chain_of_batches(self, seed):
        """No type is in all three; the first and the last have one of their own."""
        rng = np.random.default_rng(seed)
        shift = oracles.direction(rng, 12, 4.0)
        types = [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        Z, batch, kind = oracles.typed_cells(rng, types, [0 * shift, shift, 2 * shift])
        result = refined(Z, batch)
        check_meet(Z, result, batch, kind, [(1, 0, 1), (2, 0, 2), (3, 1, 2)], 0.35)
        check_follow(Z, result, batch, kind, [(0, 0), (4, 2)])

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize(
        "types", [[[0, 1, 2, 3], [4, 5, 6]], [[0, 1, 2, 3, 4], [5, 6]]], ids=str
    )
    @BOTH
    def test_batches_that_share_nothing_stay(self, target, types, seed):
        rng = np.random.default_rng(seed)
        shift = oracles.direction(rng, 12, 4.0)
        Z, batch, kind = oracles.typed_cells(rng, types, [0 * shift, shift])
        result = refined(Z, batch, target=target)
        check_stay(Z, result, kind, range(7), 4.0, part=0.1)

    def test_types_stay_apart(self):
        Z, batch, kind = shared_and_private(1, length=6.0)
        result = refined(Z, batch)
        check_apart(result, kind)
        # The moment target, which the paper has, mixes what is not shared into the rest.
        plain = BatchProx(rounds=None).fit_transform(Z, batch=batch)
        before, after, by_moments = (
            oracles.gap(X, batch, kind, 0, 0, 1) for X in (Z, result, plain)
        )
        assert after < 0.3 * before
        assert by_moments > after

    @pytest.mark.parametrize("seed", range(4))
    def test_one_row_per_batch_shifts_it_as_a_whole(self, seed):
        Z, batch, kind = shared_and_private(seed)
        result = refined(Z, batch, target=PopulationTarget(conditioned=False))
        check_meet(Z, result, batch, kind, PAIR, 0.35)
        check_follow(Z, result, batch, kind, PRIVATE, part=1e-6)

    @pytest.mark.parametrize("seed", range(4))
    def test_follows_when_its_batch_comes_to_a_frozen_reference(self, seed):
        Z, batch, kind = shared_and_private(seed)
        model = BatchProx(target="population").fit(Z[batch == 0], batch=batch[batch == 0])
        model.partial_fit(Z[batch == 1], batch=batch[batch == 1])
        result = model.transform(Z, batch=batch)
        np.testing.assert_array_equal(result[batch == 0], Z[batch == 0])
        check_meet(Z, result, batch, kind, PAIR, 0.35)
        check_follow(Z, result, batch, kind, PRIVATE[1:])

    @pytest.mark.parametrize("seed", range(4))
    def test_a_newcomer_that_shares_nothing_with_a_frozen_reference_stays(self, seed):
        rng = np.random.default_rng(seed)
        shift = oracles.direction(rng, 12, 4.0)
        Z, batch, kind = oracles.typed_cells(rng, [[0, 1, 2, 3], [4, 5, 6]], [0 * shift, shift])
        model = BatchProx(target="population").fit(Z[batch == 0], batch=batch[batch == 0])
        model.partial_fit(Z[batch == 1], batch=batch[batch == 1])
        result = model.transform(Z, batch=batch)
        check_stay(Z, result, kind, range(7), 4.0, part=0.1)

    @pytest.mark.parametrize("seed", range(4))
    def test_follows_with_given_populations(self, seed):
        """The truth itself as populations= cannot do worse than what is found without it."""
        Z, batch, kind = shared_and_private(seed)
        result = refined(Z, batch, kind)
        check_meet(Z, result, batch, kind, PAIR, 0.1)
        check_follow(Z, result, batch, kind, PRIVATE)

    @pytest.mark.parametrize("given", [False, True])
    def test_stays_if_it_is_all_that_the_batch_has(self, given):
        rng = np.random.default_rng(0)
        Z, batch, kind = oracles.typed_cells(rng, [[0, 1, 2, 3], [4]], np.zeros((2, 12)))
        result = refined(Z, batch, kind if given else None)
        check_stay(Z, result, kind, range(5), 4.0, part=0.1)

    @pytest.mark.parametrize("seed", range(4))
    def test_small_batches_among_large_ones(self, seed):
        n = [[200, 200, 200, 200], [12, 9, 10, 8]]
        Z, batch, kind = shared_and_private(seed, n=n)
        result = refined(Z, batch)
        check_meet(Z, result, batch, kind, PAIR, 0.4)
        check_follow(Z, result, batch, kind, PRIVATE)


class TestSymmetries:
    @pytest.fixture
    def data(self):
        rng = np.random.default_rng(5)
        shifts = [oracles.direction(rng, 8, 3.0) for _ in range(3)]
        return oracles.typed_cells(rng, [[0, 1, 2], [1, 2, 3], [0, 2, 3]], shifts, n=70, d=8)[:2]

    @BOTH
    @pytest.mark.parametrize("offset", [10.0, 1e3, -1e5])
    def test_where_the_origin_is(self, data, target, offset):
        """Without the identity term, which holds on to the origin where there is a row per batch."""
        Z, batch = data
        plain = refined(Z, batch, target=target, lambda_id=0)
        far = refined(Z + offset, batch, target=target, lambda_id=0)
        np.testing.assert_allclose(far - offset, plain, rtol=0, atol=1e-6 * max(10.0, abs(offset)))

    @pytest.mark.parametrize("offset", [10.0, 1e3])
    def test_with_the_identity_term_too(self, data, offset):
        Z, batch = data
        np.testing.assert_allclose(
            refined(Z + offset, batch) - offset, refined(Z, batch), rtol=0, atol=1e-6 * offset
        )

    @BOTH
    def test_names_in_the_same_order(self, data, target):
        Z, batch = data
        names = np.array(["a", "longer", "z"])[batch]
        np.testing.assert_array_equal(
            refined(Z, names, target=target), refined(Z, batch, target=target)
        )

    @BOTH
    def test_names_in_another_order(self, data, target):
        """Groups start from other populations and end at the same ones, but for rounding of the path."""
        Z, batch = data
        plain = refined(Z, batch, target=target)
        for names in (["c", "a", "b"], ["b", "c", "a"]):
            other = refined(Z, np.array(names)[batch], target=target)
            assert np.sqrt(((other - plain) ** 2).mean() / ((plain - Z) ** 2).mean()) < 0.02

    @BOTH
    def test_order_of_cells(self, data, rng, target):
        Z, batch = data
        plain = refined(Z, batch, target=target)
        order = rng.permutation(len(Z))
        other = np.empty_like(Z)
        other[order] = refined(Z[order], batch[order], target=target)
        np.testing.assert_allclose(other, plain, rtol=0, atol=1e-6)

    @BOTH
    def test_threads_and_repetition(self, data, target, threads):
        Z, batch = data
        results = []
        for n in (1, 2, 3, 3):
            threads(n)
            results.append(refined(Z, batch, target=target))
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])

    def test_seeds_differ_and_agree(self, data):
        Z, batch = data
        one, two = (refined(Z, batch, target=PopulationTarget(seed=s)) for s in (0, 1))
        assert (one != two).any()
        # Populations of a few cells: how much is left between batches differs.
        assert np.sqrt(((one - two) ** 2).mean() / ((one - Z) ** 2).mean()) < 0.45

    @pytest.mark.parametrize("dtype", [np.float32, np.int64])
    def test_dtypes(self, data, dtype):
        Z, batch = data
        Z = np.round(100 * Z)
        expected = refined(Z, batch)
        result = refined(Z.astype(dtype), batch)
        assert result.dtype == (np.float32 if dtype is np.float32 else np.float64)
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-2)

    def test_sparse(self, data):
        Z, batch = data
        Z = np.where(np.abs(Z) > 1, Z, 0.0)
        np.testing.assert_allclose(
            refined(sp.csr_matrix(Z), batch), refined(Z, batch), rtol=1e-10, atol=1e-10
        )


SIZES = [160, 90, 60, 200, 35]


@pytest.fixture
def grow():
    """Cells of five batches that share most of their types."""
    rng = np.random.default_rng(11)
    types = [[0, 1, 2], [0, 1, 3], [1, 2, 3], [0, 2, 3], [0, 1, 2]]
    shifts = [oracles.direction(rng, 6, 2.5) for _ in range(5)]
    n = [[m // 3] * 3 for m in SIZES]
    Z, codes, _ = oracles.typed_cells(rng, types, shifts, n=n, d=6, sep=9.0)
    return Z, codes


def some_of(data, *batches):
    Z, codes = data
    rows = np.isin(codes, batches)
    return Z[rows], codes[rows]


def grown(data, target, start, *arrivals, policy="frozen", **options):
    Z, codes = some_of(data, *start)
    model = BatchProx(target=target, **options).fit(Z, batch=codes)
    for batches in arrivals:
        Z, codes = some_of(data, *batches)
        model.partial_fit(Z, batch=codes, policy=policy)
    return model


def parts(model):
    """Everything that a fitted model knows, by name."""
    found = {"scale": model.scale_, "shift": model.shift_, "batches": model.batches_}
    if model.adapter_.anchors is not None:
        found["bandwidth"] = model.adapter_.bandwidth
        found["anchor"] = model.adapter_.anchors
        found["anchor_batch"] = model.adapter_.batch
    for name in ("reference", "added", "moments"):
        summary = getattr(model.fit_, name)
        found[f"{name}.batches"] = summary.batches
        for field in ("batch", "n", "mean", "m2", "anchors"):
            found[f"{name}.{field}"] = getattr(summary, field)
    if (consensus := model.fit_.consensus) is not None:
        for field in ("origin", "unit", "mass", "total"):
            found[f"consensus.{field}"] = np.asarray(getattr(consensus, field))
    return found


def assert_bits(a, b):
    one, two = parts(a), parts(b)
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def assert_same(a, b):
    one, two = parts(a), parts(b)
    assert one.keys() == two.keys()
    for name in one:
        if one[name].dtype.kind == "f":
            np.testing.assert_allclose(one[name], two[name], rtol=1e-10, atol=1e-10, err_msg=name)
        else:
            np.testing.assert_array_equal(one[name], two[name], err_msg=name)


def rows_of(model, batch):
    """Rows of the adapter that belong to a batch."""
    b = model.batches_.tolist().index(batch)
    mine = model.adapter_.batch == b
    return model.scale_[mine], model.shift_[mine]


@BOTH
class TestRefit:
    @pytest.mark.parametrize("options", [{}, {"rounds": 3}, {"mu": 0}, {"strength": 0.5}], ids=str)
    def test_equals_a_fit_on_all_cells(self, grow, target, options):
        whole = BatchProx(target=target, **options).fit(grow[0], batch=grow[1])
        for arrivals in ([[2], [4, 3]], [[3, 2, 4]], [[4], [2], [3]]):
            model = grown(grow, target, [0, 1], *arrivals, policy="refit", **options)
            assert_same(model, whole)

    def test_after_a_frozen_arrival(self, grow, target):
        model = grown(grow, target, [0, 1], [2])
        model.partial_fit(*some_of(grow, 3)[:1], batch=some_of(grow, 3)[1], policy="refit")
        assert_same(model, grown(grow, target, [0, 1, 2, 3]))

    def test_more_cells_of_a_known_batch_join_its_populations(self, grow, target):
        """Equal to a fit on the populations of the first half with all cells counted at them."""
        Z, codes = grow
        first = np.arange(len(Z)) % 3 > 0
        model = BatchProx(target=target).fit(Z[first], batch=codes[first])
        before = model.fit_.moments
        model.partial_fit(Z[~first], batch=codes[~first], policy="refit")
        np.testing.assert_array_equal(model.fit_.moments.anchors, before.anchors)
        assert model.moments_.n.tolist() == np.bincount(codes).tolist()
        counted = Moments.of(Z, oracles.nearest_row(Z, codes, before))
        np.testing.assert_array_equal(model.fit_.moments.n, counted.n)
        again = BatchProx(target=target).fit_moments(
            replace(before, n=counted.n, mean=counted.mean, m2=counted.m2)
        )
        np.testing.assert_allclose(model.scale_, again.scale_, atol=1e-10)
        np.testing.assert_allclose(model.shift_, again.shift_, atol=1e-10)


@BOTH
class TestFrozen:
    def test_leaves_every_existing_row_alone(self, grow, target):
        before = grown(grow, target, [0, 3])
        after = grown(grow, target, [0, 3], [1, 2], [4])
        assert after.batches_.tolist() == [0, 1, 2, 3, 4]
        for batch in (0, 3):
            for one, two in zip(rows_of(before, batch), rows_of(after, batch), strict=True):
                np.testing.assert_array_equal(one, two)
        Z, codes = some_of(grow, 0, 3)
        np.testing.assert_array_equal(
            before.transform(Z, batch=codes), after.transform(Z, batch=codes)
        )

    @pytest.mark.parametrize("order", list(itertools.permutations([2, 3, 4])))
    def test_no_order_of_arrival_matters(self, grow, target, order):
        together = grown(grow, target, [0, 1], [2, 3, 4])
        assert_bits(grown(grow, target, [0, 1], *[[b] for b in order]), together)
        assert_bits(grown(grow, target, [0, 1], [order[0]], list(order[1:])), together)

    def test_nor_does_company_for_larger_batches(self, target):
        """More rows than a loop takes at a time, and more populations than a few hundred."""
        rng = np.random.default_rng(0)
        codes = rng.permutation(np.repeat(np.arange(11), 400))
        Z = rng.normal(size=(len(codes), 40)) + rng.normal(size=(11, 40))[codes]
        together = grown((Z, codes), target, [0], list(range(1, 11)))
        one_by_one = grown((Z, codes), target, [0], *[[b] for b in range(1, 11)])
        assert_bits(one_by_one, together)

    def test_a_newcomer_moves(self, grow, target):
        model = grown(grow, target, [0, 1], [3])
        Z, codes = some_of(grow, 3)
        assert np.abs(model.transform(Z, batch=codes) - Z).max() > 0.5

    def test_more_cells_of_a_known_batch_count_and_move_nothing(self, grow, target):
        model = grown(grow, target, [0, 1], [2])
        before = parts(model)
        for batches in ([0], [2], [0, 1, 2]):
            Z, codes = some_of(grow, *batches)
            model.partial_fit(Z[::2], batch=codes[::2])
        after = parts(model)
        for name in before:
            if not name.startswith("moments."):
                np.testing.assert_array_equal(before[name], after[name], err_msg=name)
        expected = {b: (grow[1] == b).sum() for b in (0, 1, 2)}
        for batches in ([0], [2], [0, 1, 2]):
            codes = some_of(grow, *batches)[1][::2]
            for b in batches:
                expected[b] += (codes == b).sum()
        assert model.moments_.n.tolist() == list(expected.values())

    def test_old_and_new_batches_at_once(self, grow, target):
        """More cells of batch 0 beside a new batch: the new one gets the row that it gets alone."""
        model = grown(grow, target, [0, 1])
        Z, codes = some_of(grow, 0, 2)
        model.partial_fit(Z, batch=codes)
        alone = grown(grow, target, [0, 1], [2])
        np.testing.assert_array_equal(model.scale_, alone.scale_)
        np.testing.assert_array_equal(model.shift_, alone.shift_)
        assert model.moments_.n[0] == 2 * alone.moments_.n[0]


@BOTH
class TestForget:
    @pytest.mark.parametrize("batch", [0, 2, 4])
    def test_of_a_fit_equals_never_having_seen(self, grow, target, batch):
        rest = [b for b in range(5) if b != batch]
        model = BatchProx(target=target).fit(grow[0], batch=grow[1]).forget(batch)
        assert_same(model, grown(grow, target, rest))

    @pytest.mark.parametrize("batch", [2, 3])
    def test_of_an_added_batch_takes_only_its_rows(self, grow, target, batch):
        model = grown(grow, target, [0, 1], [2, 3]).forget(batch)
        assert_bits(model, grown(grow, target, [0, 1], [5 - batch]))

    def test_of_a_reference_batch_changes_the_reference(self, grow, target):
        model = grown(grow, target, [0, 1, 4], [2, 3]).forget(4)
        assert_same(model, grown(grow, target, [0, 1], [2, 3]))

    def test_after_a_refit(self, grow, target):
        model = grown(grow, target, [0, 1], [2, 3], policy="refit").forget(1)
        assert_same(model, grown(grow, target, [0, 2, 3]))

    def test_after_more_cells_of_it(self, grow, target):
        model = grown(grow, target, [0, 1], [2], [2])
        assert_bits(model.forget(2), grown(grow, target, [0, 1]))

    def test_unknown_and_last(self, grow, target):
        model = grown(grow, target, [0, 1])
        with pytest.raises(KeyError, match="found 7; available: 0, 1"):
            model.forget(7)
        model.forget(0)
        with pytest.raises(ValueError, match="found that 1 is its last"):
            model.forget(1)
        assert model.batches_.tolist() == [1]


@BOTH
class TestSaved:
    def test_to_the_bit(self, grow, target, tmp_path):
        names = np.array(["a", "b b", "c", "dd", "e"])
        data = grow[0], names[grow[1]]
        model = grown(data, target, ["a", "b b"], ["dd"], ["a"])
        model.save(tmp_path / "m.safetensors")
        back = BatchProx.load(tmp_path / "m.safetensors")
        assert back.get_params() == model.get_params()
        assert_bits(model, back)
        Z, batch = some_of(data, "a", "dd")
        np.testing.assert_array_equal(
            back.transform(Z, batch=batch), model.transform(Z, batch=batch)
        )
        # It goes on growing and shrinking as the other does.
        Z, batch = some_of(data, "c", "e")
        for other in (model, back):
            other.partial_fit(Z, batch=batch)
        assert_bits(model, back)
        assert_bits(model.forget("b b"), back.forget("b b"))
        Z, batch = some_of(data, "b b")
        for other in (model, back):
            other.partial_fit(Z, batch=batch, policy="refit")
        assert_bits(model, back)

    def test_the_adapter_alone(self, grow, target, tmp_path):
        model = grown(grow, target, [0, 1])
        model.save(tmp_path / "m.safetensors")
        model.adapter_.save(tmp_path / "a.safetensors")
        Z, codes = some_of(grow, 0, 1)
        for name in ("m", "a"):
            adapter = Adapter.load(tmp_path / f"{name}.safetensors")
            np.testing.assert_array_equal(adapter.apply(Z, codes), model.transform(Z, batch=codes))

    def test_options_of_the_target(self, grow, target, tmp_path):
        settings = PopulationSettings(cells=25, coarse=(0.9, 0.4), length=3.0)
        mine = PopulationTarget(conditioned=target.conditioned, seed=3, settings=settings)
        model = grown(grow, mine, [0, 1])
        model.save(tmp_path / "m.safetensors")
        assert BatchProx.load(tmp_path / "m.safetensors").target == mine


class TestAtlas:
    @pytest.fixture
    def near(self, grow):
        return grow[0], np.array(["a", "b", "c", "d", "e"])[grow[1]]

    @BOTH
    def test_is_a_model_on_disk(self, near, target, tmp_path):
        atlas = Atlas.create(tmp_path / "atlas", target=target)
        model = BatchProx(target=target)
        for batches, policy in ((["a", "b"], "frozen"), ("c", "frozen"), ("d", "refit")):
            Z, batch = some_of(near, *batches)
            atlas.add(Z, batch, policy=policy, force=True)
            model.partial_fit(Z, batch=batch, policy=policy)
            assert_bits(Atlas(tmp_path / "atlas").model, model)
        atlas.forget("b")
        model.forget("b")
        assert_bits(Atlas(tmp_path / "atlas").model, model)
        version = atlas.version
        atlas.rollback(3)
        assert atlas.version == version + 1
        assert_bits(Atlas(tmp_path / "atlas").model, grown(near, target, ["a", "b"], ["c"]))

    def test_more_cells_of_a_known_batch(self, near, tmp_path):
        atlas = Atlas.create(tmp_path / "atlas", target="population")
        atlas.add(*some_of(near, "a", "b"))
        before = atlas.model
        Z, batch = some_of(near, "a")
        with pytest.raises(ValueError, match="found 'a' in the atlas already"):
            atlas.add(Z, batch)
        atlas.add(Z, batch, merge=True)
        np.testing.assert_array_equal(atlas.model.shift_, before.shift_)
        assert atlas.model.moments_.n.tolist() == (before.moments_.n * [2, 1]).tolist()

    def test_refit_on_forgetting_and_a_dry_run(self, near, tmp_path):
        atlas = Atlas.create(tmp_path / "atlas", target="population")
        atlas.add(*some_of(near, "a", "b"))
        arrival = atlas.add(*some_of(near, "c"), dry_run=True)
        assert arrival.version is None
        assert arrival.judgement.index.tolist() == ["c"]
        assert atlas.model.batches_.tolist() == ["a", "b"]
        atlas.add(*some_of(near, "c"), force=True)
        atlas.forget("a", policy="refit")
        assert_same(atlas.model, grown(near, "population", ["b", "c"]))

    def test_files_arrive_and_are_refined(self, near, tmp_path):
        atlas = Atlas.create(tmp_path / "atlas", target="population")
        for batches in (["a", "b"], ["c"]):
            Z, batch = some_of(near, *batches)
            write_h5ad(tmp_path / "cells.h5ad", Z, batch)
            atlas.add_file(tmp_path / "cells.h5ad", "batch", force=True)
        model = grown(near, "population", ["a", "b"], ["c"])
        np.testing.assert_allclose(atlas.model.shift_, model.shift_, atol=1e-10)
        atlas.apply_file(tmp_path / "cells.h5ad", "batch", out=tmp_path / "out.h5ad")
        np.testing.assert_allclose(
            ad.read_h5ad(tmp_path / "out.h5ad").obsm["X_pca_batchprox"],
            model.transform(Z, batch=batch),
            atol=1e-9,
        )

    def test_populations_are_enough(self, near, tmp_path):
        """What a site sends instead of cells."""
        Z, batch = some_of(near, "a", "b")
        summary = BatchProx(target="population").describe(MemoryCells(Z, Labels.of(batch, len(Z))))
        atlas = Atlas.create(tmp_path / "atlas", target="population")
        atlas.add(summary)
        assert_bits(atlas.model, grown(near, "population", ["a", "b"]))
        with pytest.raises(
            TypeError, match="Expected moments of populations .*found moments of whole"
        ):
            atlas.add(Moments.of(*some_of(near, "c")))
        assert atlas.version == 2


def write_h5ad(path, Z, batch, **obs):
    frame = pd.DataFrame({"batch": batch} | obs, index=[f"c{i}" for i in range(len(Z))])
    adata = ad.AnnData(obs=frame, obsm={"X_pca": Z})
    adata.write_h5ad(path)
    return adata


class TestDoors:
    @pytest.fixture
    def data(self, grow):
        rng = np.random.default_rng(0)
        leiden = rng.choice(["1", "2", "3"], len(grow[0]))
        return grow[0], np.array(["a", "b", "c", "d", "e"])[grow[1]], leiden

    @pytest.fixture
    def adata(self, data):
        Z, batch, leiden = data
        obs = pd.DataFrame(
            {"batch": batch, "leiden": pd.Categorical(leiden)},
            index=[f"c{i}" for i in range(len(Z))],
        )
        return ad.AnnData(obs=obs, obsm={"X_pca": Z, "small": Z.astype(np.float32)})

    @pytest.mark.filterwarnings("ignore:.*zarr", "ignore:Consolidated metadata")
    @pytest.mark.parametrize("kind", ["h5ad", "zarr", "npy"])
    @pytest.mark.parametrize("given", [False, True])
    @pytest.mark.parametrize("chunk", [1 << 25, 2000])
    def test_files(self, adata, data, tmp_path, monkeypatch, kind, given, chunk):
        Z, batch, leiden = data
        monkeypatch.setattr(stream, "CHUNK_BYTES", chunk)
        expected = refined(Z, batch, leiden if given else None)
        path, out, options = tmp_path / f"x.{kind}", tmp_path / f"y.{kind}", {}
        if kind == "h5ad":
            adata.write_h5ad(path)
        elif kind == "zarr":
            import zarr

            write_elem(zarr.open_group(path, mode="w", zarr_format=2), "/", adata)
        else:
            np.save(path, Z)
            adata.obs.to_csv(tmp_path / "labels.csv", index=False)
            options = {"labels": tmp_path / "labels.csv"}
        refine_file(
            path, "batch", model=BatchProx(target="population"), out=out,
            population_key="leiden" if given else None, **options,
        )  # fmt: skip
        result = (
            np.load(out)
            if kind == "npy"
            else getattr(ad, f"read_{kind}")(out).obsm["X_pca_batchprox"]
        )
        np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-10)

    @BOTH
    def test_single_precision_in_small_chunks(self, adata, data, tmp_path, monkeypatch, target):
        monkeypatch.setattr(stream, "CHUNK_BYTES", 700)
        adata.write_h5ad(tmp_path / "x.h5ad")
        model = refine_file(
            tmp_path / "x.h5ad", "batch", model=BatchProx(target=target), use_rep="small"
        )
        expected = refined(adata.obsm["small"], data[1], target=target)
        result = ad.read_h5ad(tmp_path / "x.h5ad").obsm["small_batchprox"]
        assert result.dtype == expected.dtype == np.float32
        np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-6)
        assert model.moments_.n_cells == len(expected)

    @BOTH
    def test_the_paper_s_optimiser_on_a_file(self, adata, tmp_path, target):
        adata.write_h5ad(tmp_path / "x.h5ad")
        model = BatchProx(target=target, solver="adam", rounds=1)
        with pytest.raises(ValueError, match="Expected solver='exact' for target='population'"):
            refine_file(tmp_path / "x.h5ad", "batch", model=model, out=tmp_path / "y.h5ad")
        assert not (tmp_path / "y.h5ad").exists()

    def test_a_file_with_nan_says_where(self, adata, tmp_path, monkeypatch):
        monkeypatch.setattr(stream, "CHUNK_BYTES", 700)
        adata.obsm["X_pca"][321, 2] = np.nan
        adata.write_h5ad(tmp_path / "x.h5ad")
        model = BatchProx(target="population")
        with pytest.raises(ValueError, match="Expected finite values.*row 321, column 2"):
            refine_file(tmp_path / "x.h5ad", "batch", model=model, out=tmp_path / "y.h5ad")
        assert not (tmp_path / "y.h5ad").exists()

    @pytest.mark.parametrize(
        "chunks", [(540, 6), (100, 6), (37, 2), ((1, 0, 300, 239), 6)], ids=str
    )
    @pytest.mark.parametrize("given", [False, True])
    def test_dask(self, data, chunks, given):
        da = pytest.importorskip("dask.array")
        dask = pytest.importorskip("dask")
        Z, batch, leiden = data
        lazy = da.from_array(Z, chunks=chunks)
        population = leiden if given else None
        model = BatchProx(target="population")
        with dask.config.set(scheduler="synchronous"):
            result = model.fit_transform(lazy, batch=batch, population=population)
            assert isinstance(result, da.Array)
            np.testing.assert_allclose(
                result.compute(), refined(Z, batch, population), rtol=1e-10, atol=1e-10
            )
            np.testing.assert_array_equal(
                model.transform(lazy, batch=batch).compute(), model.transform(Z, batch=batch)
            )

    @BOTH
    def test_dask_arrays_arrive_too(self, grow, target):
        da = pytest.importorskip("dask.array")
        Z, codes = some_of(grow, 0, 2, 3)
        model = grown(grow, target, [0, 1])
        model.partial_fit(da.from_array(Z, chunks=(50, 6)), batch=codes)
        assert_same(model, grown(grow, target, [0, 1], [0, 2, 3]))

    def test_sparse_dask_blocks(self, data):
        da = pytest.importorskip("dask.array")
        Z, batch, _ = data
        Z = np.where(Z > 0, Z, 0.0)
        lazy = da.from_array(Z, chunks=(100, 6)).map_blocks(sp.csr_matrix)
        np.testing.assert_allclose(
            refined(lazy, batch).compute(), refined(Z, batch), rtol=1e-10, atol=1e-10
        )

    def test_dask_nan_says_where(self, data):
        da = pytest.importorskip("dask.array")
        Z, batch, _ = data
        Z = Z.copy()
        Z[321, 2] = np.nan
        with pytest.raises(ValueError, match="Expected finite values.*row 321, column 2"):
            refined(da.from_array(Z, chunks=(100, 6)), batch)

    def test_anndata(self, adata, data, tmp_path):
        Z, batch, leiden = data
        refine(adata, "batch", target="population")
        np.testing.assert_array_equal(adata.obsm["X_pca_batchprox"], refined(Z, batch))
        refine(adata, "batch", target="population", population_key="leiden", key_added="mine")
        np.testing.assert_array_equal(adata.obsm["mine"], refined(Z, batch, leiden))
        refine(adata, "batch", target=PopulationTarget(conditioned=False), key_added="per_batch")
        adata.write_h5ad(tmp_path / "x.h5ad")
        back = ad.read_h5ad(tmp_path / "x.h5ad")
        assert "population" in str(back.uns["mine"]["params"]["target"])
        np.testing.assert_array_equal(back.obsm["mine"], adata.obsm["mine"])

    def test_anndata_bad_populations(self, adata):
        for options, error, message in [
            ({"population_key": "leiden"}, ValueError, "only with target='population'"),
            ({"population_key": "nope", "target": "population"}, KeyError, "nope"),
        ]:
            with pytest.raises(error, match=message):
                refine(adata, "batch", **options)
        adata.obs["holes"] = adata.obs["leiden"].astype(object).where(adata.obs["leiden"] != "2")
        with pytest.raises(ValueError, match="Expected a population"):
            refine(adata, "batch", target="population", population_key="holes")
        assert set(adata.obsm) == {"X_pca", "small"}

    def test_command_line(self, adata, data, tmp_path):
        Z, batch, leiden = data
        path, out, model = (tmp_path / name for name in ("x.h5ad", "y.h5ad", "m.safetensors"))
        adata.write_h5ad(path)

        def run(*arguments, code=0):
            result = CliRunner().invoke(app, [str(a) for a in arguments])
            assert result.exit_code == code, result.output
            return result.output

        refine_it = ["refine", path, "--batch-key", "batch", "--target", "population"]
        run(*refine_it, "--population-key", "leiden", "--out", out, "--model", model)
        np.testing.assert_allclose(
            ad.read_h5ad(out).obsm["X_pca_batchprox"], refined(Z, batch, leiden), atol=1e-9
        )
        run("apply", path, "--model", model, "--out", tmp_path / "z.h5ad")
        np.testing.assert_allclose(
            ad.read_h5ad(tmp_path / "z.h5ad").obsm["X_pca_batchprox"],
            refined(Z, batch, leiden),
            atol=1e-9,
        )
        facts = json.loads(run("inspect", model, "--json"))
        assert facts["batches"] == list("abcde")
        said = run("inverse", out, "--model", model, "--out", tmp_path / "w.h5ad", code=2)
        assert "a row per population" in " ".join(said.split())
        assert not (tmp_path / "w.h5ad").exists()
        run(*refine_it, "--per-batch", "--seed", "3", "--out", out)
        target = PopulationTarget(conditioned=False, seed=3)
        np.testing.assert_allclose(
            ad.read_h5ad(out).obsm["X_pca_batchprox"],
            refined(Z, batch, target=target),
            atol=1e-9,
        )
        run(
            "refine",
            path,
            "--batch-key",
            "batch",
            "--population-key",
            "leiden",
            "--out",
            out,
            code=2,
        )

    def test_sites_that_send_populations(self, grow):
        """Federated: each site describes its own cells, and nothing else is needed."""
        sites = []
        for b in range(5):
            Z, codes = some_of(grow, b)
            blank = BatchProx(target="population")
            sites.append(blank.describe(MemoryCells(Z, Labels.of(codes, len(Z)))))
        merged = sites[3]
        for other in (0, 4, 1, 2):
            merged = merged.merge(sites[other])
        model = BatchProx(target="population").fit_moments(merged)
        assert_same(model, grown(grow, "population", range(5)))


class TestOptions:
    @pytest.fixture
    def c(self, rng):
        return make_cells(rng, [80, 60], 4)

    @BOTH
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_no_strength_moves_nothing_to_the_bit(self, grow, target, dtype):
        Z, codes = (grow[0] + 1e3).astype(dtype), grow[1]
        model = grown((Z, codes), target, [0, 1, 4], [2, 3], strength=0.0).forget(4)
        Z, codes = some_of((Z, codes), 0, 1, 2, 3)
        np.testing.assert_array_equal(model.transform(Z, batch=codes), Z)

    @BOTH
    def test_strength_scales_how_far_every_cell_goes(self, grow, target):
        Z, codes = grow
        full = refined(Z, codes, target=target)
        half = refined(Z, codes, target=target, strength=0.5)
        np.testing.assert_allclose(half - Z, 0.5 * (full - Z), atol=1e-10)

    def test_rounds_by_themselves(self, grow):
        Z, codes = grow
        auto = BatchProx(target="population").fit(Z, batch=codes)
        ten = BatchProx(target="population", rounds=10).fit(Z, batch=codes)
        np.testing.assert_array_equal(auto.shift_, ten.shift_)
        few = BatchProx(target="population", rounds=3).fit(Z, batch=codes)
        assert np.abs(few.shift_ - auto.shift_).max() > 1e-3
        np.testing.assert_array_equal(
            BatchProx().fit(Z, batch=codes).shift_, BatchProx(rounds=3).fit(Z, batch=codes).shift_
        )

    @BOTH
    def test_there_is_no_fixed_point(self, grow, target):
        with pytest.raises(ValueError, match="Expected a whole number of rounds .*found None"):
            refined(*grow, target=target, rounds=None)

    @BOTH
    @pytest.mark.parametrize("options", [{"rounds": 0}, {"lambda_target": 0}], ids=str)
    def test_no_rounds_and_no_evidence_move_nothing(self, grow, target, options):
        np.testing.assert_array_equal(refined(*grow, target=target, **options), grow[0])

    @BOTH
    @pytest.mark.parametrize("name", ["mu", "lambda_id"])
    def test_what_holds_back_does(self, grow, target, name):
        """The more weight a term has, the less far cells go in the same rounds."""
        Z, codes = grow
        ways = [
            np.linalg.norm(refined(Z, codes, target=target, **{name: weight}) - Z, axis=1).mean()
            for weight in (0.0, 0.1, 1.0, 10.0)
        ]
        assert ways == sorted(ways, reverse=True)
        assert ways[-1] < 0.7 * ways[0]

    @BOTH
    def test_only_the_ratio_of_weights_counts(self, grow, target):
        one = refined(*grow, target=target, lambda_target=1.0, mu=0.1, lambda_id=0.02)
        two = refined(*grow, target=target, lambda_target=0.5, mu=0.05, lambda_id=0.01)
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("target", ["population", PopulationTarget()])
    @pytest.mark.parametrize("options", [{"variance_matching": False}, {"eps": 1e-3}], ids=str)
    def test_what_belongs_to_the_moment_target(self, c, target, options):
        """Options live on the target that uses them."""
        with pytest.raises(TypeError, match=next(iter(options))):
            BatchProx(target=target, **options)
        with pytest.raises(TypeError, match=next(iter(options))):
            PopulationTarget(**options)

    @pytest.mark.parametrize("target", ["populations", PopulationTarget, 3, None])
    def test_no_such_target(self, c, target):
        with pytest.raises(
            ValueError, match="Expected target to be one of 'moment', 'population' or a target"
        ):
            BatchProx(target=target).fit(c.Z, batch=c.codes)

    def test_target_objects(self, c):
        named = BatchProx(target="population").fit(c.Z, batch=c.codes)
        given = BatchProx(target=PopulationTarget()).fit(c.Z, batch=c.codes)
        np.testing.assert_array_equal(named.shift_, given.shift_)
        moment = BatchProx(target=MomentTarget(variance_matching=False)).fit(c.Z, batch=c.codes)
        assert (moment.scale_ != BatchProx().fit(c.Z, batch=c.codes).scale_).any()
        model = BatchProx(target=PopulationTarget(seed=2, settings=PopulationSettings(cells=20)))
        assert clone(model).get_params() == model.get_params()

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"settings": {"cells": 15}}, TypeError, "Expected settings to be PopulationSettings"),
            ({"settings": None}, TypeError, "Expected settings to be PopulationSettings"),
            ({"seed": -1}, ValueError, "Expected seed"),
            ({"seed": 0.5}, (TypeError, ValueError), "Expected seed"),
            ({"conditioned": 1}, TypeError, "Expected conditioned to be True or False"),
        ],
    )
    def test_options_that_make_no_sense(self, options, error, message):
        with pytest.raises(error, match=message):
            PopulationTarget(**options)

    @BOTH
    def test_the_paper_s_optimiser(self, c, target):
        with pytest.raises(ValueError, match=r"Expected solver='exact' for target='population'"):
            BatchProx(target=target, solver="adam", rounds=2).fit(c.Z, batch=c.codes)

    @BOTH
    def test_a_model_without_a_consensus_needs_a_refit(self, grow, target):
        """As written by version 0.1.0, or fitted with nothing that moves."""
        model = grown(grow, target, [0, 1], rounds=0).set_params(rounds="auto")
        before = parts(model)
        Z, codes = some_of(grow, 2)
        with pytest.raises(ValueError, match="fit it anew first"):
            model.partial_fit(Z, batch=codes)
        for name, value in parts(model).items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
        model.partial_fit(Z, batch=codes, policy="refit")
        assert_same(model, grown(grow, target, [0, 1, 2]))

    def test_there_is_no_way_back_with_a_row_per_population(self, c):
        model = BatchProx(target="population").fit(c.Z, batch=c.codes)
        with pytest.raises(
            ValueError, match=r"^Expected [^.]*a row per population[^.]*conditioned=False\.$"
        ):
            model.inverse_transform(c.Z, batch=c.codes)
        model = BatchProx(target=PopulationTarget(conditioned=False)).fit(c.Z, batch=c.codes)
        back = model.inverse_transform(model.transform(c.Z, batch=c.codes), batch=c.codes)
        np.testing.assert_allclose(back, c.Z, atol=1e-9)

    def test_given_populations(self, c):
        n = len(c.Z)
        with pytest.raises(ValueError, match="only with target='population'"):
            BatchProx().fit(c.Z, batch=c.codes, population=["x"] * n)
        with pytest.raises(ValueError, match=rf"Expected one .*label per cell \({n}\), found 3"):
            BatchProx(target="population").fit(c.Z, batch=c.codes, population=["x"] * 3)
        model = BatchProx(target="population").fit(c.Z, batch=c.codes, population=np.arange(n) % 2)
        before = model.shift_
        with pytest.raises(ValueError, match="Expected given populations for new batches only"):
            model.partial_fit(c.Z, batch=c.codes, population=np.arange(n) % 2)
        assert model.shift_ is before
        model.partial_fit(c.Z, batch=c.codes)
        assert model.fit_.moments.n.sum() == 2 * n
        assert len(model.fit_.moments.n) == 4

    def test_bad_input_changes_nothing(self, grow):
        model = grown(grow, "population", [0, 1])
        before = parts(model)
        Z, codes = some_of(grow, 2)
        broken = Z.copy()
        broken[5, 3] = np.inf
        for arguments, batch, error, message in [
            ((Z[:, :2],), codes, ValueError, "expecting 6 features"),
            ((broken,), codes, ValueError, "row 5, column 3"),
            ((Z[:0],), codes[:0], ValueError, "at least one cell"),
            ((Z,), codes.astype(str), TypeError, "of one type"),
        ]:
            with pytest.raises(error, match=message):
                model.partial_fit(*arguments, batch=batch)
        for name, value in parts(model).items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)

    def test_moments_of_the_wrong_kind(self, c):
        moments = Moments.of(c.Z, c.codes)
        with pytest.raises(
            TypeError, match="Expected moments of populations .*found moments of whole"
        ):
            BatchProx(target="population").fit_moments(moments)
        model = BatchProx(target="population").fit(c.Z, batch=c.codes)
        with pytest.raises(
            TypeError, match="Expected moments of whole batches .*found .* populations"
        ):
            BatchProx().fit_moments(model.fit_.moments)
        with pytest.raises(
            TypeError, match="Expected moments of populations .*found moments of whole"
        ):
            model.partial_fit_moments(moments)


class TestEvidence:
    @pytest.mark.parametrize("seed", range(4))
    def test_says_what_has_partners(self, seed):
        Z, batch, _ = shared_and_private(seed)
        some = MemoryCells(Z, Labels.of(batch, len(Z)))
        for target in ("population", "moment"):
            found = evidence(BatchProx(target=target).fit(Z, batch=batch).fit_, some)
            np.testing.assert_allclose(found.matched, 0.75, atol=0.08)
            assert not found.by_mean.any()

    @BOTH
    def test_is_about_where_populations_are_now(self, grow, target):
        Z, codes = grow
        model = BatchProx(target=target, strength=0.5).fit(Z, batch=codes)
        found = evidence(model.fit_, MemoryCells(Z, Labels.of(codes, len(Z))))
        full = BatchProx(target=target).fit(Z, batch=codes)
        rows = full.fit_.moments
        batch = rows.batch
        shift = full.shift_ if target.conditioned else full.shift_[batch]
        np.testing.assert_array_equal(full.scale_, 1.0)
        np.testing.assert_allclose(found.moved, rows.mean + shift, rtol=0, atol=1e-9)

    def test_rows_per_batch_follow_the_mean_way_of_their_cells(self, grow):
        """Least squares for the shift of a batch: the average of its cells' ways."""
        Z, codes = grow
        summary = BatchProx(target="population").fit(Z, batch=codes).fit_.moments
        each, whole = (
            PopulationTarget(conditioned=conditioned).aim(summary, Weights(), 10).target
            for conditioned in (True, False)
        )
        way = each.center - summary.mean
        for b in range(5):
            own = summary.batch == b
            expected = np.average(way[own], axis=0, weights=summary.n[own])
            np.testing.assert_allclose(whole.center[b] - whole.mean[b], expected, atol=1e-10)
            np.testing.assert_allclose(whole.mean[b], Z[codes == b].mean(0), atol=1e-10)
        for target in (each, whole):
            np.testing.assert_array_equal(target.scale, 1.0)


def far_away(d, n):
    """Two batches of the same five types, so far from each other that nothing is near anything."""
    rng = np.random.default_rng(0)
    types = [[0, 1, 2, 3, 4]] * 2
    Z, batch, kind = oracles.typed_cells(rng, types, np.zeros((2, d)), n=n, d=d, sep=8.0)
    Z[batch == 1] += oracles.direction(rng, d, 200.0)
    return Z, batch, kind


class TestBatchesThatLieApart:
    @pytest.mark.parametrize("d", [5, 8, 10, 20])
    @pytest.mark.parametrize("lambda_id", [1e-3, 0.0])
    @pytest.mark.parametrize("together", [True, False], ids=["together", "later"])
    @BOTH
    def test_one_that_has_the_shape_of_the_others_goes_by_its_mean(
        self, target, together, lambda_id, d
    ):
        """And then it has neighbours, which it is registered to: every type meets its like."""
        Z, batch, kind = far_away(d, [[200, 120, 60, 90, 150]] * 2)
        model = BatchProx(target=target, lambda_id=lambda_id)
        for part in [[0, 1]] if together else [[0], [1]]:
            rows = np.isin(batch, part)
            model.partial_fit(Z[rows], batch=batch[rows])
        result = model.transform(Z, batch=batch)
        check_meet(Z, result, batch, kind, [(t, 0, 1) for t in range(5)], 0.01)
        check_apart(result, kind)
        lengths = np.linalg.norm(result - Z, axis=1)
        for b, way in enumerate((100.0, 100.0) if together else (0.0, 200.0)):
            np.testing.assert_allclose(lengths[batch == b], way, rtol=0, atol=3.0)
        found = evidence(model.fit_, MemoryCells(Z, Labels.of(batch, len(Z))))
        assert found.by_mean.tolist() == ([True, True] if together else [False, True])

    @pytest.mark.parametrize("d", [8, 20])
    @BOTH
    def test_the_identity_term_holds_it_back(self, target, d):
        Z, batch, _ = far_away(d, [[200, 120, 60, 90, 150]] * 2)
        ways = []
        for lambda_id in (0.0, 1e-3, 0.1, 1.0, 10.0):
            way = refined(Z, batch, target=target, lambda_id=lambda_id) - Z
            ways.append(np.linalg.norm(way, axis=1).mean())
        np.testing.assert_allclose(ways[:2], 100.0, rtol=0.01)
        assert ways[1:] == sorted(ways[1:], reverse=True)
        assert ways[-1] < 5.0

    @BOTH
    def test_no_pull_moves_nothing_by_its_mean_either(self, target):
        rng = np.random.default_rng(0)
        n = [[200, 120, 60, 90, 150]] * 2
        Z, batch, _ = oracles.typed_cells(rng, [[0, 1, 2, 3, 4]] * 2, np.zeros((2, 8)), n=n, d=8)
        Z[batch == 1] += oracles.direction(rng, 8, 200.0)
        np.testing.assert_array_equal(refined(Z, batch, target=target, lambda_target=0), Z)

    @pytest.mark.parametrize("d", [5, 8, 10, 20])
    def test_one_of_another_shape_stays(self, d):
        rng = np.random.default_rng(1)
        n = [[200, 120, 60, 90, 150], [300, 30, 30, 200, 100]]
        Z, batch, _ = oracles.typed_cells(
            rng, [[0, 1, 2, 3, 4]] * 2, np.zeros((2, d)), n=n, d=d, sep=8.0
        )
        Z[batch == 1] = Z[batch == 1] @ np.linalg.qr(rng.normal(size=(d, d)))[0]
        Z[batch == 1] += oracles.direction(rng, d, 200.0)
        np.testing.assert_allclose(refined(Z, batch), Z, atol=1e-6)
