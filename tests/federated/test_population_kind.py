"""The population target at several sites equals the fit to all cells in one place."""

from collections import Counter

import numpy as np
import pytest

from scbatchprox import BatchProx, Moments, PopulationTarget
from scbatchprox.federated.kinds.population import FEDERATED_TARGET
from scbatchprox.federated.kinds.refine import refine
from scbatchprox.federated.rounds import in_process
from scbatchprox.targets.population.dissolve import dissolved
from scbatchprox.targets.population.settings import FEDERATED

DEFAULT = PopulationTarget()
TARGETS = pytest.mark.parametrize("target", [DEFAULT, FEDERATED_TARGET], ids=["default", "few"])


def cells(seed, sizes, d=6, types=5, shift=1.0, offset=0.0):
    """Cells of types in shifted batches, which have different shares of the types."""
    rng = np.random.default_rng(seed)
    places = 4.0 * rng.normal(size=(types, d))
    parts = [
        places[rng.choice(types, n, p=rng.dirichlet(np.ones(types)))]
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


def described(Z, batch, target, min_cells=20):
    model = BatchProx(target=target).fit(Z, batch=batch)
    return dissolved(model.fit_.moments, min_cells)


def at_sites(own, sites, **options):
    """The models that sites fit together."""
    return in_process(
        [refine(own.select(site), BatchProx(**{"target": "moment"} | options)) for site in sites]
    )


def largest_difference(own, models, central):
    """Between displacements at the sites and in one place, relative to the spread of all cells."""
    spread = np.sqrt(own.by_batch.pooled().var.mean())
    found = 0.0
    for model in models:
        expected = central.adapter_.select(model.batches_.tolist())
        mean = model.fit_.moments.mean
        ours, theirs = ((a.scale - 1.0) * mean + a.shift for a in (model.adapter_, expected))
        found = max(found, float(np.abs(ours - theirs).max()))
        np.testing.assert_array_equal(model.adapter_.anchors, expected.anchors)
    return found / spread


def assert_same_told(model, other, central):
    """The trace is of all sites, to the bit the same at each; the evidence is that of own batches."""
    for name, values in vars(model.history_).items():
        np.testing.assert_array_equal(values, getattr(other.history_, name))
        np.testing.assert_allclose(values, getattr(central.history_, name), rtol=1e-7, atol=1e-8)
    expected = central.evidence_.select(model.batches_.tolist())
    assert model.evidence_.batches.tolist() == model.batches_.tolist()
    for name in expected.numbers():
        ours, theirs = getattr(model.evidence_, name), getattr(expected, name)
        np.testing.assert_allclose(ours, theirs, rtol=1e-7, atol=1e-8)


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
    @pytest.mark.parametrize("shift", [1.0, 30.0], ids=["near", "far"])
    def test_at_sites_with_one_or_more_batches(self, target, n_sites, sizes, shift):
        own = described(*cells(1, sizes, shift=shift), target)
        central = BatchProx(target=target).fit_moments(own)
        models = at_sites(own, split(own.batches, n_sites), target=target)
        assert shift > 1 or np.abs(central.shift_).max() > 0.1
        assert largest_difference(own, models, central) < 1e-8
        for model in models:
            ours, theirs = model.fit_.consensus, central.fit_.consensus
            assert ours.unit == pytest.approx(theirs.unit, rel=1e-12)
            np.testing.assert_allclose(ours.mass, theirs.mass, atol=1e-8)
            np.testing.assert_array_equal(ours.total, models[0].fit_.consensus.total)
            assert_same_told(model, models[0], central)

    @TARGETS
    @pytest.mark.parametrize(("offset", "scale"), [(1e8, 1.0), (0.0, 1e-9), (1e3, 1e7)])
    def test_in_any_unit_and_place(self, target, offset, scale):
        Z, batch = cells(2, [200, 150, 300, 90, 120], offset=offset)
        own = described(scale * Z, batch, target)
        central = BatchProx(target=target).fit_moments(own)
        models = at_sites(own, split(own.batches, 3), target=target)
        assert largest_difference(own, models, central) < 1e-8

    @pytest.mark.parametrize(
        "options",
        [{"rounds": 2}, {"strength": 0.5}, {"lambda_id": 0.0}, {"mu": 0.1, "lambda_target": 0.2}],
        ids=str,
    )
    def test_with_any_weights(self, options):
        own = described(*cells(3, [200, 150, 300, 90]), FEDERATED_TARGET)
        options = options | {"target": FEDERATED_TARGET}
        central = BatchProx(**{"target": "moment"} | options).fit_moments(own)
        models = at_sites(own, split(own.batches, 3), **options)
        assert largest_difference(own, models, central) < 1e-8

    def test_with_one_row_per_batch(self):
        target = PopulationTarget(conditioned=False, seed=3, settings=FEDERATED)
        own = described(*cells(4, [200, 150, 300, 90]), target)
        central = BatchProx(target=target).fit_moments(own)
        for model in at_sites(own, split(own.batches, 3), target=target):
            expected = central.adapter_.select(model.batches_.tolist())
            np.testing.assert_allclose(model.shift_, expected.shift, atol=1e-8)

    def test_of_batches_with_one_population_each(self):
        """Then the mean-only target is used. A single site cannot know that of the others."""
        Z, batch = cells(5, [200, 150, 300])
        one = BatchProx(target=DEFAULT).fit(Z, batch=batch, population=np.zeros(len(Z), int))
        own = one.fit_.moments
        models = at_sites(own, split(own.batches, 3), target=DEFAULT)
        assert all(model.fit_.consensus.one_each for model in models)
        assert largest_difference(own, models, one) < 1e-8
        populations = np.where(batch == "b00", Z[:, 0] > np.median(Z[batch == "b00", 0]), 0)
        central = BatchProx(target=DEFAULT).fit(Z, batch=batch, population=populations)
        models = at_sites(central.fit_.moments, split(own.batches, 3), target=DEFAULT)
        assert not any(model.fit_.consensus.one_each for model in models)
        assert largest_difference(central.fit_.moments, models, central) < 1e-8

    def test_of_many_populations(self, monkeypatch):
        """Seedings then run on threads; a site alone has few populations."""
        monkeypatch.setattr("scbatchprox.targets.population.batches.MANY_POPULATIONS", 60)
        own = described(*cells(6, [400] * 6), DEFAULT)
        assert own.n_rows >= 60
        central = BatchProx(target=DEFAULT).fit_moments(own)
        models = at_sites(own, split(own.batches, 3), target=DEFAULT)
        assert largest_difference(own, models, central) < 1e-8
        for model in models:
            assert_same_told(model, models[0], central)

    def test_that_moves_nothing(self):
        own = described(*cells(3, [200, 150, 300]), DEFAULT)
        for model in at_sites(own, split(own.batches, 3), target=DEFAULT, rounds=0):
            np.testing.assert_array_equal(model.shift_, 0.0)
            assert model.history_.round.tolist() == model.history_.movement.tolist() == [0.0]


class TestRounds:
    def sums(self, target, shift, **options):
        """How many sums were added, and whether batches started from a common mean."""
        Z, batch = cells(1, [150, 400, 90], shift=shift)
        own = described(Z, batch, target)
        sites = [refine(own.select([b]), BatchProx(target=target)) for b in own.batches.tolist()]
        counts, sizes = Counter(), set()

        def counted(i, site):
            answer = None
            while True:
                try:
                    given = next(site) if answer is None else site.send(answer)
                except StopIteration as end:
                    return end.value
                counts[i] += 1
                sizes.add(len(given.values))
                answer = yield given

        in_process([counted(i, site) for i, site in enumerate(sites)])
        assert len(set(counts.values())) == 1
        return counts[0], max(sizes)

    def test_how_many_there_are(self):
        """One more if batches start from a common mean; the sum of moments is counted too."""
        assert self.sums(DEFAULT, 1.0)[0] == 1 + 40
        assert self.sums(DEFAULT, 100.0)[0] == 1 + 41

    def test_few_are_enough(self):
        count, size = self.sums(FEDERATED_TARGET, 1.0)
        assert count <= 16
        assert size <= 5 * 64 * 7 + 2  # seedings, centres, coordinates and the mass; the trace

    def test_sums_out_of_range_are_an_error(self):
        own = described(*cells(1, [150, 400, 90]), DEFAULT)
        mean = own.mean.copy()
        mean[own.batch == 0] += 1e14
        apart = Moments(own.batches, own.batch, own.n, mean, own.m2, mean)
        with pytest.raises(ValueError, match="Expected numbers below"):
            at_sites(apart, split(own.batches, 3), target=DEFAULT)


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
        np.testing.assert_allclose(model.shift_, expected.shift, atol=1e-8 * Z.std())
        np.testing.assert_array_equal(model.adapter_.anchors, expected.anchors)

    @pytest.mark.parametrize("target", ["moment", FEDERATED_TARGET], ids=["moment", "population"])
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
