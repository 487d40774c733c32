"""Diagnoses of batches whose effects, compositions and common types are known."""

import warnings
from dataclasses import replace

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scbatchprox import BatchProx, Evidence, PopulationTarget, diagnose, refine
from scbatchprox.diagnosis import Level

TYPES = np.random.default_rng(1).normal(size=(5, 8)) * 8.0


def cells(shares, n=400, shift=0.0, seed=0):
    """A batch of cells of five well separated types, in the given shares."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(5, n, p=np.array(shares) / sum(shares))
    return TYPES[kind] + rng.normal(size=(n, 8)) + shift, kind


def batches(*shares, shift=0.5, n=400):
    parts = [cells(s, n, shift=shift * i, seed=i) for i, s in enumerate(shares)]
    Z = np.concatenate([Z for Z, _ in parts])
    return Z, np.repeat([f"b{i}" for i in range(len(parts))], n)


EVEN = (1, 1, 1, 1, 1)


SAME, REMOVED, WEAK, ALONE = Level  # from good to bad


class TestEvidence:
    """The levels are what was planted, and batches that should stay are not touched."""

    @pytest.mark.parametrize("target", ["moment", "population"])
    def test_a_shifted_copy_is_an_effect(self, target):
        Z, batch = batches(EVEN, EVEN, shift=2.0)
        table = diagnose(Z, batch, target=target)
        assert table["level"].tolist() == [REMOVED] * 2
        assert (table["agreement"] > 2.5).all()
        assert (table["evidence"] > 0.85).all()
        assert (table["composition"] < 0.1).all()
        assert (table["moved"] > 0).all()

    def test_two_halves_of_one_batch_have_no_effect_in_most_seeds(self):
        found = []
        for seed in range(12):
            Z, _ = cells(EVEN, 600, seed=seed)
            half = np.random.default_rng(seed).permutation(np.repeat(["a", "b"], 300))
            found += diagnose(Z, half, target="population")["level"].tolist()
        assert np.mean([level == SAME for level in found]) > 0.8

    @pytest.mark.parametrize("target", ["moment", "population"])
    def test_batches_without_a_common_type_have_nothing_to_compare_with(self, target):
        Z, batch = batches((1, 1, 0, 0, 0), (0, 0, 1, 1, 1))
        table = diagnose(Z, batch, target=target)
        assert table["level"].tolist() == [ALONE] * 2
        assert table["reasons"].tolist() == ["evidence"] * 2
        end = "left exactly as it is" if target == "population" else "moves it all the same"
        assert table["verdict"].str.endswith(end).all()
        assert (table["matched"] < 0.1).all()

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("per_batch", [False, True])
    def test_what_stays_is_equal_to_the_bit(self, seed, per_batch):
        """Batches of all kinds: shifted, the same, with other shares, with a type of their own."""
        rng = np.random.default_rng(seed)
        shares = rng.dirichlet(np.full(5, 0.5), 6)
        Z, batch = batches(EVEN, EVEN, *shares, shift=0.3)
        Z[batch == "b1"] -= 0.3
        model = BatchProx(target=PopulationTarget(seed=seed, conditioned=not per_batch))
        refined = model.fit(Z, batch=batch).transform(Z, batch=batch)
        table = diagnose(Z, batch, model=model)
        for name, level, moved in zip(table.index, table["level"], table["moved"], strict=True):
            same = np.array_equal(refined[batch == name], Z[batch == name])
            assert same == (level in (SAME, ALONE)) == (moved == 0)
            assert ("left exactly as it is" in table["verdict"][name]) == same

    def test_the_numbers_are_those_of_the_fit(self):
        Z, batch = batches(EVEN, EVEN, (5, 1, 1, 1, 1))
        model = BatchProx().fit(Z, batch=batch)
        table, found = diagnose(Z, batch, model=model), model.evidence_.frame()
        for name in found.columns.drop("decision"):
            np.testing.assert_array_equal(table[name], found[name])

    def test_the_number_compared_with_the_limit(self):
        """Two batches have one geometry: the geometric mean of both."""
        Z, batch = batches(EVEN, EVEN, (5, 1, 1, 1, 1))
        for some in (batch != "b2", np.ones(len(Z), bool)):
            table = diagnose(Z[some], batch[some])
            own = table["support"] ** 1.5 / table["chance"]
            if len(own) == 2:
                own[:] = np.sqrt(own.prod())
            np.testing.assert_allclose(table["evidence"], own)

    def test_force_moves_batches_and_says_so(self):
        Z, batch = batches((1, 1, 0, 0, 0), (0, 0, 1, 1, 1), shift=0.0)
        Z[batch == "b1"] -= 0.5 * (Z[batch == "b1"].mean(0) - Z[batch == "b0"].mean(0))
        table = diagnose(Z, batch, target=PopulationTarget(force=True))
        assert ALONE not in set(table["level"])
        weak = table[table["level"] == WEAK]
        assert weak["verdict"].str.contains("force=True moves it all the same").all()

    @pytest.mark.parametrize("options", [{"strength": 0.0}, {"rounds": 0}, {"lambda_target": 0}])
    def test_options_that_move_nothing(self, options):
        Z, batch = batches(EVEN, EVEN, shift=2.0)
        table = diagnose(Z, batch, **options)
        assert table["verdict"].str.endswith("; these options move nothing").all()
        assert (table["moved"] == 0).all()

    def test_a_model_without_evidence(self):
        """As that of a file of an earlier version: what it moves is not what evidence decides."""
        Z, batch = batches(EVEN, EVEN, shift=0.0)
        model = BatchProx(target="population").fit(Z, batch=batch)
        adapter = replace(model.fit_.adapter, shift=model.fit_.adapter.shift + 1.0)
        model.fit_ = replace(model.fit_, adapter=adapter, evidence=Evidence.none())
        table = diagnose(Z, batch, model=model)
        assert table["level"].tolist() == [SAME] * 2
        assert table["verdict"].str.endswith("; this model moves it all the same").all()


class TestComposition:
    @pytest.mark.parametrize(("mild", "strong"), [((3, 2, 1, 1, 1), (20, 1, 1, 1, 1))])
    def test_grows_with_the_difference(self, mild, strong):
        found = [
            diagnose(*batches(EVEN, EVEN, shares), target="moment")["composition"]["b2"]
            for shares in (EVEN, mild, strong)
        ]
        assert found == sorted(found)
        # Total variation between the shares, as they were drawn from.
        expected = np.abs(np.array(strong) / sum(strong) - 0.2).sum() / 2
        assert found[-1] == pytest.approx(expected, abs=0.12)

    def test_only_the_moment_target_minds_different_compositions(self):
        Z, batch = batches(EVEN, EVEN, (20, 1, 1, 1, 1))
        moment = diagnose(Z, batch, target="moment")
        assert moment["verdict"]["b2"].startswith(f"{WEAK}: its composition differs (0.5")
        population = diagnose(Z, batch, target="population")
        assert population["level"]["b2"] == REMOVED
        assert not population["verdict"].str.contains("composition").any()

    @pytest.mark.parametrize("target", ["moment", "population"])
    @pytest.mark.parametrize(("n", "known"), [(1, False), (49, False), (50, True)])
    def test_that_of_a_few_cells_is_unknown(self, target, n, known):
        Z, batch = batches(EVEN, EVEN, EVEN, shift=0.0)
        few = np.r_[: 800 + n]
        table = diagnose(Z[few], batch[few], target=target)
        assert table["composition"].notna().tolist() == [True, True, known]


def test_movement_and_scales_are_those_of_the_model():
    Z, batch = batches(EVEN, EVEN, shift=3.0)
    model = BatchProx(rounds=None, target="moment").fit(Z, batch=batch)
    table = diagnose(Z, batch, model=model)
    expected = model.movement()
    np.testing.assert_allclose(table["moved"], expected["relative"])
    np.testing.assert_allclose(table["scale_max"], expected["scale_max"])
    assert table["n_cells"].tolist() == [400, 400]


def test_neighbours_kept():
    Z, batch = batches(EVEN, EVEN)
    assert (diagnose(Z, batch, strength=0.0, target="moment")["neighbours_kept"] == 1).all()
    squeezed = Z * np.geomspace(1e-3, 1.0, 8)  # the target equalises spreads, not shapes
    squeezed[batch == "b1"] = Z[batch == "b1"]
    kept = diagnose(squeezed, batch, rounds=None, target="moment")["neighbours_kept"]
    assert kept["b0"] < 0.9


def test_one_batch_has_no_composition():
    table = diagnose(cells(EVEN)[0], ["only"] * 400, target="moment")
    assert table["composition"].isna().all()
    assert table["moved"].to_numpy() == pytest.approx([0.0], abs=1e-6)


def test_labels_may_be_numbers_in_any_order():
    Z, batch = batches(EVEN, (1, 0, 0, 0, 0), EVEN)
    named = diagnose(Z, batch, target="moment")
    numbered = diagnose(Z, pd.Series(batch).map({"b0": 10, "b1": 2, "b2": 7}), target="moment")
    assert numbered.index.tolist() == [2, 7, 10]
    assert numbered["n_cells"].tolist() == [400] * 3
    assert named["verdict"]["b1"].split("(")[0] == numbered["verdict"][2].split("(")[0]


class TestRefine:
    def adata(self, *shares):
        Z, batch = batches(*shares)
        obs = pd.DataFrame({"batch": batch}, index=[f"cell{i}" for i in range(len(Z))])
        return ad.AnnData(np.zeros((len(Z), 1)), obs, obsm={"X_pca": Z})

    def test_warns_when_compositions_differ(self):
        with pytest.warns(UserWarning, match="Batches differ in composition .*b1.*population"):
            refine(self.adata(EVEN, (1, 0, 0, 0, 0), EVEN), "batch", target="moment")

    def test_is_quiet_otherwise(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            refine(self.adata(EVEN, EVEN), "batch", target="moment")
            refine(self.adata(EVEN, (1, 0, 0, 0, 0)), "batch", target="population")
            refine(self.adata(EVEN, (1, 0, 0, 0, 0)), "batch", diagnose=False, target="moment")

    def test_the_diagnosis_is_kept_and_can_be_written(self, tmp_path):
        adata = self.adata(EVEN, EVEN)
        refine(adata, "batch", diagnose=True, target="moment")
        adata.write_h5ad(tmp_path / "a.h5ad")
        kept = ad.read_h5ad(tmp_path / "a.h5ad").uns["X_pca_batchprox"]["diagnosis"]
        assert kept.index.tolist() == ["b0", "b1"]
        made = adata.uns["X_pca_batchprox"]["diagnosis"]
        for name in ("level", "reasons", "verdict"):
            assert kept[name].tolist() == made[name].tolist()


class TestModels:
    def test_a_model_or_parameters(self):
        Z, batch = batches(EVEN, EVEN)
        model = BatchProx(target="moment").fit(Z, batch=batch)
        with pytest.raises(
            ValueError, match="either a fitted model or parameters, found both: rounds"
        ):
            diagnose(Z, batch, model=model, rounds=2)

    def test_a_model_that_is_not_fitted(self):
        Z, batch = batches(EVEN, EVEN)
        with pytest.raises(ValueError, match="not fitted"):
            diagnose(Z, batch, model=BatchProx(target="moment"))

    @pytest.mark.parametrize("name", ["a", "b5", "z"])
    def test_a_batch_that_the_model_does_not_know(self, name):
        Z, batch = batches(EVEN, EVEN)
        model = BatchProx(target="moment").fit(Z, batch=batch)
        with pytest.raises(ValueError, match=f"unseen '{name}'|{name!r}"):
            diagnose(Z, np.where(batch == "b1", name, batch), model=model)

    @pytest.mark.parametrize("target", ["moment", "population"])
    def test_one_batch_has_nothing_to_match(self, target):
        Z, batch = batches(EVEN, EVEN)
        one = batch == "b0"
        table = diagnose(Z[one], batch[one], target=target)
        assert table["verdict"]["b0"].startswith(f"{ALONE}: there is no other batch")
        assert table["reasons"]["b0"] == "n_batches"
        # If the model knows others, there are others, whatever cells are at hand.
        model = BatchProx(target=target).fit(Z, batch=batch)
        found = diagnose(Z[one], batch[one], model=model)["level"]["b0"]
        assert found == REMOVED == diagnose(Z, batch, model=model)["level"]["b0"]
        # So there are if another site holds them.
        elsewhere = model.published().partial_fit(Z[one], batch=batch[one])
        assert (
            "no other batch" not in diagnose(Z[one], batch[one], model=elsewhere)["verdict"]["b0"]
        )

    def test_nothing_that_moves_is_no_reason_to_warn(self):
        Z, batch = batches(EVEN, (1, 0, 0, 0, 0))
        adata = ad.AnnData(obs=pd.DataFrame({"batch": batch}, index=np.arange(len(Z)).astype(str)))
        adata.obsm["X_pca"] = Z
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            refine(adata, "batch", strength=0.0, target="moment")
            refine(adata, "batch", rounds=0, target="moment")
