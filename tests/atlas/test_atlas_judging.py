"""How new batches and cells are judged."""

import numpy as np
import pandas as pd
import pytest

import command_line
from atlas_cells import content, fitted, of
from scbatchprox import Atlas, BatchProx, Moments
from scbatchprox.atlas import cell_scores, judge
from scbatchprox.errors import BadValue


class TestJudging:
    def test_numbers_by_hand(self, c):
        model = fitted(c, "a", "b", "c")
        Z, batch = of(c, "d", "e")
        found = judge(model, Moments.of(Z, batch))
        old, old_batch = of(c, "a", "b", "c")
        spread = old.std(0)
        means = {name: old[old_batch == name].mean(0) for name in "abc"}
        within = np.sqrt(
            sum(((old[old_batch == name] - means[name]) ** 2).sum(0) for name in "abc") / len(old)
        )
        for name in "de":
            new = Z[batch == name]
            row = found.loc[name]
            rms = lambda x: np.sqrt((x**2).mean())  # noqa: E731
            np.testing.assert_allclose(row["distance"], rms((new.mean(0) - old.mean(0)) / spread))
            apart = {k: rms((new.mean(0) - mean) / spread) for k, mean in means.items()}
            assert row["nearest"] == min(apart, key=apart.get)
            np.testing.assert_allclose(row["nearest_distance"], min(apart.values()))
            np.testing.assert_allclose(
                row["spread_ratio"], np.exp(np.log(new.std(0) / within).mean()), rtol=1e-10
            )
            after = fitted(c, "a", "b", "c").partial_fit(new, batch=[name] * len(new))
            moved = after.transform(new, batch=[name] * len(new)) - new
            centred = new - new.mean(0)
            np.testing.assert_allclose(
                row["moved"], np.sqrt((moved**2).sum() / (centred**2).sum()), rtol=1e-9
            )
            assert row["n_cells"] == len(new)

    def test_cell_scores_by_hand(self, c, monkeypatch):
        monkeypatch.setattr("scbatchprox.atlas.scores.BLOCK_BYTES", 300)  # several blocks
        old, batch = of(c, "a", "b", "c")
        Z = np.r_[c.Z, [[30.0, 0, 0, 0]]]
        found = cell_scores(Moments.of(old, batch), Z)
        by_hand = [
            min(
                np.sqrt(
                    (((z - old[batch == k].mean(0)) / old[batch == k].std(0)) ** 2).mean()
                )
                for k in "abc"
            )
            for z in Z
        ]  # fmt: skip
        np.testing.assert_allclose(found, by_hand, rtol=1e-9)
        assert found[-1] > 2.5 > found[:-1].max()
        np.testing.assert_allclose(
            cell_scores(Moments.of(old + 1e6, batch), (Z + 1e6)), by_hand, rtol=1e-6
        )

    def test_cell_scores_of_bad_input(self, atlas, c):
        with pytest.raises(ValueError, match="4 coordinates per cell, found 2"):
            atlas.cell_scores(c.Z[:, :2])
        with pytest.raises(ValueError, match="1 NaN"):
            atlas.cell_scores(np.r_[c.Z, [[0, 0, 0, np.nan]]])
        np.testing.assert_array_equal(
            atlas.cell_scores(c.Z.astype(np.float32)) > 0, np.ones(len(c.Z), bool)
        )

    def test_a_constant_coordinate_does_not_divide_by_zero(self, rng):
        Z = np.c_[rng.normal(size=(50, 3)), np.full(50, 2.0)]
        model = BatchProx(target="moment").fit(Z)
        same = Moments.of(np.c_[rng.normal(size=(40, 3)), np.full(40, 2.0)], ["x"] * 40)
        assert judge(model, same)["level"].tolist() == ["close"]
        other = Moments.of(np.c_[rng.normal(size=(40, 3)), np.full(40, 3.0)], ["x"] * 40)
        assert judge(model, other)["level"].tolist() == ["very far"]
        single = judge(model, Moments.of(Z[:1], ["x"]))
        assert np.isnan(single["spread_ratio"].item())
        assert single["level"].tolist() == ["close"]
        assert np.isfinite(cell_scores(Moments.of(Z[:1]), Z)).all()

    @pytest.mark.parametrize(
        ("change", "level", "words"),
        [
            (lambda Z: Z, "close", "close: its mean lies 0."),
            (lambda Z: Z + 2, "far", r"far: its mean lies [12]\.\d+ spreads away \(up to 1.5 is close\)"),
            (lambda Z: Z * 3, "far", r"far: its spread is [23]\.\d+ times .* \(0.5 to 2 is close\)"),
            (lambda Z: Z + 9, "very far", "very far: its mean lies"),
            (lambda Z: Z / 20, "very far", r"very far: its spread is 0\.0\d+ times"),
            (lambda Z: Z * 90 + 900, "very far", "very far: its mean .* and its spread is .* times"),
        ],
    )  # fmt: skip
    def test_levels_and_refusal(self, path, rng, change, level, words):
        atlas = Atlas.create(path, target="moment")
        atlas.add(rng.normal(size=(500, 5)), ["a"] * 500)
        Z = change(rng.normal(size=(200, 5)))
        found = atlas.judge(Z, ["x"] * 200).loc["x"]
        assert found["level"] == level
        assert pd.Series([found["verdict"]]).str.match(words).all(), found["verdict"]
        before = content(path)
        if level == "very far":
            with pytest.raises(ValueError, match=r"found 'x' very far: .*--force"):
                atlas.add(Z, ["x"] * 200)
            assert content(path) == before
            atlas.add(Z, ["x"] * 200, force=True)
        else:
            atlas.add(Z, ["x"] * 200)
        assert atlas.entries()[-1]["forced"] == (level == "very far")

    def test_a_batch_without_partners_is_refused_unless_forced(self, path, rng, tmp_path):
        """It is as close and as wide as the others, but has none of their cell types."""
        corners = 6.0 * np.array([[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0], [1, 0, 0, 1]])
        atlas = Atlas.create(path, target="population")
        of_types = lambda *kinds: np.repeat(corners[list(kinds)], 80, 0)  # noqa: E731
        Z, batch = of_types(0, 1, 0, 1), np.repeat(["a", "b"], 160)
        atlas.add(Z + rng.normal(size=Z.shape), batch)  # the first batches are never refused
        Z, batch = of_types(2, 3) + rng.normal(size=(160, 4)), np.repeat("x", 160)
        np.savez(tmp_path / "x.npz", Z=Z, donor=batch)
        before = content(path)
        message = (
            "found 'x' with nothing to compare with: its geometry fits the atlas no better than turned "
            r"copies .*; left exactly as it is; nothing was added, force=True \(--force\) adds it"
        )
        adds = {
            "array": lambda **options: atlas.add(Z, batch, **options),
            "file": lambda **options: atlas.add_file(tmp_path / "x.npz", "donor", **options),
        }
        for add in adds.values():
            found = add(dry_run=True)
            assert found.judgement["level"].tolist() == ["close"]
            assert found.judgement["advice"]["x"].startswith("nothing to compare with: ")
            assert found.judgement.loc["x", ["advice_level", "reasons"]].tolist() == [
                "nothing to compare with", "evidence",
            ]  # fmt: skip
            with pytest.raises(BadValue, match=message):
                add()
            assert content(path) == before
        command = ["atlas", "add", path, tmp_path / "x.npz", "--batch-key", "donor"]
        assert (
            "nothing was added, --force adds it anyway" in command_line.run(*command, code=2).stderr
        )
        assert content(path) == before
        assert command_line.run(*command, "--force").exit_code == 0
        assert Atlas.open(path).entries()[-1]["forced"]
        for version, add in zip((5, 7), adds.values(), strict=True):
            atlas.forget("x")
            assert add(force=True).version == version
            model = atlas.model
            np.testing.assert_array_equal(model.transform(Z, batch=batch), Z)

    def test_a_batch_near_a_known_one_is_close(self, path, rng):
        atlas = Atlas.create(path, target="moment")
        means = np.repeat([0.0, 100.0], 200)[:, None]
        atlas.add(rng.normal(size=(400, 3)) + means, np.repeat(["a", "b"], 200))
        found = atlas.judge(rng.normal(size=(50, 3)) + 100, ["x"] * 50).loc["x"]
        assert (found["level"], found["nearest"]) == ("close", "b")
