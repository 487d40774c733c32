"""Bad input and damaged files: one clear sentence, and the atlas is unchanged."""

import shutil

import numpy as np
import pytest

from atlas_cells import assert_same_model, content, fitted, of
from command_line import run
from scbatchprox import Adam, Atlas, BatchProx, Moments, __version__


def empty_moments(n_batches):
    names = np.array(["x"] * n_batches, str)
    return Moments.per_batch(names, np.zeros(n_batches, int), *np.zeros((2, n_batches, 4)))


class TestBadInput:
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
            Atlas.create(tmp_path / "file", target="moment")
        with pytest.raises(ValueError, match="new or empty folder for the atlas, found 'file'"):
            Atlas.create(tmp_path, target="moment")
        with pytest.raises(FileNotFoundError, match="Expected a folder to create an atlas in"):
            Atlas.create(tmp_path / "no" / "where", target="moment")
        with pytest.raises(ValueError, match="found one without any"):
            Atlas.create(tmp_path / "empty", target="moment").forget("a")

    def test_parameters(self, path):
        with pytest.raises(ValueError, match="needs only moments .solver='exact'."):
            Atlas.create(path, solver=Adam(), target="moment")
        with pytest.raises(ValueError, match="Expected mu"):
            Atlas.create(path, mu=-1, target="moment")
        with pytest.raises(ValueError, match="found an empty text"):
            Atlas.create(path, upstream=" ", target="moment")
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
        what = (
            "no such file" if how == "remove" else r"a damaged one \(its checksum does not match\)"
        )
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
            (lambda t: "[1]", "damaged or is not of an atlas"),
            (lambda t: "\udcff", "damaged"),
            (lambda t: t.replace('"n_cells": 60', '"n_cells": 61'), "checksum does not match"),
            (lambda t: t.replace('"format_version": 1', '"format_version": 2'),
             rf"format 1 or older, found 2 in .*atlas.json, written by scbatchprox {__version__}: upgrade"),
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
            atlas = Atlas.create(tmp_path / str(k), upstream=upstream, target="moment")
            assert atlas.upstream.startswith("sha256:")
            atlas.add(*of(c, "a"), upstream=str(upstream))
            file = model if upstream == model else folder / "model.pt"
            file.write_bytes(b"others")
            with pytest.raises(ValueError, match="Expected the upstream of the atlas"):
                atlas.add(*of(c, "b"), upstream=upstream)
            atlas.add(*of(c, "b"))  # none given, none checked
        atlas = Atlas.create(path, target="moment")
        with pytest.raises(ValueError, match="none .the atlas names none., found 'PCA'"):
            atlas.add(*of(c, "a"), upstream="PCA")


class TestLinks:
    """A copy of an atlas with links in it leads to the files of the other: nobody writes through them."""

    @pytest.fixture
    def elsewhere(self, path, atlas, c, tmp_path):
        """The versions of the atlas are on another disk."""
        atlas.add(*of(c, "c"))
        (path / "versions").rename(tmp_path / "disk")
        (path / "versions").symlink_to(tmp_path / "disk")
        return tmp_path / "disk"

    @pytest.mark.parametrize(
        "verb",
        [
            lambda a, c: a.add(*of(c, "d")),
            lambda a, c: a.forget("a"),
            lambda a, c: a.rollback(1),
        ],
    )
    def test_the_versions_of_another_atlas_stay(self, path, elsewhere, c, verb):
        copy = shutil.copytree(path, path.parent / "copy", symlinks=True)  # as cp -a
        before = content(elsewhere)
        assert len(before) == 2
        link = rf"found a link at .*{path.name}/versions, which another atlas may share; put a copy"
        with pytest.raises(ValueError, match=link):
            verb(Atlas.open(path), c)
        with pytest.raises(ValueError, match="found a link at .*copy/versions"):
            verb(Atlas.open(copy), c)
        assert content(elsewhere) == before

    def test_reading_goes_on(self, path, elsewhere, c):
        atlas = Atlas.open(path)
        assert atlas.model.batches_.tolist() == ["a", "b", "c"]
        assert atlas.diff(2, 3).added == [{"batch": "c", "n_cells": 25}]
        assert atlas.judge(*of(c, "d"))["level"].tolist() == ["close"]
        assert content(elsewhere).keys() == {"000002.safetensors", "000003.safetensors"}

    def test_a_copy_in_place_of_the_link_can_be_written_to(self, path, elsewhere, c):
        (path / "versions").unlink()
        shutil.copytree(elsewhere, path / "versions")
        before = content(elsewhere)
        assert Atlas.open(path).rollback(2) == 4
        assert Atlas.open(path).add(*of(c, "d")).version == 5
        assert content(elsewhere) == before

    @pytest.mark.parametrize("name", ["atlas.json", "lock"])
    def test_files_of_another_atlas_stay(self, path, atlas, c, tmp_path, name):
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        (copy / name).unlink()
        (copy / name).symlink_to(path / name)
        before = content(path), content(copy)
        with pytest.raises(ValueError, match=f"Expected {name} of an atlas .* found a link at"):
            Atlas.open(copy).add(*of(c, "c"))
        assert (content(path), content(copy)) == before

    def test_a_link_made_while_cells_are_read(self, path, atlas, c, tmp_path, monkeypatch):
        """The folder is checked when it is written to, not only when the atlas is opened."""
        other = Atlas.create(tmp_path / "other", target="moment")
        for name in "abc":
            other.add(*of(c, name))
        before = content(other.path)

        def swapped(*arguments):
            shutil.rmtree(path / "versions")
            (path / "versions").symlink_to(other.path / "versions")
            return describe(*arguments)

        describe = BatchProx.describe_apart
        monkeypatch.setattr(BatchProx, "describe_apart", swapped)
        with pytest.raises(ValueError, match="found a link at"):
            atlas.add(*of(c, "d"))
        assert content(other.path) == before

    def test_no_new_atlas_on_a_link(self, path, tmp_path):
        (tmp_path / "disk").mkdir()
        path.mkdir()
        (path / "versions").symlink_to(tmp_path / "disk")
        with pytest.raises(ValueError, match="found a link at"):
            Atlas.create(path, target="moment")
        assert [item.name for item in path.iterdir()] == ["versions"]

    def test_the_whole_atlas_may_be_a_link(self, path, atlas, c, tmp_path):
        (tmp_path / "here").symlink_to(path)
        assert Atlas.open(tmp_path / "here").add(*of(c, "c")).version == 3
        assert Atlas.open(path).version == 3

    def test_the_command_names_the_link(self, path, elsewhere):
        done = run("atlas", "forget", path, "a", code=2)
        assert f"found a link at {path / 'versions'}" in done.stderr.replace("\n", " ")
