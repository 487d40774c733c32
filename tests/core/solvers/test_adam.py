import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from adam_copies import averaged
from data import labels_of, make_cells
from scbatchprox import (
    Adam,
    BatchProx,
    Moments,
    MomentTarget,
    Problem,
    Weights,
    get_num_threads,
    refine_file,
    set_num_threads,
)
from scbatchprox.core.solvers import adam

pytestmark = pytest.mark.filterwarnings("ignore:Expected batches of cells")


def run(c, rounds, solver, variance_matching=True, **options):
    target = MomentTarget(variance_matching=variance_matching)
    return BatchProx(target=target, solver=solver, rounds=rounds, **options).fit(c.Z, batch=c.codes)


def visits(solver, c):
    """The order in which a client visits its cells, for the oracles."""
    return lambda b, t, epoch, n: solver.permutation(c.Z[c.codes == b], t, epoch)


VARIANTS = [
    {},
    {"mu": 0.0},
    {"lambda_id": 0.0},
    {"variance_matching": False},
    {"lambda_target": 2.0, "mu": 0.1, "lambda_id": 0.5},
]


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_fast_adam_is_textbook_adam_on_raw_cells(rng, options):
    c = make_cells(rng, [600, 257, 40, 3], 4)
    solver = Adam(seed=5)
    path = oracles.textbook_adam(c.Z, c.codes, 3, visits(solver, c), **options)
    model = run(c, 3, solver, **options)
    np.testing.assert_allclose(model.scale_, path[-1][0], atol=1e-9)
    np.testing.assert_allclose(model.shift_, path[-1][1], atol=1e-9)


def test_options_of_the_solver(rng):
    c = make_cells(rng, [300, 70], 3)
    own = dict(lr=1e-2, local_epochs=2, batch_size=50, betas=(0.8, 0.95), adam_eps=1e-6)
    solver = Adam(seed=1, **own)
    path = oracles.textbook_adam(c.Z, c.codes, 2, visits(solver, c), **own)
    np.testing.assert_allclose(run(c, 2, solver).scale_, path[-1][0], atol=1e-10)


@pytest.mark.torch
def test_fast_adam_is_torch_adam(rng):
    pytest.importorskip("torch", reason="torch is not installed (make test-torch installs it)")
    c = make_cells(rng, [600, 257, 40], 4)
    solver = Adam(seed=5)
    path = oracles.torch_adam(c.Z, c.codes, 3, visits(solver, c))
    model = run(c, 3, solver)
    np.testing.assert_allclose(model.scale_, path[-1][0], atol=1e-9)
    np.testing.assert_allclose(model.shift_, path[-1][1], atol=1e-9)


def test_seed_decides_the_shuffling(rng):
    c = make_cells(rng, [600, 400], 3)
    a, b, other = (run(c, 2, Adam(seed=s)).scale_ for s in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert (a != other).any()
    for n in (1, 5, 300, 5000):
        order = Adam().permutation(rng.normal(size=(n, 2)), 1, 0)
        np.testing.assert_array_equal(np.sort(order), np.arange(n))
    Z = rng.normal(size=(300, 2))
    orders = {
        tuple(Adam(seed=seed).permutation(Z, t, epoch))
        for seed in (0, 1) for t in (0, 1) for epoch in (0, 1)
    }  # fmt: skip
    assert len(orders) == 8


@given(st.integers(0, 2**140), st.integers(0, 2**31), st.integers(0, 2**31))
def test_orders_are_those_of_a_seed_sequence(seed, t, epoch):
    Z = np.arange(40.0).reshape(20, 2)
    own = adam.ClientCells.of(adam.hashed(Z), np.arange(20))
    key = (own.digest >> 32, own.digest & 0xFFFFFFFF, t, epoch)
    expected = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key)).permutation(20)
    np.testing.assert_array_equal(Adam(seed=seed).permutation(Z, t, epoch), own.rows[expected])


class TestShufflingByContent:
    """The order of a client's cells only depends on these cells, the round and the epoch."""

    @given(st.integers(0, 10_000), st.permutations(range(4)))
    def test_names_of_batches_do_not_matter(self, seed, names):
        c = make_cells(np.random.default_rng(seed), [90, 40, 30, 7], 3)
        solver = Adam(batch_size=16, seed=seed)
        one = BatchProx(solver=solver, rounds=2, target="moment").fit(c.Z, batch=c.codes)
        two = BatchProx(solver=solver, rounds=2, target="moment").fit(
            c.Z, batch=np.array(names)[c.codes]
        )
        np.testing.assert_allclose(two.scale_[names], one.scale_, rtol=0, atol=1e-12)
        np.testing.assert_allclose(two.shift_[names], one.shift_, rtol=0, atol=1e-12)

    @given(st.integers(0, 10_000))
    def test_the_order_of_cells_does_not_matter(self, seed):
        rng = np.random.default_rng(seed)
        c = make_cells(rng, [90, 40, 7], 3)
        order = rng.permutation(len(c.Z))
        solver = Adam(batch_size=16, seed=seed)
        one = BatchProx(solver=solver, rounds=2, target="moment").fit(c.Z, batch=c.codes)
        two = BatchProx(solver=solver, rounds=2, target="moment").fit(
            c.Z[order], batch=c.codes[order]
        )
        np.testing.assert_allclose(two.scale_, one.scale_, rtol=0, atol=1e-12)

    def test_other_clients_do_not_matter(self, rng, monkeypatch):
        c = make_cells(rng, [300, 100, 50], 3)
        seen = {}
        own_order = Adam._order

        def spy(self, own, t, epoch):
            order = own_order(self, own, t, epoch)
            seen[int(c.codes[order[0]]), t, epoch] = order
            return order

        monkeypatch.setattr(Adam, "_order", spy)
        solver = Adam(seed=3, local_epochs=2)
        run(c, 2, solver)
        monkeypatch.undo()
        assert set(seen) == {(b, t, e) for b in range(3) for t in range(2) for e in range(2)}
        for (b, t, epoch), rows in seen.items():
            mine = np.flatnonzero(c.codes == b)
            np.testing.assert_array_equal(rows, mine[solver.permutation(c.Z[mine], t, epoch)])

    @pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray])
    def test_types_and_layouts_do_not_matter(self, rng, layout):
        Z = rng.normal(size=(5000, 5)).astype(np.float32)
        Z[7] = -0.0
        wide = layout(np.where(Z == 0, 0.0, Z.astype(np.float64)))
        np.testing.assert_array_equal(Adam().permutation(Z, 1, 2), Adam().permutation(wide, 1, 2))

    def test_a_changed_value_changes_the_visits(self, rng):
        Z = rng.normal(size=(300, 2))
        other = Z.copy()
        other[17, 1] = np.nextafter(other[17, 1], 9.0)
        assert (Adam().permutation(Z, 0, 0) != Adam().permutation(other, 0, 0)).any()

    def test_copies_are_all_visited(self):
        order = Adam().permutation(np.ones((40, 2)), 0, 0)
        np.testing.assert_array_equal(np.sort(order), np.arange(40))


def test_threads_change_no_bit(rng):
    c = make_cells(rng, [600, 400, 30], 3)
    try:
        results = []
        for threads in (1, 2, 5):
            set_num_threads(threads)
            assert get_num_threads() == threads
            results.append(run(c, 2, "adam").shift_)
    finally:
        set_num_threads(None)
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


class TestOneCopyForAllClients:
    """Rows that a client has no data for are computed once for all clients: no bit changes."""

    @settings(max_examples=25)
    @given(
        st.integers(0, 10_000),
        st.lists(st.integers(1, 60), min_size=1, max_size=9),
        st.integers(1, 9),
        st.sampled_from([1, 7, 256]),
        st.sampled_from([Weights(), Weights(mu=0.0), Weights(2.0, 0.1, 0.5)]),
    )
    def test_equals_a_copy_for_each(self, seed, sizes, d, batch_size, weights):
        c = make_cells(np.random.default_rng(seed), sizes, d)
        moments = Moments.of(c.Z, c.codes)
        problem = Problem.of(moments, MomentTarget()(moments), weights)
        solver = Adam(batch_size=batch_size, local_epochs=2, seed=seed)
        found = solver.solve(problem, 3, c.Z, labels_of(c.codes))
        rows = problem.rows(*averaged(solver, problem, 3, c.Z, c.codes))
        np.testing.assert_array_equal([found.scale, found.shift], problem.scale_shift(rows))

    def test_short_loops_change_no_bit(self, rng, monkeypatch):
        """Loops are cut so that Ctrl-C comes in between."""
        c = make_cells(rng, [90, 33, 33, 8, 1], 3)
        solver = Adam(batch_size=4)
        whole = run(c, 3, solver)
        monkeypatch.setattr(adam, "AT_A_TIME", 20)
        parts = run(c, 3, solver)
        np.testing.assert_array_equal(parts.scale_, whole.scale_)
        np.testing.assert_array_equal(parts.shift_, whole.shift_)

    def test_the_work_grows_with_the_batches_and_not_with_their_square(self, rng, monkeypatch):
        step, entries = adam._adam_steps, []

        def spy(theta, theta_t, state, grad, sums, *rest):
            entries.append(theta.size * len(sums))
            return step(theta, theta_t, state, grad, sums, *rest)

        monkeypatch.setattr(adam, "_adam_steps", spy)
        work = {}
        for n in (20, 60):
            run(make_cells(rng, [2] * n, 3), 2, "adam")
            work[n] = sum(entries)
            entries.clear()
        assert work[60] == 3 * work[20]


class TestProgress:
    def test_of_a_file(self, rng, tmp_path):
        c = make_cells(rng, [30, 20], 3)
        np.save(tmp_path / "cells.npy", c.Z)
        (tmp_path / "labels.csv").write_text("\n".join(["batch", *map(str, c.codes)]))
        seen = []
        refine_file(
            tmp_path / "cells.npy", "batch", labels=tmp_path / "labels.csv", out=tmp_path / "out.npy",
            model=BatchProx(target="moment", solver="adam", rounds=4),
            progress=lambda *report: seen.append(report),
        )  # fmt: skip
        assert [report for report in seen if report[0] == "rounds"] == [
            ("rounds", done, 4) for done in (1, 2, 3, 4)
        ]

    def test_of_cells_in_memory(self, rng):
        c = make_cells(rng, [30, 20], 3)
        seen = []
        model = BatchProx(target="moment", solver="adam", rounds=2)
        labels = labels_of(c.codes)
        cells = (c.Z, labels, lambda *report: seen.append(report))
        model.fit_moments(Moments.of(c.Z, c.codes), cells)
        assert seen == [("rounds", 1, 2), ("rounds", 2, 2)]
        np.testing.assert_array_equal(model.scale_, run(c, 2, "adam").scale_)

    def test_a_long_run_is_announced(self, rng, monkeypatch, caplog):
        c = make_cells(rng, [30, 20], 3)
        with caplog.at_level(logging.WARNING, "scbatchprox"):
            run(c, 5, "adam")
            assert "rounds of adam" not in caplog.text
            monkeypatch.setattr(adam, "UNANNOUNCED", 0.0)
            run(c, 2, "adam")
            assert "rounds of adam" not in caplog.text  # nothing is left when it is known
            run(c, 5, "adam")
        assert [record.getMessage() for record in caplog.records if "adam" in record.msg] == [
            "scbatchprox: 3 more rounds of adam take about 0 seconds"
        ]


def test_long_adam_nears_the_exact_solver(rng):
    """Full-batch Adam with a small step solves the local problems that the exact solver solves."""
    c = make_cells(rng, [200, 100], 2)
    solver = Adam(lr=3e-3, local_epochs=10_000, batch_size=10_000)
    exact, adam = run(c, 2, "exact", mu=0.02), run(c, 2, solver, mu=0.02)
    np.testing.assert_allclose(adam.scale_, exact.scale_, atol=1e-4)
    np.testing.assert_allclose(adam.shift_, exact.shift_, atol=1e-4)


def test_a_single_batch_does_not_move(rng):
    Z = rng.normal(5, 3, (1000, 4))
    refined = BatchProx(solver="adam", rounds=5, target="moment").fit_transform(Z)
    np.testing.assert_array_equal(refined, Z)


@pytest.mark.parametrize("dtype", ["f4", "i4"])
def test_other_types_and_layouts(rng, dtype):
    c = make_cells(rng, [300, 100], 4)
    Z = np.asfortranarray((10 * c.Z).astype(dtype))
    a = BatchProx(solver="adam", target="moment").fit(Z, batch=c.codes)
    b = BatchProx(solver="adam", target="moment").fit(Z.astype(float), batch=c.codes)
    np.testing.assert_allclose(a.scale_, b.scale_, rtol=1e-12)


def test_history_starts_at_the_identity_and_falls(rng):
    c = make_cells(rng, [600, 400], 3)
    history = run(c, 8, "adam").history_
    assert history.step[0] == 0
    assert history.objective[-1] < history.objective[0]


def test_fixed_point_is_for_the_exact_solver(rng):
    with pytest.raises(ValueError, match="found None; the fixed point .* solver='exact'"):
        run(make_cells(rng, [20, 30], 2), None, "adam")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0),
        ("lr", -1.0),
        ("batch_size", 0),
        ("local_epochs", 1.5),
        ("seed", -1),
        ("betas", (0.9,)),
    ],
)
def test_invalid_options(name, value):
    with pytest.raises(ValueError, match=f"Expected.*{name}"):
        Adam(**{name: value})
