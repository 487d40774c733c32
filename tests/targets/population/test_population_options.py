"""Options of the population target."""

import numpy as np
import pytest
from sklearn.base import clone

from data import make_cells
from population_models import BOTH, assert_same, grown, parts, refined, some_of
from scbatchprox import (
    BatchProx,
    InputError,
    Moments,
    MomentTarget,
    PopulationSettings,
    PopulationTarget,
    Weights,
)


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
    def test_strength_scales_every_displacement(self, grow, target):
        Z, codes = grow
        full = refined(Z, codes, target=target)
        half = refined(Z, codes, target=target, strength=0.5)
        np.testing.assert_allclose(half - Z, 0.5 * (full - Z), atol=1e-10)

    def test_rounds_that_would_take_hours_are_refused(self, grow):
        with pytest.raises(InputError, match="Expected up to 1,000 rounds .* found 1,000,000,000"):
            refined(*grow, target="population", rounds=10**9)

    def test_very_many_batches_are_a_warning_before_they_begin(self, rng, monkeypatch):
        monkeypatch.setattr("scbatchprox.targets.population.target.MANY_BATCHES", 4)
        Z, codes = rng.normal(size=(100, 3)), np.arange(100) % 5
        with pytest.warns(UserWarning, match="Expected up to 4 batches .* found 5: .* minutes"):
            BatchProx().fit(Z, batch=codes)

    def test_default_rounds(self, grow):
        Z, codes = grow
        auto = BatchProx(target="population").fit(Z, batch=codes)
        ten = BatchProx(target="population", rounds=10).fit(Z, batch=codes)
        np.testing.assert_array_equal(auto.shift_, ten.shift_)
        few = BatchProx(target="population", rounds=3).fit(Z, batch=codes)
        assert np.abs(few.shift_ - auto.shift_).max() > 1e-3
        np.testing.assert_array_equal(
            BatchProx(target="moment").fit(Z, batch=codes).shift_,
            BatchProx(rounds=3, target="moment").fit(Z, batch=codes).shift_,
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
    def test_penalties_shorten_displacements(self, grow, target, name):
        """The larger the weight, the shorter the displacements after the same rounds, but for noise."""
        Z, codes = grow
        lengths = [
            np.linalg.norm(refined(Z, codes, target=target, **{name: weight}) - Z, axis=1).mean()
            for weight in (0.0, 0.1, 1.0, 10.0)
        ]
        assert (np.diff(lengths) < 0.02 * lengths[0]).all()
        assert lengths[-1] < 0.7 * lengths[0]

    @BOTH
    def test_only_the_ratio_of_weights_counts(self, grow, target):
        one = refined(*grow, target=target, lambda_target=1.0, mu=0.1, lambda_id=0.02)
        two = refined(*grow, target=target, lambda_target=0.5, mu=0.05, lambda_id=0.01)
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-9)

    @pytest.mark.parametrize("target", ["population", PopulationTarget()])
    @pytest.mark.parametrize("options", [{"variance_matching": False}, {"eps": 1e-3}], ids=str)
    def test_options_of_the_moment_target(self, c, target, options):
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
        assert (moment.scale_ != BatchProx(target="moment").fit(c.Z, batch=c.codes).scale_).any()
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
    def test_invalid_options(self, options, error, message):
        with pytest.raises(error, match=message):
            PopulationTarget(**options)

    @BOTH
    def test_the_paper_s_optimiser(self, c, target):
        with pytest.raises(ValueError, match=r"Expected solver='exact' for target='population'"):
            BatchProx(target=target, solver="adam", rounds=2).fit(c.Z, batch=c.codes)

    @BOTH
    def test_a_model_without_a_consensus_needs_a_refit(self, grow, target):
        """As fitted with options that move nothing; test_version_0_1_0 has the other case."""
        model = grown(grow, target, [0, 1], rounds=0).set_params(rounds="auto")
        before = parts(model)
        Z, codes = some_of(grow, 2)
        with pytest.raises(
            ValueError, match="parameters that the model was fitted with, found rounds=10"
        ):
            model.partial_fit(Z, batch=codes)
        for name, value in parts(model).items():
            np.testing.assert_array_equal(value, before[name], err_msg=name)
        model.partial_fit(Z, batch=codes, policy="refit")
        assert_same(model, grown(grow, target, [0, 1, 2]))

    def test_rows_per_population_have_no_inverse(self, c):
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
            BatchProx(target="moment").fit(c.Z, batch=c.codes, population=["x"] * n)
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
            BatchProx(target="moment").fit_moments(model.fit_.moments)
        with pytest.raises(
            TypeError, match="Expected moments of populations .*found moments of whole"
        ):
            model.partial_fit_moments(moments)


class TestAim:
    def test_rows_per_batch_have_the_mean_displacement_of_their_cells(self, grow):
        """The least-squares shift of a batch is the mean displacement of its cells."""
        Z, codes = grow
        summary = BatchProx(target="population").fit(Z, batch=codes).fit_.moments
        each, whole = (
            PopulationTarget(conditioned=conditioned).aim(summary, Weights(), 10).target
            for conditioned in (True, False)
        )
        displacement = each.center - summary.mean
        for b in range(5):
            own = summary.batch == b
            expected = np.average(displacement[own], axis=0, weights=summary.n[own])
            np.testing.assert_allclose(whole.center[b] - whole.mean[b], expected, atol=1e-10)
            np.testing.assert_allclose(whole.mean[b], Z[codes == b].mean(0), atol=1e-10)
        for target in (each, whole):
            np.testing.assert_array_equal(target.scale, 1.0)
