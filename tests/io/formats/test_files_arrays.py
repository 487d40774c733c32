"""NumPy files, and labels in a second file."""

import io
import weakref
import zipfile

import numpy as np
import pytest

from scbatchprox import Adapter, BatchProx, refine_file
from scbatchprox.io.formats import open_cells
from table_files import PCS, check_refused, expected, save

pytestmark = pytest.mark.usefixtures("small_blocks")


class TestNpy:
    @pytest.mark.parametrize("order", ["C", "F"])
    @pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2", "<f2"])
    def test_layouts(self, tmp_path, frame, dtype, order):
        path, labels = tmp_path / "cells.npy", save(frame, tmp_path, "csv", "labels")
        Z = np.array(frame[PCS], dtype, order=order)
        np.save(path, Z)
        refine_file(path, "sample", labels=labels, model=BatchProx(target="moment"))
        wanted = expected(Z, frame["sample"])
        new = np.load(path)
        assert new.dtype == wanted.dtype
        tolerance = 1e-5 if wanted.dtype == np.float32 else 1e-12
        np.testing.assert_allclose(new, wanted, rtol=0, atol=tolerance)

    def test_it_is_not_loaded(self, tmp_path, frame):
        with open_cells(save(frame, tmp_path, "npy")) as file:
            assert not isinstance(file.embedding(None), np.ndarray)

    def test_blocks_are_gone_when_they_are_done(self, tmp_path, frame, monkeypatch):
        """No result is in memory while the next one is made, and no cells while theirs is written."""
        path, labels = save(frame, tmp_path, "npy"), save(frame, tmp_path, "csv", "labels")
        apply, found = Adapter.apply, []

        def applied(adapter, Z, *labels):
            assert all(made() is None for _, made in found)
            mapped = apply(adapter, Z, *labels)
            found.append((weakref.ref(Z), weakref.ref(mapped)))
            return mapped

        def refined(stage, done, n):
            if stage == "refine" and done < n:
                assert all(cells() is None for cells, _ in found)

        monkeypatch.setattr(Adapter, "apply", applied)
        model = BatchProx(target="moment")
        refine_file(path, "sample", labels=labels, model=model, progress=refined)
        assert len(found) > 3

    def test_bad_arrays(self, tmp_path, frame):
        path, labels = save(frame, tmp_path, "npy"), save(frame, tmp_path, "csv", "labels")
        check_refused(path, "sample", r"Expected the labels 'sample' in a second file \(--labels\)")
        check_refused(path, "sample", "Expected use_rep only", use_rep="X_pca", labels=labels)
        check_refused(path, "sample", "Expected key_added only", key_added="X", labels=labels)
        whole = path.read_bytes()
        for content in (b"", b"foreign", whole[:60], whole[:-1], b"PK\x03\x04"):
            path.write_bytes(content)
            check_refused(path, "sample", "Expected a .npy file, .* damaged", labels=labels)
        for array, message in [
            (np.array([["a", 1]], object), "Expected an array in cells.npy, found pickled objects"),
            (np.zeros(5), r"Expected a matrix .* found shape \(5,\)"),
            (np.zeros((0, 3)), "Expected at least one cell"),
            (np.zeros((3, 2)), r"Expected one batch label per cell \(3\), found 220"),
            (np.full((2, 2), "a"), "Expected an array of numbers"),
        ]:
            np.save(path, array)
            check_refused(path, "sample", message, labels=labels)

    def test_bad_labels(self, tmp_path, frame):
        path = save(frame, tmp_path, "npy")
        check_refused(
            path, "b", "Expected a file with labels, found no file at", labels=tmp_path / "x.txt"
        )
        check_refused(path, "b", "Expected a file to read, found none", labels=tmp_path / "x.csv")
        check_refused(path, "b", "Expected a file with a suffix of", labels=tmp_path / "x.doc")
        labels = tmp_path / "labels.txt"
        labels.write_text("a\nb\n")
        check_refused(path, "b", r"per cell \(220\), found 2 labels", labels=labels)
        check_refused(path, ["b", "c"], "Expected one batch key .* found 'b', 'c'", labels=labels)
        labels.write_text("a\n" * 100 + "\n" + "b\n" * 119)
        check_refused(path, "b", "found 1 missing of 220, the first at row 100", labels=labels)
        labels.write_bytes(b"\xff\xfe\x00")
        check_refused(path, "b", "Expected one label per line in UTF-8", labels=labels)
        labels = tmp_path / "labels.npy"
        np.save(labels, np.zeros((220, 2)))
        check_refused(path, "b", r"Expected one label per cell .* shape \(220, 2\)", labels=labels)
        np.save(labels, np.array(["a"] * 219 + [""]))
        check_refused(path, "b", "found 1 missing of 220", labels=labels)
        np.save(labels, np.array(["a", None], object))
        check_refused(path, "b", "found pickled objects", labels=labels)


class TestNpz:
    @pytest.mark.parametrize("packed", [False, True])
    def test_all_other_arrays_are_kept(self, tmp_path, frame, packed):
        path = tmp_path / "cells.npz"
        arrays = {"X_pca": frame[PCS].to_numpy(np.float32), "b": frame["lane"].to_numpy()}
        objects = np.array([{"a": 1}], object)  # kept, but never loaded
        (np.savez_compressed if packed else np.savez)(path, **arrays, objects=objects)
        for _ in range(2):  # the second run replaces an older result
            refine_file(path, "b", model=BatchProx(target="moment"))
            with np.load(path, allow_pickle=True) as new:
                assert new.files == ["X_pca", "b", "objects", "X_pca_batchprox"]
                for name, array in arrays.items():
                    np.testing.assert_array_equal(new[name], array)
                assert new["objects"].tolist() == [{"a": 1}]
                assert new["X_pca_batchprox"].dtype == np.float32
                wanted = expected(arrays["X_pca"], arrays["b"])
                np.testing.assert_allclose(new["X_pca_batchprox"], wanted, rtol=0, atol=1e-5)
        kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
        with zipfile.ZipFile(path) as new:
            assert {info.compress_type for info in new.infolist()} == {kind}
            assert new.testzip() is None

    def test_names(self, tmp_path, frame):
        path = tmp_path / "cells.npz"
        np.savez(path, pca=frame[PCS], umap=frame[PCS[:2]], b=frame["lane"], s=np.zeros(3))
        refine_file(path, "b", use_rep="umap", model=BatchProx(target="moment"))
        refine_file(
            path,
            "b",
            use_rep="pca",
            key_added="new",
            out=tmp_path / "out.npz",
            model=BatchProx(target="moment"),
        )
        with np.load(tmp_path / "out.npz") as new:
            assert new.files == ["pca", "umap", "b", "s", "umap_batchprox", "new"]
        check_refused(path, "b", "found 2; available: 'pca', 'umap'")
        check_refused(path, "b", "Expected use_rep .* found no 'X'; available: 'pca'", use_rep="X")
        check_refused(path, "b", "Expected 'b' to be a matrix .* available: 'pca'", use_rep="b")
        check_refused(path, "c", "Expected batch_key .* no 'c'; available: 'pca'", use_rep="pca")
        check_refused(path, "umap", "Expected one label per cell in 'umap'", use_rep="pca")
        check_refused(path, ["b", "s"], "Expected labels of one length", use_rep="pca")
        check_refused(path, "s", r"per cell \(220\), found 3 labels", use_rep="pca")
        check_refused(
            path, "b", "Expected a name for the result that differs", use_rep="pca", key_added="pca"
        )

    def test_bad_arrays(self, tmp_path, frame):
        path = save(frame, tmp_path, "npz")
        whole = bytearray(path.read_bytes())
        npy = io.BytesIO()
        np.save(npy, np.zeros((3, 3)))
        broken = whole.copy()
        broken[200:300] = bytes(100)
        for content in (b"", b"foreign", whole[:-30], npy.getvalue(), broken):
            path.write_bytes(content)
            check_refused(path, "sample", "Expected a .npz file, .* damaged or of another kind")
        np.savez(path, b=np.zeros(3))
        check_refused(path, "b", "found 0; available: 'b'")
        np.savez(path, X=np.zeros((2, 2)), b=np.array(["a", "b"], object))
        check_refused(path, "b", "Expected an array in 'b' of cells.npz, found pickled objects")
        np.savez(path, X=np.array([["a", "b"]], object), b=np.zeros(1))
        check_refused(
            path, "b", "Expected an array in 'X' of cells.npz, found pickled objects", use_rep="X"
        )
