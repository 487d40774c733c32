"""The log of an atlas, and differences between its versions."""

import subprocess

import numpy as np
import pandas as pd
import pytest

from atlas_cells import SIZES, fitted, of
from data import make_cells
from scbatchprox import Atlas, __version__


class TestLog:
    def test_has_every_version(self, path, atlas, c):
        atlas.add(*of(c, "c"), policy="refit")
        atlas.forget("b")
        log = Atlas.open(path).log()
        assert log.index.tolist() == [1, 2, 3, 4]
        assert log["action"].tolist() == ["init", "add", "add", "forget"]
        assert log["policy"].tolist() == [None, "frozen", "refit", "frozen"]
        assert log["n_cells"].tolist() == [0, 100, 125, 85]
        assert log["removed"].tolist()[-1] == [{"batch": "b", "n_cells": 40}]
        assert set(log["scbatchprox_version"]) == {__version__}
        assert pd.to_datetime(log["when"]).dt.tz is not None
        for number, names in ((1, ""), (2, "ab"), (3, "abc"), (4, "ac")):
            counts = dict(zip("abcde", SIZES, strict=True))
            assert atlas._record.batches(number) == {name: counts[name] for name in names}
        for number in (2, 3, 4):
            entry = log.loc[number]
            done = subprocess.run(["sha256sum", path / "versions" / entry["file"]],
                                  capture_output=True, text=True, check=True)  # fmt: skip
            assert done.stdout.split()[0] == entry["sha256"]

    def test_diff_by_hand(self, atlas, c):
        atlas.add(*of(c, "c", "d"), policy="refit")
        atlas.forget("a")
        diff = atlas.diff(2, 4)
        assert diff.added == [{"batch": "c", "n_cells": 25}, {"batch": "d", "n_cells": 90}]
        assert diff.removed == [{"batch": "a", "n_cells": 60}]
        assert diff.params == {}
        assert diff.rows.index.tolist() == ["b"]
        old, new = fitted(c, "a", "b"), atlas.model_at(4)
        row = diff.rows.loc["b"]
        assert row["scale_change"] == np.abs(new.scale_[0] - old.scale_[1]).max() > 0
        assert row["shift_change"] == np.abs(new.shift_[0] - old.shift_[1]).max() > 0
        Z, batch = of(c, "b")
        by_hand = new.transform(Z, batch=batch).mean(0) - old.transform(Z, batch=batch).mean(0)
        np.testing.assert_allclose(row["mean_moved"], np.sqrt((by_hand**2).mean()), rtol=1e-9)
        assert (atlas.diff(1, 2).rows.empty, len(atlas.diff(1, 2).added)) == (True, 2)

    def test_diff_of_a_frozen_arrival_is_zero(self, atlas, c):
        atlas.add(*of(c, "c"))
        rows = atlas.diff(2, 3).rows
        assert not rows[["scale_change", "shift_change", "mean_moved"]].to_numpy().any()


class TestDiff:
    """Each batch is compared with itself, for any number of rows."""

    @pytest.fixture
    def atlas(self, rng, path):
        """Three batches; the second has by far the most populations."""
        self.c = make_cells(rng, [40, 900, 60, 50], 4)
        atlas = Atlas.create(path, target="population")
        for some in ([0, 1, 2], [3]):
            rows = np.isin(self.c.codes, some)
            atlas.add(self.c.Z[rows], np.array(list("abcd"))[self.c.codes[rows]], force=True)
        return atlas

    def test_frozen_batches_do_not_change(self, atlas):
        rows = atlas.diff(2, 3).rows
        assert rows.index.tolist() == ["a", "b", "c"]
        assert (rows[["scale_change", "shift_change", "mean_moved"]] == 0).all(axis=None)
        assert rows["n_cells"].tolist() == [40, 900, 60]

    def test_changes_are_those_of_the_batch_itself(self, atlas):
        """Without the first batch all others are fitted again, with the same populations."""
        atlas.forget("a")
        rows = atlas.diff(3, 4).rows
        old, new = atlas.model_at(3), atlas.model_at(4)
        for name in ("b", "c", "d"):
            mine = [
                model.shift_[model.batches_[model.adapter_.batch] == name] for model in (old, new)
            ]
            n = new.fit_.moments.select([name]).n
            moved = np.average(mine[1] - mine[0], axis=0, weights=n)
            assert rows.loc[name, "shift_change"] == np.abs(mine[1] - mine[0]).max()
            assert rows.loc[name, "mean_moved"] == pytest.approx(np.sqrt((moved**2).mean()))
        assert len(set(rows["shift_change"])) == 3

    def test_populations_that_were_found_again(self, atlas, path, rng):
        """Their rows cannot be compared; the displacement of the batch can."""
        more = rng.normal(size=(30, 4))
        atlas.forget("d")
        atlas.add(self.c.Z[self.c.codes == 3][:30] + more, ["d"] * 30, force=True)
        rows = atlas.diff(3, 5).rows
        assert np.isnan(rows.loc["d", "shift_change"])
        assert rows.loc["d", "mean_moved"] > 0
        assert rows.loc["a", "shift_change"] == 0
