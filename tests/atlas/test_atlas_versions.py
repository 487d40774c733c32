"""The log of an atlas, and differences between its versions."""

import subprocess
import sys
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from atlas_cells import SIZES, fitted, of
from data import make_cells
from scbatchprox import Atlas, __version__
from scbatchprox.atlas import versions as listed


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
        """Three batches that move; the second has by far the most populations."""
        self.c = make_cells(rng, [100, 900, 150, 120], 4)
        kinds = rng.integers(0, 5, len(self.c.Z))
        self.c.Z = rng.normal(size=self.c.Z.shape) + 9.0 * rng.normal(size=(5, 4))[kinds]
        self.c.Z += 1.5 * rng.normal(size=(4, 4))[self.c.codes]
        atlas = Atlas.create(path, target="population")
        for some in ([0, 1, 2], [3]):
            rows = np.isin(self.c.codes, some)
            atlas.add(self.c.Z[rows], np.array(list("abcd"))[self.c.codes[rows]], force=True)
        return atlas

    def test_frozen_batches_do_not_change(self, atlas):
        rows = atlas.diff(2, 3).rows
        assert rows.index.tolist() == ["a", "b", "c"]
        assert (rows[["scale_change", "shift_change", "mean_moved"]] == 0).all(axis=None)
        assert rows["n_cells"].tolist() == [100, 900, 150]

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
        more = 0.1 * rng.normal(size=(100, 4))
        atlas.forget("d")
        atlas.add(self.c.Z[self.c.codes == 3][:100] + more, ["d"] * 100, force=True)
        rows = atlas.diff(3, 5).rows
        assert np.isnan(rows.loc["d", "shift_change"])
        assert rows.loc["d", "mean_moved"] > 0
        assert rows.loc["a", "shift_change"] == 0


def history(rng, n):
    """A list of versions that add one batch or more cells of one, forget one, or return to any other."""
    batches = {1: {}}
    versions = [listed.Entry(1, "init", None, "", "")]
    for number in range(2, n + 1):
        now, kind = dict(batches[number - 1]), rng.random()
        facts = {}
        if kind < 0.25:
            facts["to"] = int(rng.integers(1, number))
            now = dict(batches[facts["to"]])
        elif kind < 0.4 and now:
            gone = sorted(now)[int(rng.integers(len(now)))]
            facts["removed"] = [{"batch": gone, "n_cells": now.pop(gone)}]
        else:
            name = f"batch{rng.integers(number)}"
            facts["added"] = [{"batch": name, "n_cells": number}]
            now[name] = now.get(name, 0) + number
        versions.append(listed.Entry(number, "test", number - 1, "", "", **facts))
        batches[number] = now
    return tuple(versions), batches


class TestManyVersions:
    def test_batches_of_every_version(self, path, rng):
        record = Atlas.create(path, target="moment")._record
        versions, expected = history(rng, 150)
        listed.commit(path, replace(record, versions=versions[:-1]), versions[-1])
        found = Atlas.open(path)._record
        assert {number: found.batches(number) for number in expected} == expected
        assert len({len(batches) for batches in expected.values()}) > 10

    def test_a_version_that_removes_what_it_does_not_have_is_refused(self, path, rng):
        record = Atlas.create(path, target="moment")._record
        versions, batches = history(rng, 40)
        stranger = next(name for name in batches[39] if name not in batches[40 // 2])
        back = listed.Entry(41, "rollback", 40, "", "", to=20)
        gone = [{"batch": stranger, "n_cells": 1}]
        last = listed.Entry(42, "forget", 41, "", "", removed=gone)
        listed.commit(path, replace(record, versions=(*versions, back)), last)
        with pytest.raises(ValueError, match=f"which is damaged .KeyError: '{stranger}'"):
            Atlas.open(path)

    def test_opening_takes_work_and_memory_in_proportion_to_them(self, path):
        record = Atlas.create(path, target="moment")._record
        costs = []
        for n in (150, 300):
            versions = [
                listed.Entry(k, "add", k - 1, "", "", added=[{"batch": f"{k:04d}", "n_cells": 1}])
                for k in range(2, n + 1)
            ]
            all_but_last = replace(record, versions=(*record.versions, *versions[:-1]))
            listed.commit(path, all_but_last, versions[-1])
            Atlas.open(path)  # what is imported when it is first needed
            costs.append(cost(lambda: Atlas.open(path)._record.recorded_upstream))
        (lines, most), (twice, more) = costs
        assert twice < 2.2 * lines
        assert more < 2.5 * most


def cost(job):
    """Lines of Python that a job runs, and the most memory that it holds, in bytes."""
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        lines += event == "line"
        return trace

    tracemalloc.start()
    job()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        job()
    finally:
        sys.settrace(before)
    return lines, most
