"""The population target at several sites equals the fit to all cells in one place."""

from functools import partial

import numpy as np
import pytest

from data import in_memory
from in_step import in_process
from scbatchprox import BatchProx, Decision, Moments, PopulationSettings, PopulationTarget
from scbatchprox.federated import FixedPoint
from scbatchprox.federated.fit import ROUND, refine
from scbatchprox.targets.population.find import dissolved

DEFAULT = PopulationTarget()
FORCED = PopulationTarget(force=True, seed=1)
TARGETS = pytest.mark.parametrize("target", [DEFAULT, FORCED], ids=["default", "forced"])
#: Sums of a fit by default: the moments, all others without a smooth part, and those of a smooth part.
MOMENTS, SHIFTS, SMOOTH = 1, 42, 18
#: For each look at batches after the first: some had no evidence, the others are looked at again.
LOOK = 21
#: With other weights than the default.
WEIGHTS = 14


def cells(seed, sizes, d=6, types=5, shift=1.0, warp=0.0, offset=0.0):
    """Cells of types in shifted batches, which have different shares of the types.

    With ``warp`` every batch is sheared too: types that are near to each other move alike.
    """
    rng = np.random.default_rng(seed)
    places = 4.0 * rng.normal(size=(types, d))
    parts = [
        places[rng.choice(types, n, p=rng.dirichlet(3.0 * np.ones(types)))]
        @ (np.eye(d) + warp * rng.normal(size=(d, d)) / np.sqrt(d))
        + shift * rng.normal(size=d)
        + rng.normal(size=(n, d))
        for n in sizes
    ]
    batch = np.repeat([f"b{i:02d}" for i in range(len(sizes))], sizes)
    return np.concatenate(parts) + offset, batch


def split(names, n_sites, seed=0):
    """Batches of each site, one or more."""
    owner = np.random.default_rng(seed).permutation(np.arange(len(names)) % n_sites)
    return [names[owner == site].tolist() for site in range(n_sites)]


def described(Z, batch, target=DEFAULT, min_cells=20):
    found = BatchProx(target=target).describe(in_memory(Z, batch))
    return dissolved(found, min_cells)


def seen(site, given):
    """The same site; what it gives is remembered."""

    def watched(add_up):
        def remembered(addends):
            given.append(addends)
            return add_up(addends)

        return site(remembered)

    return watched


def at_sites(own, sites, given=None, min_cells=20, **options):
    """The models that sites fit together; ``given`` is what the first of them gives."""
    kinds = [
        partial(
            refine,
            own.select(site),
            BatchProx(**{"target": "moment"} | options),
            min_cells=min_cells,
        )
        for site in sites
    ]
    if given is not None:
        kinds[0] = seen(kinds[0], given)
    return in_process(kinds)


def assert_same(own, models, central):
    """Displacements, decisions, traces and the consensus are those of the fit to all cells."""
    spread = np.sqrt(own.by_batch.pooled().var.mean())
    for model in models:
        expected = central.adapter_.select(model.batches_.tolist())
        mean = model.fit_.moments.mean
        ours, theirs = ((a.scale - 1.0) * mean + a.shift for a in (model.adapter_, expected))
        assert np.abs(ours - theirs).max() < 1e-8 * spread
        np.testing.assert_array_equal(model.adapter_.anchors, expected.anchors)
        assert_same_told(model, models[0], central)
        ours, theirs = model.fit_.consensus, central.fit_.consensus
        assert ours.variance == pytest.approx(theirs.variance, rel=1e-9)
        assert (ours.together, ours.smooth) == (theirs.together, theirs.smooth)
        np.testing.assert_allclose(ours.mass, theirs.mass, atol=1e-8 * own.n_cells)
        np.testing.assert_array_equal(ours.cells, theirs.cells)
        np.testing.assert_array_equal(ours.total, models[0].fit_.consensus.total)


def assert_same_told(model, other, central):
    """The trace is of all sites, to the bit the same at each; the evidence is that of own batches."""
    for name, values in vars(model.history_).items():
        np.testing.assert_array_equal(values, getattr(other.history_, name))
        np.testing.assert_allclose(values, getattr(central.history_, name), rtol=1e-7, atol=1e-8)
    expected = central.evidence_.select(model.batches_.tolist())
    assert model.evidence_.batches.tolist() == model.batches_.tolist()
    np.testing.assert_array_equal(model.evidence_.decision, expected.decision)
    for name in expected.numbers():
        # Copies may be compared in single precision.
        near = 1e-4 if name in ("support", "chance", "gain") else 1e-6
        ours, theirs = getattr(model.evidence_, name), getattr(expected, name)
        np.testing.assert_allclose(ours, theirs, rtol=near, atol=near, err_msg=name)


class TestEqualsTheFitToAllCells:
    @TARGETS
    @pytest.mark.parametrize(
        ("n_sites", "sizes"),
        [
            (3, [150, 400, 90]),
            (3, [300, 200, 60, 45, 500, 120, 80, 30]),  # unequal numbers of populations
            (10, [100, 260] * 6),
        ],
        ids=["3 batches", "8 batches", "12 batches"],
    )
    @pytest.mark.parametrize(
        ("shift", "warp"), [(1.0, 0.0), (30.0, 0.0), (1.0, 0.2)], ids=["near", "far", "warped"]
    )
    def test_at_sites_with_one_or_more_batches(self, target, n_sites, sizes, shift, warp):
        own = described(*cells(1, sizes, shift=shift, warp=warp), target)
        central = BatchProx(target=target).fit_moments(own)
        models = at_sites(own, split(own.batches, n_sites), target=target)
        assert_same(own, models, central)

    def test_these_studies_have_all_decisions(self):
        """Or the test above would compare zeros."""
        found, smooth = set(), set()
        for seed, shift, warp in [
            (1, 0.0, 0.0),
            (3, 1.0, 0.2),
            (5, 1.0, 0.1),
            (1, 1.0, 0.4),
            (1, 1.0, 0.6),
            (10, 1.0, 0.4),
        ]:
            own = described(*cells(seed, [400] * 6, d=10, shift=shift, warp=warp))
            central = BatchProx(target=DEFAULT).fit_moments(own)
            for seed_of_split in range(2):
                sites = split(own.batches, 3, seed_of_split)
                assert_same(own, at_sites(own, sites, target=DEFAULT), central)
            found |= set(central.evidence_.decision.tolist())
            smooth.add(central.fit_.consensus.smooth)
        assert found == {int(decision) for decision in Decision}
        assert smooth == {False, True}

    @TARGETS
    @pytest.mark.parametrize(("offset", "scale"), [(1e8, 1.0), (0.0, 1e-9), (1e3, 1e7)])
    def test_in_any_unit_and_place(self, target, offset, scale):
        Z, batch = cells(2, [200, 150, 300, 90, 120], offset=offset)
        own = described(scale * Z, batch, target)
        central = BatchProx(target=target).fit_moments(own)
        assert_same(own, at_sites(own, split(own.batches, 3), target=target), central)

    @pytest.mark.parametrize(
        "options",
        [{"rounds": 2}, {"strength": 0.5}, {"lambda_id": 0.0}, {"mu": 0.1, "lambda_target": 0.2}],
        ids=str,
    )
    def test_with_any_weights(self, options):
        own = described(*cells(3, [200, 150, 300, 90]))
        options = options | {"target": DEFAULT}
        central = BatchProx(**{"target": "moment"} | options).fit_moments(own)
        assert_same(own, at_sites(own, split(own.batches, 3), **options), central)

    def test_with_one_row_per_batch(self):
        target = PopulationTarget(conditioned=False, seed=3)
        own = described(*cells(4, [200, 150, 300, 90]), target)
        central = BatchProx(target=target).fit_moments(own)
        for model in at_sites(own, split(own.batches, 3), target=target):
            expected = central.adapter_.select(model.batches_.tolist())
            np.testing.assert_allclose(model.shift_, expected.shift, atol=1e-8)

    @pytest.mark.parametrize("offset", [0.0, 1e3])
    def test_of_populations_of_equal_cells(self, offset):
        """Their variance is zero: the unit is the spread of populations about the mean, not about zero."""
        own = described(*cells(3, [200, 150, 300, 90], offset=offset))
        for m2 in (0.0, 1e-24):
            equal = Moments(
                own.batches, own.batch, own.n, own.mean, np.full_like(own.m2, m2), own.anchors
            )
            central = BatchProx(target=DEFAULT).fit_moments(equal)
            assert_same(equal, at_sites(equal, split(own.batches, 3), target=DEFAULT), central)

    def test_of_few_populations_in_many_dimensions(self):
        """Then there are many equal eigenvalues, and rounding would choose their axes."""
        Z, batch = cells(410, [23, 38, 34], d=20)
        own = described(np.round(Z) + 1e5, batch, min_cells=1)
        central = BatchProx(target=FORCED, rounds=5).fit_moments(own)
        models = at_sites(own, split(own.batches, 2), min_cells=1, target=FORCED, rounds=5)
        assert_same(own, models, central)

    def test_whatever_the_signs_of_eigenvectors(self, monkeypatch):
        """They differ between machines, and number the regions that sites add up."""
        own = described(*cells(1, [300, 200, 250, 150]))
        central = BatchProx(target=DEFAULT).fit_moments(own)
        eigh, rng = np.linalg.eigh, np.random.default_rng(0)

        def turned(S):
            size, axes = eigh(S)
            return size, axes * rng.choice([-1.0, 1.0], len(S))

        monkeypatch.setattr(np.linalg, "eigh", turned)
        assert_same(own, at_sites(own, split(own.batches, 3), target=DEFAULT), central)

    def test_in_many_stacks(self, monkeypatch):
        """A site alone has few batches, and other stacks."""
        own = described(*cells(6, [400] * 6))
        models = at_sites(own, split(own.batches, 3), target=DEFAULT)
        monkeypatch.setattr("scbatchprox.targets.population.meeting.STACK_SIZE", 2)
        assert_same(own, models, BatchProx(target=DEFAULT).fit_moments(own))

    def test_that_moves_nothing(self):
        own = described(*cells(3, [200, 150, 300]))
        for model in at_sites(own, split(own.batches, 3), target=DEFAULT, rounds=0):
            np.testing.assert_array_equal(model.shift_, 0.0)
            assert model.history_.round.tolist() == model.history_.movement.tolist() == [0.0]


class TestRounds:
    @pytest.mark.parametrize(
        ("warp", "far", "evidence", "expected"),
        [
            (0.0, 0.0, 0.5, MOMENTS + SHIFTS),
            (0.2, 0.0, 0.5, MOMENTS + SHIFTS + SMOOTH),
            (0.0, 0.0, 50.0, MOMENTS + SHIFTS + 1),  # no batch is left, which is one more sum
            (0.0, 9.0, 0.5, MOMENTS + SHIFTS + LOOK),  # one is refused
        ],
        ids=["shifts", "smooth", "none", "two looks"],
    )
    def test_how_many_there_are(self, warp, far, evidence, expected):
        Z, batch = cells(3, [400] * 6, d=10, warp=warp)
        rng, other = np.random.default_rng(0), batch == "b05"
        if far:
            Z[other] = far + rng.normal(size=(other.sum(), 10))
        target = PopulationTarget(settings=PopulationSettings(evidence=evidence))
        own, given = described(Z, batch), []
        models = at_sites(own, split(own.batches, 3), given, target=target)
        assert models[0].fit_.consensus.smooth == (warp > 0)
        assert len(given) == expected
        # Two runs at once, in regions or at centres: at most 128 of them, with coordinates and cells.
        assert max(len(addends.values) for addends in given) <= 2 * 128 * (10 + 1)

    def test_other_weights_need_more(self):
        """The default ones decide where batches start; then all is run again."""
        own, given = described(*cells(3, [400] * 6, d=10)), []
        models = at_sites(own, split(own.batches, 3), given, target=DEFAULT, lambda_id=0.01)
        smooth = SMOOTH * models[0].fit_.consensus.smooth
        assert len(given) == MOMENTS + SHIFTS + WEIGHTS + smooth

    @pytest.mark.parametrize(
        ("sizes", "sites", "apart"),
        [
            ([300, 250, 20, 30], [["b00"], ["b01"], ["b02", "b03"]], 0.0),
            ([500, 500, 20, 20], [["b00", "b01"], ["b02"], ["b03"]], 0.0),
            ([20] * 6, [["b00"], ["b01", "b02"], ["b03", "b04", "b05"]], 0.0),
            ([300, 200, 300, 200], [["b00"], ["b01", "b02"], ["b03"]], 1e3),
            ([300, 200], [["b00"], ["b01"]], 0.0),
            ([300], [["b00"]], 0.0),
        ],
        ids=["refused site", "one population", "one each", "far batch", "two batches", "one batch"],
    )
    def test_numbers_are_finite_and_small(self, sizes, sites, apart):
        Z, batch = cells(5, sizes)
        Z[batch == "b00"] += apart
        own, given = described(Z, batch), []
        central = BatchProx(target=DEFAULT).fit_moments(own)
        models = at_sites(own, sites, given, target=DEFAULT)
        assert_same(own, models, central)
        values = np.concatenate([addends.values for addends in given[1:]])
        assert np.isfinite(values).all()
        assert np.abs(values).max() < 1e-15 * ROUND.limit
        if max(sizes) == 20:
            assert (central.evidence_.decision == Decision.ALONE).all()
        if sizes == [300, 250, 20, 30]:
            assert (models[2].evidence_.decision == Decision.ALONE).all()

    @pytest.mark.parametrize("away", [1e6, 1e14])
    def test_a_batch_far_away_is_in_range(self, away):
        own = described(*cells(1, [150, 400, 90, 200]))
        mean = own.mean.copy()
        mean[own.batch == 0] += away
        apart = Moments(own.batches, own.batch, own.n, mean, own.m2, mean)
        central = BatchProx(target=DEFAULT).fit_moments(apart)
        for model in at_sites(apart, split(own.batches, 3), target=DEFAULT):
            expected = central.evidence_.select(model.batches_.tolist())
            np.testing.assert_array_equal(model.evidence_.decision, expected.decision)

    def test_sums_out_of_range_are_an_error(self, monkeypatch):
        monkeypatch.setattr("scbatchprox.federated.fit.ROUND", FixedPoint(128, 104))
        own = described(*cells(1, [150, 400, 90]))
        with pytest.raises(ValueError, match="Expected numbers below"):
            at_sites(own, split(own.batches, 3), target=DEFAULT)


class TestALateSite:
    @pytest.fixture
    def data(self):
        return cells(7, [200, 150, 300, 90, 120])

    @TARGETS
    def test_registers_to_the_published_consensus_alone(self, data, target, tmp_path):
        Z, batch = data
        late = batch == "b04"
        own = described(Z[~late], batch[~late], target)
        central = BatchProx(target=target).fit_moments(own).partial_fit(Z[late], batch=batch[late])
        site = at_sites(own, split(own.batches, 3), target=target)[0]
        site.published().save(tmp_path / "consensus.safetensors")
        model = BatchProx.load(tmp_path / "consensus.safetensors")
        model.partial_fit(Z[late], batch=batch[late])
        assert model.batches_.tolist() == ["b04"]
        expected = central.adapter_.select(["b04"])
        assert np.abs(expected.shift).max() > 1e-3
        assert model.evidence_.decision == central.evidence_.select(["b04"]).decision
        np.testing.assert_allclose(model.shift_, expected.shift, atol=1e-8 * Z.std())
        np.testing.assert_array_equal(model.adapter_.anchors, expected.anchors)

    def test_with_nothing_in_common_stays_where_it_is(self, data):
        """Fifty spreads away, and of another geometry."""
        Z, batch = data
        own = described(Z, batch)
        published = at_sites(own, split(own.batches, 3), target=DEFAULT)[0].published()
        other, late = cells(8, [150], types=1)
        published.partial_fit(other + 50.0, batch=np.char.add("late ", late))
        assert published.evidence_.decision.tolist() == [Decision.ALONE]
        np.testing.assert_array_equal(published.shift_, 0.0)

    @pytest.mark.parametrize("target", ["moment", DEFAULT], ids=["moment", "population"])
    def test_what_is_published_has_no_batch(self, data, target):
        Z, batch = data
        model = BatchProx(target=target).fit(Z, batch=batch)
        model.provenance_ = {"source": "patients.h5ad"}
        published = model.published()
        fit = published.fit_
        assert published.provenance_ == {}
        assert not fit.moments.batches.size + fit.reference.batches.size + fit.added.batches.size
        assert fit.adapter.n_rows == fit.history.round.size == fit.evidence.batches.size == 0
        assert fit.pooled.n_cells == len(Z)
        assert fit.pooled.n_batches == 5
        with pytest.raises(ValueError, match="found that other sites hold 5 of them"):
            published.partial_fit(Z, batch=batch, policy="refit")


class TestSmallPopulations:
    def test_are_dissolved_before_anything_is_summed(self):
        Z, batch = cells(8, [200, 150, 70])
        given = BatchProx(target=DEFAULT).fit(Z, batch=batch).fit_.moments
        assert given.n.min() < 20
        for model in at_sites(given, split(given.batches, 3), target=DEFAULT):
            assert model.fit_.moments.n.min() >= 20
