"""Atlases on disk: what arrives, what leaves, what a crash leaves, and how new cells are judged."""

import json
import re
import signal
import subprocess
import sys
import textwrap
import threading

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from data import make_cells
from scbatchprox import Adam, Atlas, BatchProx, Moments, MomentTarget, __version__
from scbatchprox.atlas import cell_scores, judge
from scbatchprox.atlas.judging import CELL_FAR
from scbatchprox.cli.app import app

NAMES = np.array(["a", "b", "c", "d", "e"])
SIZES = [60, 40, 25, 90, 15]


@pytest.fixture
def c(rng):
    """Five batches that are near enough to each other to be added unforced."""
    cells = make_cells(rng, SIZES, 4)
    cells.Z *= 0.2
    cells.Z += rng.normal(size=cells.Z.shape)
    return cells


@pytest.fixture
def path(tmp_path):
    return tmp_path / "lung"


@pytest.fixture
def atlas(path, c):
    """With a and b in it, as version 2."""
    atlas = Atlas.create(path, upstream="PCA")
    atlas.add(*of(c, "a", "b"))
    return atlas


def empty_moments(n_batches):
    names = np.array(["x"] * n_batches, str)
    return Moments.per_batch(names, np.zeros(n_batches, int), *np.zeros((2, n_batches, 4)))


def of(c, *names):
    some = np.isin(NAMES[c.codes], names)
    return c.Z[some], NAMES[c.codes[some]]


def fitted(c, *names, **options):
    Z, batch = of(c, *names)
    return BatchProx(**options).fit(Z, batch=batch)


def content(path):
    """Everything that counts in a folder."""
    return {
        str(p.relative_to(path)): p.read_bytes()
        for p in sorted(path.rglob("*"))
        if p.is_file() and p.name != "lock"
    }


def assert_same_model(a, b):
    assert a.batches_.tolist() == b.batches_.tolist()
    np.testing.assert_array_equal(a.scale_, b.scale_)
    np.testing.assert_array_equal(a.shift_, b.shift_)
    for part in ("reference", "added", "moments"):
        one, two = getattr(a.fit_, part), getattr(b.fit_, part)
        assert one.batches.tolist() == two.batches.tolist()
        for name in ("n", "mean", "m2"):
            np.testing.assert_array_equal(getattr(one, name), getattr(two, name))


class TestGrowing:
    def test_is_empty_at_first(self, path):
        atlas = Atlas.create(path, rounds=None, mu=0.01)
        assert atlas.model is None
        assert atlas.version == 1
        assert atlas.params["rounds"] is None
        assert sorted(content(path)) == ["atlas.json"]

    @pytest.mark.parametrize("options", [{}, {"rounds": None, "target": MomentTarget(False)}])
    def test_first_arrival_is_a_fit(self, path, c, options):
        atlas = Atlas.create(path, **options)
        arrival = atlas.add(*of(c, "a", "b"))
        assert arrival.version == atlas.version == 2
        assert arrival.judgement["level"].tolist() == ["first", "first"]
        assert_same_model(atlas.model, fitted(c, "a", "b", **options))
        assert atlas.model.get_params() == BatchProx(**options).get_params()

    @pytest.mark.parametrize("policy", ["frozen", "refit"])
    def test_add_is_partial_fit(self, atlas, c, policy):
        model = fitted(c, "a", "b")
        for name in "cd":
            Z, batch = of(c, name)
            atlas.add(Z, batch, policy=policy)
            model.partial_fit(Z, batch=batch, policy=policy)
        assert_same_model(atlas.model, model)

    def test_frozen_rows_stay_in_any_order(self, atlas, tmp_path, c):
        before = atlas.model
        other = Atlas.create(tmp_path / "other")
        other.add(*of(c, "a", "b"))
        for name in "cde":
            atlas.add(*of(c, name))
        other.add(*of(c, "e", "d"))
        other.add(*of(c, "c"))
        assert_same_model(atlas.model, other.model)
        np.testing.assert_array_equal(atlas.model.scale_[:2], before.scale_)
        np.testing.assert_array_equal(atlas.model.shift_[:2], before.shift_)

    def test_moments_are_enough(self, atlas, tmp_path, c):
        other = Atlas.create(tmp_path / "other")
        other.add(Moments.of(*of(c, "a", "b")))
        assert_same_model(atlas.model, other.model)
        with pytest.raises(ValueError, match="no labels beside Moments"):
            other.add(Moments.of(*of(c, "c")), ["c"])

    @pytest.mark.parametrize("name", ["b", "c"])
    @pytest.mark.parametrize("policy", ["frozen", "refit"])
    def test_forget_is_never_having_seen(self, path, atlas, c, name, policy):
        atlas.add(*of(c, "c", "d"))
        model = atlas.model
        assert atlas.forget(name, policy=policy) == 4
        left = [other for other in "abcd" if other != name]
        if policy == "frozen":
            assert_same_model(atlas.model, model.forget(name))
        else:
            assert_same_model(atlas.model, BatchProx().fit_moments(Moments.of(*of(c, *left))))
        assert atlas.model.batches_.tolist() == left

    def test_forget_the_last(self, path, c):
        atlas = Atlas.create(path)
        atlas.add(*of(c, "a"))
        atlas.add(*of(c, "b", "c"))
        with pytest.raises(ValueError, match=r"'a' is the last; policy='refit' \(--policy refit\)"):
            atlas.forget("a")
        atlas.forget("a", policy="refit")
        assert_same_model(atlas.model, fitted(c, "b", "c"))
        atlas.forget("b")
        atlas.forget("c")
        assert atlas.model is None
        atlas.add(*of(c, "d"))
        assert_same_model(atlas.model, fitted(c, "d"))

    def test_merge(self, atlas, c):
        Z, batch = of(c, "a")
        model = atlas.model.partial_fit(Z, batch=batch)
        atlas.add(Z, batch, merge=True)
        assert_same_model(atlas.model, model)
        assert atlas.model.moments_.n.tolist() == [120, 40]
        assert atlas.entries()[-1]["added"] == [{"batch": "a", "n_cells": 60}]

    def test_rollback_is_exact(self, path, atlas, c):
        files = {2: (path / "versions/000002.safetensors").read_bytes()}
        atlas.add(*of(c, "c"), policy="refit")
        atlas.forget("a")
        assert atlas.rollback(2) == 5
        entry = atlas.entries()[-1]
        assert (path / "versions" / entry["file"]).read_bytes() == files[2]
        assert_same_model(atlas.model, fitted(c, "a", "b"))
        assert entry["to"] == 2
        assert entry["added"] == [{"batch": "a", "n_cells": 60}]
        assert entry["removed"] == [{"batch": "c", "n_cells": 25}]
        # Life goes on from there, and what lay between can be had again too.
        atlas.add(*of(c, "d"))
        assert_same_model(
            atlas.model, fitted(c, "a", "b").partial_fit(of(c, "d")[0], batch=["d"] * 90)
        )
        atlas.rollback(3)
        assert atlas.model.batches_.tolist() == ["a", "b", "c"]
        atlas.rollback(1)
        assert atlas.model is None

    def test_size_does_not_depend_on_cells(self, path, tmp_path, c):
        sizes = []
        for k, factor in enumerate((1, 1000)):
            m = Moments.of(c.Z, NAMES[c.codes])
            atlas = Atlas.create(tmp_path / str(k))
            atlas.add(Moments.per_batch(m.batches, m.n * factor, m.mean, m.m2 * factor))
            sizes.append((tmp_path / str(k) / "versions/000002.safetensors").stat().st_size)
        assert abs(sizes[0] - sizes[1]) < 16

    @pytest.mark.parametrize("labels", [[3, 1, 2], [True, False], [0.5, 1.5]])
    def test_labels_need_not_be_strings(self, path, rng, labels):
        atlas = Atlas.create(path)
        for label in labels:
            atlas.add(rng.normal(size=(30, 3)), [label] * 30)
        assert Atlas.open(path).model.batches_.tolist() == sorted(labels)
        Atlas.open(path).forget(labels[-1])
        assert Atlas.open(path).model.batches_.tolist() == sorted(labels[:-1])

    def test_an_atlas_opened_earlier_sees_what_came_since(self, path, atlas, c):
        stale = Atlas.open(path)
        atlas.add(*of(c, "c"))
        assert stale.add(*of(c, "d")).version == 4
        assert stale.model.batches_.tolist() == ["a", "b", "c", "d"]

    def test_changing_the_model_at_hand_changes_nothing(self, atlas, c):
        atlas.model.forget("a")
        assert atlas.model.batches_.tolist() == ["a", "b"]


class TestLog:
    def test_says_everything(self, path, atlas, c):
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
        monkeypatch.setattr("scbatchprox.atlas.judging.BLOCK_BYTES", 300)  # several blocks
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
        assert found[-1] > CELL_FAR > found[:-1].max()
        np.testing.assert_allclose(
            cell_scores(Moments.of(old + 1e6, batch), (Z + 1e6)), by_hand, rtol=1e-6
        )

    def test_cell_scores_of_odd_input(self, atlas, c):
        with pytest.raises(ValueError, match="4 coordinates per cell, found 2"):
            atlas.cell_scores(c.Z[:, :2])
        with pytest.raises(ValueError, match="1 NaN"):
            atlas.cell_scores(np.r_[c.Z, [[0, 0, 0, np.nan]]])
        np.testing.assert_array_equal(
            atlas.cell_scores(c.Z.astype(np.float32)) > 0, np.ones(len(c.Z), bool)
        )

    def test_a_constant_coordinate_is_no_division_by_zero(self, rng):
        Z = np.c_[rng.normal(size=(50, 3)), np.full(50, 2.0)]
        model = BatchProx().fit(Z)
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
            (lambda Z: Z * 3, "far", "far: it is [23].\\d+ times wider than the atlas' batches"),
            (lambda Z: Z + 9, "very far", "very far: its mean lies"),
            (lambda Z: Z / 20, "very far", "very far: it is [12]\\d.* times narrower"),
            (lambda Z: Z * 90 + 900, "very far", "very far: its mean .* and it is .* times wider"),
        ],
    )  # fmt: skip
    def test_levels_and_refusal(self, path, rng, change, level, words):
        atlas = Atlas.create(path)
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

    def test_near_a_known_batch_is_near(self, path, rng):
        atlas = Atlas.create(path)
        means = np.repeat([0.0, 100.0], 200)[:, None]
        atlas.add(rng.normal(size=(400, 3)) + means, np.repeat(["a", "b"], 200))
        found = atlas.judge(rng.normal(size=(50, 3)) + 100, ["x"] * 50).loc["x"]
        assert (found["level"], found["nearest"]) == ("close", "b")


class TestBadInput:
    """One clear sentence, and the atlas unchanged."""

    @pytest.mark.parametrize(
        ("verb", "error", "message"),
        [
            (lambda a, c: a.add(*of(c, "b", "c")), ValueError, "new batches, found 'b' in the atlas already"),
            (lambda a, c: a.add(c.Z[:9, :2], ["x"] * 9), ValueError, "4 coordinates, .*, found 2"),
            (lambda a, c: a.add(*of(c, "c"), upstream="scVI"), ValueError, "upstream .* 'PCA', found 'scVI'"),
            (lambda a, c: a.add(c.Z[:0], []), ValueError, "at least one cell"),
            (lambda a, c: a.add(empty_moments(1)), ValueError,
             "cells in every batch, found none in 'x'"),
            (lambda a, c: a.add(empty_moments(0)),
             ValueError, "cells in every batch, found none"),
            (lambda a, c: a.add(c.Z[:9] * np.nan, ["x"] * 9), ValueError, "36 NaN"),
            (lambda a, c: a.add(c.Z[:9], [1] * 9), TypeError, "of one type"),
            (lambda a, c: a.add(c.Z[:9], ["x"] * 8), ValueError, "one batch label per cell"),
            (lambda a, c: a.add(*of(c, "c"), policy="thaw"), ValueError, "Expected policy to be one of"),
            (lambda a, c: a.forget("z"), KeyError, "batch to forget, found 'z'; available: 'a', 'b'"),
            (lambda a, c: a.forget("a", policy="thaw"), ValueError, "Expected policy to be one of"),
            (lambda a, c: a.rollback(9), KeyError, "version of the atlas, found 9; available: 1 to 2"),
            (lambda a, c: a.rollback("x"), ValueError, "the number of a version, found 'x'"),
            (lambda a, c: a.diff(0, 2), KeyError, "version of the atlas, found 0"),
            (lambda a, c: Atlas.create(a.path), ValueError, "empty folder .* found 'atlas.json'"),
        ],
    )  # fmt: skip
    def test_changes_nothing(self, path, atlas, c, verb, error, message):
        before = content(path)
        with pytest.raises(error, match=message):
            verb(atlas, c)
        assert content(path) == before
        assert atlas.add(*of(c, "c")).version == 3

    def test_places(self, tmp_path, c):
        with pytest.raises(FileNotFoundError, match="Expected an atlas .* found none at"):
            Atlas.open(tmp_path)
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match="found a file at"):
            Atlas.create(tmp_path / "file")
        with pytest.raises(ValueError, match="new or empty folder for the atlas, found 'file'"):
            Atlas.create(tmp_path)
        with pytest.raises(FileNotFoundError, match="Expected a folder to make an atlas in"):
            Atlas.create(tmp_path / "no" / "where")
        with pytest.raises(ValueError, match="found one without any"):
            Atlas.create(tmp_path / "empty").forget("a")

    def test_parameters(self, path):
        with pytest.raises(ValueError, match="needs only moments .solver='exact'."):
            Atlas.create(path, solver=Adam())
        with pytest.raises(ValueError, match="Expected mu"):
            Atlas.create(path, mu=-1)
        with pytest.raises(ValueError, match="found an empty text"):
            Atlas.create(path, upstream=" ")
        assert not path.exists()

    @pytest.mark.parametrize("how", ["flip", "cut", "remove"])
    def test_damaged_version(self, path, atlas, c, how):
        atlas.add(*of(c, "c"))
        file = path / "versions/000003.safetensors"
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 1
        if how == "remove":
            file.unlink()
        else:
            file.write_bytes(raw if how == "flip" else raw[:100])
        before = content(path)
        what = "no such file" if how == "remove" else r"a damaged one \(its checksum is another\)"
        for verb in (
            lambda: atlas.model,
            lambda: atlas.add(*of(c, "d")),
            lambda: atlas.forget("a"),
            lambda: atlas.rollback(3),
        ):
            with pytest.raises(
                ValueError, match=f"Expected version 3 of the atlas in .*, found {what}"
            ):
                verb()
        assert content(path) == before
        assert atlas.model_at(2).batches_.tolist() == ["a", "b"]

    def test_rollback_from_a_damaged_version(self, path, atlas, c):
        atlas.add(*of(c, "c"))
        (path / "versions/000003.safetensors").write_bytes(b"")
        atlas.rollback(2)
        assert_same_model(atlas.model, fitted(c, "a", "b"))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda t: t[: len(t) // 2], "damaged"),
            (lambda t: "", "damaged"),
            (lambda t: "[1]", "damaged or of another kind"),
            (lambda t: "\udcff", "damaged"),
            (lambda t: t.replace('"n_cells": 60', '"n_cells": 61'), "checksum is another"),
            (lambda t: t.replace('"format_version": 1', '"format_version": 2'),
             f"atlas format 1 or older, found 2, written by scbatchprox {__version__}: upgrade"),
        ],
    )  # fmt: skip
    def test_damaged_or_newer_list(self, path, atlas, c, change, message):
        file = path / "atlas.json"
        text = file.read_text()
        file.write_bytes(change(text).encode("utf-8", "surrogateescape"))
        assert file.read_text(errors="replace") != text
        before = content(path)
        for verb in (
            lambda: Atlas.open(path),
            lambda: atlas.add(*of(c, "c")),
            lambda: atlas.forget("a"),
        ):
            with pytest.raises(ValueError, match=message):
                verb()
        assert content(path) == before

    def test_upstream(self, path, tmp_path, c):
        model, folder = tmp_path / "pca.npz", tmp_path / "scvi"
        folder.mkdir()
        (folder / "model.pt").write_bytes(b"weights")
        for file in (model, folder / "model.pt"):
            file.write_bytes(b"weights")
        for k, upstream in enumerate([model, folder]):
            atlas = Atlas.create(tmp_path / str(k), upstream=upstream)
            assert atlas.upstream.startswith("sha256:")
            atlas.add(*of(c, "a"), upstream=str(upstream))
            file = model if upstream == model else folder / "model.pt"
            file.write_bytes(b"others")
            with pytest.raises(ValueError, match="Expected the upstream of the atlas"):
                atlas.add(*of(c, "b"), upstream=upstream)
            atlas.add(*of(c, "b"))  # none given, none checked
        atlas = Atlas.create(path)
        with pytest.raises(ValueError, match="none .the atlas names none., found 'PCA'"):
            atlas.add(*of(c, "a"), upstream="PCA")


def program(body):
    return [sys.executable, "-c", textwrap.dedent(body)]


class TestCrash:
    def test_killed_at_every_step(self, path, atlas, c, tmp_path):
        """A child is killed before and after each call that makes something last; none loses anything."""
        m = Moments.of(*of(c, "c"))
        np.savez(tmp_path / "c.npz", n=m.n, mean=m.mean, m2=m.m2)
        body = f"""
            import os, shutil, signal
            from pathlib import Path
            import numpy as np
            from scbatchprox import Atlas, Moments
            data = np.load({str(tmp_path / "c.npz")!r})
            moments = Moments.per_batch(np.array(["c"]), data["n"], data["mean"], data["m2"])
            origin = Path({str(path)!r})
            real = {{name: getattr(os, name) for name in ("replace", "fsync", "open", "close")}}

            def child(at, after, where):
                count = 0
                def step(name):
                    def call(*args, **kwargs):
                        nonlocal count
                        count += 1
                        if count == at and not after:
                            os.kill(os.getpid(), signal.SIGKILL)
                        result = real[name](*args, **kwargs)
                        if count == at:
                            os.kill(os.getpid(), signal.SIGKILL)
                        return result
                    return call
                for name in real:
                    setattr(os, name, step(name))
                Atlas.open(where).add(moments)
                os._exit(0)

            killed = old = new = 0
            at, done = 1, False
            while not done:
                for after in (False, True):
                    where = origin.parent / f"crash{{at}}{{after}}"
                    shutil.copytree(origin, where)
                    pid = os.fork()
                    if pid == 0:
                        child(at, after, where)
                    status = os.waitpid(pid, 0)[1]
                    done = status == 0
                    assert done or os.WTERMSIG(status) == signal.SIGKILL, status
                    killed += not done
                    left = Atlas.open(where)
                    assert left.version in (2, 3)
                    names = left.model.batches_.tolist()
                    assert names == ["a", "b", "c"][: left.version], names
                    old += left.version == 2
                    new += left.version == 3
                    if left.version == 2:  # the next writer finds its way, and clears up
                        assert left.add(moments).version == 3
                    left.forget("c")
                    files = sorted(p.name for p in where.rglob("*") if p.is_file())
                    assert files == ["000002.safetensors", "000003.safetensors", "000004.safetensors",
                                     "atlas.json", "lock"], files
                    assert np.array_equal(left.model.scale_, left.model_at(2).scale_)
                at += 1
            print(killed, old, new)
        """
        done = subprocess.run(program(body), capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        killed, old, new = map(int, done.stdout.split())
        assert killed > 20
        assert old > 10
        assert new >= 3

    def test_killed_from_outside_between_version_and_list(self, path, atlas, c):
        before = content(path)
        body = f"""
            import time
            import numpy as np
            from scbatchprox import Atlas
            from scbatchprox.atlas import folder
            def wait(path):
                print("now", flush=True)
                time.sleep(60)
            folder.sync_folder = wait
            Atlas.open({str(path)!r}).add(np.random.default_rng(0).normal(size=(20, 4)), ["x"] * 20)
        """
        with subprocess.Popen(program(body), stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "now\n"
            assert (path / "versions/000003.safetensors").exists()
            # It holds the lock while it lives.
            with pytest.raises(ValueError, match="free to write to, found it in use elsewhere"):
                atlas.add(*of(c, "c"))
            assert Atlas.open(path).version == 2  # readers are not in the way of anyone
            assert Atlas.open(path).judge(*of(c, "c"))["level"].tolist() == ["close"]
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert {k: v for k, v in content(path).items() if k in before} == before
        assert Atlas.open(path).version == 2
        atlas.add(*of(c, "c"))
        assert_same_model(
            atlas.model, fitted(c, "a", "b").partial_fit(of(c, "c")[0], batch=["c"] * 25)
        )

    def test_a_killed_init_is_no_atlas_and_in_nobodys_way(self, path):
        (path / "versions").mkdir(parents=True)
        (path / "lock").touch()
        (path / ".atlas.json.abc.partial").touch()
        with pytest.raises(FileNotFoundError, match="found none at"):
            Atlas.open(path)
        Atlas.create(path)
        assert sorted(p.name for p in path.iterdir()) == ["atlas.json", "lock", "versions"]

    def test_two_processes_lose_nothing(self, path, atlas):
        """Both try again when they find the other writing: every batch of both is there at the end."""
        body = """
            import sys, time
            import numpy as np
            from scbatchprox import Atlas
            path, name = sys.argv[1:]
            Z = np.random.default_rng(0).normal(size=(20, 4))
            refused = 0
            for k in range(8):
                while True:
                    try:
                        Atlas.open(path).add(Z, [f"{name}{k}"] * 20)
                        break
                    except ValueError as error:
                        assert "in use elsewhere" in str(error), error
                        refused += 1
                        time.sleep(0.002)
        """
        both = [subprocess.Popen([*program(body), str(path), name]) for name in "xy"]
        assert [process.wait() for process in both] == [0, 0]
        names = [f"{name}{k}" for name in "xy" for k in range(8)]
        assert Atlas.open(path).model.batches_.tolist() == ["a", "b", *names]
        assert Atlas.open(path).log().index.tolist() == list(range(1, 19))

    def test_two_threads(self, path, atlas, c):
        started, go = threading.Event(), threading.Event()

        def hold():
            with atlas._writing():
                started.set()
                go.wait()

        thread = threading.Thread(target=hold)
        thread.start()
        started.wait()
        try:
            with pytest.raises(ValueError, match="in use elsewhere"):
                Atlas.open(path).forget("a")
        finally:
            go.set()
            thread.join()


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["atlas", *(str(a) for a in arguments)])
    assert result.exit_code == code, result.output
    return result


def answer(*arguments, code=0):
    return json.loads(run(*arguments, "--json", code=code).stdout)


@pytest.fixture
def files(c, tmp_path, rng):
    """One .h5ad per batch."""
    for name in NAMES:
        Z, batch = of(c, name)
        adata = ad.AnnData(
            obs=pd.DataFrame(
                {"donor": batch, "age": 3}, index=[f"{name}{i}" for i in range(len(Z))]
            ),
            obsm={"X_pca": Z, "narrow": Z[:, :2]},
        )
        adata.write_h5ad(tmp_path / f"{name}.h5ad")
    return tmp_path


class TestCommands:
    def test_five_arrivals_a_removal_and_a_rollback(self, files, c):
        at = files / "lung"
        assert "made" in run("init", at, "--upstream", "PCA of March", "--rounds", 2).stdout
        assert (
            "is first: there is nothing yet"
            in run("add", at, files / "a.h5ad", "--batch-key", "donor").stdout
        )
        run("add", at, files / "b.h5ad", "--policy", "refit")  # with the key of the latest arrival
        for name in "cde":
            assert (
                "is close"
                in run("add", at, files / f"{name}.h5ad", "--upstream", "PCA of March").stdout
            )
        model = fitted(c, "a", "b", rounds=2)
        for name in "cde":
            Z, batch = of(c, name)
            model.partial_fit(Z, batch=batch)
        found = Atlas.open(at).model
        np.testing.assert_allclose(found.scale_, model.scale_, rtol=1e-10)
        np.testing.assert_allclose(found.shift_, model.shift_, rtol=1e-9, atol=1e-12)

        assert "forgot c: version 7" in run("forget", at, "c").stdout
        assert_same_model(Atlas.open(at).model, Atlas.open(at).model_at(6).forget("c"))
        shown = run("diff", at, 6, 7).stdout
        assert "removed: c (25)" in shown
        assert "rows in both: 4, of which 4 are the same to the bit" in shown
        assert answer("diff", at, 6, 7)["rows"][0]["batch"] == "a"

        assert "version 8 is version 6 again" in run("rollback", at, 6).stdout
        assert_same_model(Atlas.open(at).model, Atlas.open(at).model_at(6))
        shown = run("log", at).stdout
        for words in (
            "init",
            "add (frozen)",
            "add (refit)",
            "forget (frozen)",
            "rollback to 6",
            "c (25)",
        ):
            assert words in shown
        log = answer("log", at)
        assert log["version"] == 8
        assert log["upstream"] == "PCA of March"
        assert log["versions"][7]["sha256"] == log["versions"][5]["sha256"]
        assert log["versions"][1]["source"] == {
            "name": "a.h5ad", "batch_key": ["donor"], "use_rep": "X_pca",
        }  # fmt: skip

        before = (files / "c.h5ad").read_bytes()
        run("apply", at, files / "c.h5ad", "--out", files / "out.h5ad")
        assert (files / "c.h5ad").read_bytes() == before
        refined = ad.read_h5ad(files / "out.h5ad")
        Z, batch = of(c, "c")
        np.testing.assert_array_equal(
            refined.obsm["X_pca_batchprox"], found.transform(Z, batch=batch)
        )
        assert refined.uns["X_pca_batchprox"]["atlas_version"] == 8
        run("apply", at, files / "c.h5ad", "--in-place")
        assert "X_pca_batchprox" in ad.read_h5ad(files / "c.h5ad").obsm

    def test_dry_run_says_it_in_words_and_changes_nothing(self, files, c):
        at = files / "lung"
        run("init", at)
        run("add", at, files / "a.h5ad", "--batch-key", "donor")
        before = content(at)
        shown = run("add", at, files / "b.h5ad", "--dry-run").stdout
        assert "b (40 cells) is close: its mean lies" in shown
        assert "the adapter moves it by" in shown
        assert "are far from all that the atlas holds (beyond 2.5)" in shown
        assert "nothing was added" in shown
        facts = answer("add", at, files / "b.h5ad", "--dry-run")
        assert (facts["added"], facts["version"]) == (False, 2)
        assert facts["judgement"][0]["level"] == "close"
        assert content(at) == before
        # Nor is there anything to say of a first arrival.
        run("init", files / "new")
        assert (
            "is first"
            in run(
                "add", files / "new", files / "a.h5ad", "--batch-key", "donor", "--dry-run"
            ).stdout
        )

    @pytest.mark.parametrize("target", ["moment", "population"])
    def test_advice_before_anything_is_added(self, target, tmp_path, rng):
        """Alike, half new, and nothing in common: three batches whose advice is known beforehand."""
        types = 12.0 * np.array([[0, 0, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0], [1, 1, 1, 1]])
        make = {"first": [0, 1, 2], "alike": [0, 1, 2], "partly": [2, 3, 3], "other": [3]}
        for name, kinds in make.items():
            Z = np.concatenate([types[k] + rng.normal(size=(80, 4)) for k in kinds])
            obs = pd.DataFrame({"donor": name}, index=[f"{name}{i}" for i in range(len(Z))])
            ad.AnnData(obs=obs, obsm={"X_pca": Z}).write_h5ad(tmp_path / f"{name}.h5ad")
        at = tmp_path / "atlas"
        run("init", at, "--target", target)
        run("add", at, tmp_path / "first.h5ad", "--batch-key", "donor")
        before = content(at)
        told, advice = {}, {}
        for name in ("alike", "partly", "other"):
            told[name] = run("add", at, tmp_path / f"{name}.h5ad", "--dry-run").stdout
            (row,) = answer("add", at, tmp_path / f"{name}.h5ad", "--dry-run")["judgement"]
            advice[name] = row["advice"]
            assert f"Advice: {row['advice']}." in " ".join(told[name].split())
            assert ("matched" in row) == (target == "population")
        assert content(at) == before
        assert advice["alike"] == "safe"
        if target == "population":
            assert advice["partly"].startswith("move with care: ")
            share = re.search(r"(\d+)% of its cells have nothing like them", advice["partly"])
            assert 60 <= int(share[1]) <= 75
            assert advice["other"].startswith("leave alone: ")
        else:
            assert not advice["other"].startswith("safe")

    def test_scores_in_a_table_and_in_obs(self, files, c, monkeypatch):
        monkeypatch.setattr("scbatchprox.cells.file.CHUNK_BYTES", 4 * 8 * 7)  # several chunks
        at = files / "lung"
        run("init", at)
        run("add", at, files / "a.h5ad", "--batch-key", "donor")
        adata = ad.read_h5ad(files / "b.h5ad")
        adata.obsm["X_pca"][3] = 50.0
        adata.write_h5ad(files / "b.h5ad")
        expected = Atlas.open(at).cell_scores(adata.obsm["X_pca"])
        for _ in range(2):  # a second time replaces the columns
            shown = run(
                "add", at, files / "b.h5ad", "--dry-run", "--mark", "--scores", files / "s.csv"
            )
            assert "1 cells (2.5%) are far" in shown.stdout
        table = pd.read_csv(files / "s.csv", index_col="row")
        marked = ad.read_h5ad(files / "b.h5ad").obs
        assert list(marked.columns) == ["donor", "age", "atlas_distance", "atlas_far"]
        for found in (table, marked):
            np.testing.assert_allclose(found["atlas_distance"], expected, rtol=1e-12)
            assert found["atlas_far"].tolist() == [i == 3 for i in range(40)]
        assert Atlas.open(at).version == 2
        np.testing.assert_array_equal(
            ad.read_h5ad(files / "b.h5ad").obsm["X_pca"], adata.obsm["X_pca"]
        )

    def test_refused_unless_forced(self, files, c):
        at = files / "lung"
        run("init", at)
        run("add", at, files / "a.h5ad", "--batch-key", "donor")
        adata = ad.read_h5ad(files / "b.h5ad")
        adata.obsm["X_pca"] += 100
        adata.write_h5ad(files / "b.h5ad")
        before = content(at)
        done = run("add", at, files / "b.h5ad", "--mark", code=2)
        assert "found 'b' very far: its mean lies" in done.stderr
        assert done.stderr.count("\n") == 1
        assert content(at) == before
        assert ad.read_h5ad(files / "b.h5ad").obs["atlas_far"].all()
        run("add", at, files / "b.h5ad", "--force")
        assert "add (frozen, forced)" in run("log", at).stdout

    def test_numbers_as_batches(self, tmp_path, rng):
        at = tmp_path / "lung"
        run("init", at)
        for k in (1, 2, 3):
            np.savez(tmp_path / f"{k}.npz", Z=rng.normal(size=(20, 3)), plate=np.full(20, k))
            run("add", at, tmp_path / f"{k}.npz", "--batch-key", "plate")
        run("forget", at, "2", "--policy", "refit")
        assert answer("log", at)["batches"] == [1, 3]

    def test_defaults_of_the_latest_arrival_are_for_its_kind_of_file(self, files, c):
        at = files / "narrow"
        run("init", at)
        run("add", at, files / "a.h5ad", "--batch-key", "donor", "--use-rep", "narrow")
        run("add", at, files / "b.h5ad")
        Z, batch = of(c, "c")
        pd.DataFrame({"PC1": Z[:, 0], "PC2": Z[:, 1], "donor": batch}).to_csv(
            files / "c.csv", index=False
        )
        run("add", at, files / "c.csv")
        np.save(files / "d.npy", of(c, "d")[0][:, :2])
        pd.DataFrame({"donor": of(c, "d")[1]}).to_csv(files / "d.csv", index=False)
        run("add", at, files / "d.npy", "--labels", files / "d.csv")
        assert answer("log", at)["batches"] == ["a", "b", "c", "d"]

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["add", "lung", "b.h5ad", "--use-rep", "narrow"], "as the atlas has, found 2 in b.h5ad"),
            (["add", "lung", "a.h5ad"], "found 'a' in the atlas already"),
            (["add", "lung", "b.h5ad", "--upstream", "scVI"], "'PCA', found 'scVI'"),
            (["add", "lung", "b.h5ad", "--batch-key", "no"], "no column 'no'; available: 'donor', 'age'"),
            (["add", "lung", "b.h5ad", "--scores", "x.txt"], "Expected a .csv for the scores"),
            (["add", "lung", "b.h5ad", "--scores", "no/x.csv"], "Expected a folder for the scores"),
            (["add", "lung", "t.csv", "--scores", "t.csv"], "another file for the scores than the input"),
            (["add", "lung", "t.csv", "--mark"], "Expected an .h5ad file to mark cells in"),
            (["add", "lung", "none.h5ad"], "found none at none.h5ad"),
            (["add", "lung", "empty.h5ad"], "Expected at least one cell"),
            (["add", "a.h5ad", "b.h5ad"], "(a folder with atlas.json), found none at a.h5ad"),
            (["add", "fresh", "a.h5ad"], "Expected --batch-key, found none"),
            (["add", "fresh", "a.h5ad", "--batch-key", "donor", "--mark"], "found one without any"),
            (["forget", "lung", "z"], "Expected a batch of the atlas, found 'z'; available: 'a'"),
            (["apply", "lung", "b.h5ad", "--in-place"], "found unseen 'b'; available: 'a'"),
            (["apply", "lung", "a.h5ad"], "Expected either --out or --in-place"),
            (["apply", "fresh", "a.h5ad", "--in-place", "--batch-key", "donor"], "found one without any"),
            (["log", "."], "Expected an atlas"),
            (["diff", "lung", "1", "7"], "found 7; available: 1 to 2"),
            (["rollback", "lung", "7"], "found 7; available: 1 to 2"),
            (["init", "lung"], "new or empty folder"),
            (["init", "x", "--mu", "-1"], "Expected mu"),
        ],
    )  # fmt: skip
    def test_wrong_use_is_one_sentence(self, files, arguments, sentence, monkeypatch):
        monkeypatch.chdir(files)
        ad.read_h5ad("b.h5ad")[:0].copy().write_h5ad("empty.h5ad")
        (files / "t.csv").write_text("donor,PC1\nx,1.0\n")
        run("init", "lung", "--upstream", "PCA")
        run("init", "fresh")
        run("add", "lung", "a.h5ad", "--batch-key", "donor")
        before = content(files)
        done = run(*arguments, code=2)
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
        assert content(files) == before

    def test_real_process_and_lock(self, files):
        at = files / "lung"
        command = [sys.executable, "-m", "scbatchprox", "atlas"]
        assert subprocess.run([*command, "init", at, "--quiet"]).returncode == 0
        with Atlas.open(at)._writing():
            done = subprocess.run([*command, "add", at, files / "a.h5ad", "--batch-key", "donor"],
                                  capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 2
        assert done.stderr.startswith("Error: Expected the atlas")
        assert done.stderr.count("\n") == 1

    def test_every_command_has_an_example(self):
        for name in ("init", "add", "forget", "apply", "log", "diff", "rollback"):
            shown = " ".join(run(name, "--help").stdout.split())
            assert f"Example: scbatchprox atlas {name}" in shown


class TestDiff:
    """Batches are held against themselves, however many rows each has."""

    @pytest.fixture
    def atlas(self, rng, path):
        """Populations: three batches of which the second has by far the most."""
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
        """Without the first batch all others are fitted anew, to the same populations."""
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

    def test_populations_that_were_found_anew(self, atlas, path, rng):
        """Their rows cannot be compared; how far the batch moves can."""
        more = rng.normal(size=(30, 4))
        atlas.forget("d")
        atlas.add(self.c.Z[self.c.codes == 3][:30] + more, ["d"] * 30, force=True)
        rows = atlas.diff(3, 5).rows
        assert np.isnan(rows.loc["d", "shift_change"])
        assert rows.loc["d", "mean_moved"] > 0
        assert rows.loc["a", "shift_change"] == 0
