"""Diagnoses of batches whose composition, overlap and partners are known."""

import warnings

import anndata as ad
import numpy as np
import pandas as pd
import pytest

from scbatchprox import BatchProx, diagnose, refine

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


class TestComposition:
    @pytest.mark.parametrize("target", ["moment", "population"])
    def test_batches_of_one_composition_are_safe(self, target):
        table = diagnose(*batches(EVEN, EVEN, EVEN), target=target)
        assert table["verdict"].tolist() == ["safe"] * 3
        assert (table["composition"] < 0.1).all()
        assert (table["matched"] > 0.97).all()  # a few outlying cells may be unmatched

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
        Z, batch = batches(EVEN, (1, 0, 0, 0, 0), (0, 0, 0, 1, 1))
        moment = diagnose(Z, batch, target="moment")
        assert moment["verdict"]["b1"].startswith("leave alone: its composition is very different")
        population = diagnose(Z, batch, target="population")
        assert not population["verdict"].str.contains("composition").any()


class TestOverlap:
    """If types overlap, a difference in composition looks like a batch effect."""

    SKEWED = (20, 1, 1, 1, 1)
    MANY = 1000  # cells a batch: enough populations for all groups

    def overlapping(self, *shares):
        Z, batch = batches(*shares, n=self.MANY)
        noise = 5.0 * np.random.default_rng(5).normal(size=(len(Z), Z.shape[1] + 16))
        noise[:, : Z.shape[1]] += Z
        return noise, batch

    def test_is_the_variance_between_groups(self):
        Z, batch = batches(EVEN, EVEN, shift=0.0, n=self.MANY)
        table = diagnose(Z, batch, target="population")
        # The types are known here. The variance within them is that of the noise, 1 in each coordinate.
        expected = 1.0 - 8.0 / Z.var(0).sum()
        assert table["distinct"].to_numpy() == pytest.approx([expected] * 2, abs=0.02)

    def test_different_compositions_of_overlapping_types_are_left_alone(self):
        table = diagnose(*self.overlapping(EVEN, EVEN, self.SKEWED), target="population")
        assert (table["distinct"] < 0.5).all()
        assert table["verdict"]["b2"].startswith("leave alone: its composition differs")
        # Neither different shares of separate types nor equal shares of overlapping types are a reason.
        clear = batches(EVEN, EVEN, self.SKEWED, n=self.MANY)
        assert diagnose(*clear, target="population")["distinct"].min() > 0.9
        for Z, batch in (clear, self.overlapping(EVEN, EVEN, EVEN)):
            verdicts = diagnose(Z, batch, target="population")["verdict"]
            assert not verdicts.str.contains("overlap").any()

    @pytest.mark.parametrize("n", [80, 100, 300, 1000])
    @pytest.mark.parametrize("given", [False, True])
    def test_many_separate_types_never_overlap(self, n, given):
        """Even if there are fewer groups than types."""
        rng = np.random.default_rng(2)
        types = rng.normal(size=(15, 30)) * 6.0
        share = [np.ones(15), np.ones(15), np.r_[10.0, 10.0, np.ones(13)]]
        kinds = np.concatenate([rng.choice(15, n, p=s / s.sum()) for s in share])
        Z, batch = types[kinds] + rng.normal(size=(3 * n, 30)), np.repeat(["a", "b", "c"], n)
        model = BatchProx(target="population")
        model.fit(Z, batch=batch, population=kinds if given else None)
        assert not diagnose(Z, batch, model=model)["verdict"].str.contains("overlap").any()

    def test_refine_warns(self):
        Z, batch = self.overlapping(EVEN, EVEN, self.SKEWED)
        obs = pd.DataFrame({"batch": batch}, index=[f"cell{i}" for i in range(len(Z))])
        adata = ad.AnnData(np.zeros((len(Z), 1)), obs, obsm={"X_pca": Z})
        for target in ("population", "moment"):
            with pytest.warns(
                UserWarning, match="Batches differ in composition .*b2.* overlap so much"
            ) as w:
                refine(adata, "batch", target=target)
            # The population target would not help, so it is not advised.
            assert "target='population'" not in str(w[0].message)
            with pytest.warns(UserWarning, match="overlap so much"):
                refine(adata, "batch", target=target, diagnose=True)
            verdicts = adata.uns["X_pca_batchprox"]["diagnosis"]["verdict"]
            assert "target='population'" not in " ".join(verdicts)


class TestPartners:
    def test_a_type_that_one_batch_has_is_unmatched(self):
        Z, batch = batches((1, 1, 1, 1, 0), (0, 1, 1, 1, 1))
        table = diagnose(Z, batch, target="population")
        assert table["matched"].to_numpy() == pytest.approx([0.75, 0.75], abs=0.06)

    @pytest.mark.parametrize("target", ["moment", "population"])
    def test_batches_without_a_common_type_are_left_alone(self, target):
        Z, batch = batches((1, 1, 0, 0, 0), (0, 0, 1, 1, 1))
        table = diagnose(Z, batch, target=target)
        assert table["verdict"].str.startswith("leave alone: ").all()
        assert (table["matched"] < 0.1).all()
        assert table["composition"].isna().all()


@pytest.mark.parametrize("target", ["moment", "population"])
class TestFewCells:
    @pytest.mark.parametrize(("n", "known"), [(1, False), (19, False), (20, True)])
    def test_the_composition_of_a_few_cells_is_unknown(self, target, n, known):
        Z, batch = batches(EVEN, EVEN, EVEN, shift=0.0)
        few = np.r_[: 800 + n]
        table = diagnose(Z[few], batch[few], target=target)
        words = f"move with care: it has {n} cell{'s' * (n > 1)}, too few to know its composition"
        assert table["verdict"]["b2"].startswith(words) == (not known)
        assert np.isnan(table["composition"]["b2"]) == (not known)
        assert table["verdict"][["b0", "b1"]].tolist() == ["safe", "safe"]


class TestApart:
    """A batch that was moved onto the others by its mean: then all is near, which is no evidence."""

    def test_the_sentence_and_the_numbers_agree(self):
        Z, batch = batches(EVEN, EVEN, EVEN, shift=0.0)
        Z[batch == "b2"] += 200.0
        table = diagnose(Z, batch, target="population")
        apart = table["verdict"].str.contains("lies apart from all others")
        assert apart["b2"]
        assert table["matched"].isna().tolist() == apart.tolist()
        assert table["verdict"]["b2"].startswith("move with care")


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
        assert kept["verdict"].tolist() == ["safe", "safe"]


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
        assert table["verdict"]["b0"].startswith("leave alone: there is no other batch")
        # If the model knows others, there are others, whatever cells are at hand.
        model = BatchProx(target=target).fit(Z, batch=batch)
        assert diagnose(Z[one], batch[one], model=model)["verdict"]["b0"] == "safe"
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
