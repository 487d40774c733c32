"""Finished jobs on disk."""

import numpy as np
import pytest

from experiment_rows import job
from research.experiments.journal import COLUMNS, Journal, digest
from scbatchprox.errors import InUse


class TestJournal:
    def test_rows_come_back_in_long_form(self, tmp_path):
        jobs = [job(run=0), job(run=1), job(run=2)]
        with Journal.open(tmp_path / "j") as journal:
            journal.finish(jobs[0], {"f1": 0.5, "seconds": np.float32(2.0)})
            journal.fail(jobs[1], "no such thing")
            journal.finish(jobs[2], {"f1": float("nan")})
        with Journal.open(tmp_path / "j") as journal:
            rows = journal.rows([j.mark for j in jobs])
        assert list(rows.columns) == COLUMNS
        assert rows["metric"].tolist() == ["f1", "seconds", "", "f1"]
        np.testing.assert_array_equal(rows["value"], [0.5, 2.0, np.nan, np.nan])
        assert rows["status"].tolist() == ["ok", "ok", "failed", "ok"]
        assert rows["reason"].tolist() == ["", "", "no such thing", ""]

    def test_an_incomplete_line_is_done_again_and_the_others_are_kept(self, tmp_path):
        with Journal.open(tmp_path / "j") as journal:
            journal.finish(job(run=0), {"f1": 0.25})
            journal.finish(job(run=1), {"f1": 0.75})
        whole = (tmp_path / "j").read_bytes()
        first = whole.index(b"\n") + 1
        for cut in range(first, len(whole)):
            (tmp_path / "j").write_bytes(whole[:cut])
            with Journal.open(tmp_path / "j") as journal:
                assert journal.is_done(job(run=0))
                assert not journal.is_done(job(run=1))
                journal.finish(job(run=1), {"f1": 0.75})
            assert (tmp_path / "j").read_bytes() == whole

    def test_a_damaged_line_in_the_middle_costs_only_its_own_row(self, tmp_path):
        with Journal.open(tmp_path / "j") as journal:
            for at in range(3):
                journal.finish(job(run=at), {"f1": at / 4})
        lines = (tmp_path / "j").read_bytes().splitlines(keepends=True)
        (tmp_path / "j").write_bytes(lines[0] + b"\0" * 20 + b"\n" + lines[2])
        with Journal.open(tmp_path / "j") as journal:
            assert [journal.is_done(job(run=at)) for at in range(3)] == [True, False, True]

    def test_failed_and_other_rows_are_not_done(self, tmp_path):
        with Journal.open(tmp_path / "j") as journal:
            journal.fail(job(), "reason")
            assert not journal.is_done(job())
            journal.finish(job(), {"f1": 1.0})
            assert journal.is_done(job())
            assert not journal.is_done(job(fingerprint="of another configuration"))
            assert not journal.is_done(job(step="2"))

    def test_two_writers_are_an_error(self, tmp_path):
        with (
            Journal.open(tmp_path / "j"),
            pytest.raises(InUse, match="in use elsewhere"),
            Journal.open(tmp_path / "j"),
        ):
            pass

    def test_fingerprints_depend_on_content(self):
        a = np.arange(6.0)
        assert digest(a) == digest(a.copy())
        others = [a.reshape(2, 3), a.astype(np.float32), -a, a[:5], "x"]
        assert len({digest(a), *(digest(other) for other in others)}) == 6
        assert digest("ab", "c") != digest("a", "bc")
