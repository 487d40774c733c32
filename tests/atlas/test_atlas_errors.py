"""Bad input and damaged files: one clear sentence, and the atlas is unchanged."""

import numpy as np
import pytest

from atlas_cells import assert_same_model, content, fitted, of
from scbatchprox import Adam, Atlas, Moments, __version__


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
