"""Refining .h5ad and .zarr in chunks: equal to the result in memory, and nothing else changes."""

import os
import stat
import subprocess
import sys

import h5py
import numpy as np
import pytest
import zarr

from anndata_files import contents, make, read, write
from scbatchprox import Adam, BatchProx, InputError, apply_file, refine, refine_file
from scbatchprox.io.formats import open_cells

pytestmark = pytest.mark.filterwarnings(
    "ignore:Consolidated metadata", "ignore:zarr v3 autosharding"
)


@pytest.mark.parametrize("where", ["in place", "out"])
@pytest.mark.parametrize("use_rep", ["X_pca", "double", "frame", "sparse", "X"])
def test_equal_to_the_result_in_memory(stored, small_chunks, where, use_rep):
    adata, path = stored
    out = None if where == "in place" else path.with_name(f"out{path.suffix}")
    before = contents(path)
    seen = []
    model = refine_file(
        path, ["batch", "site"], use_rep=use_rep, out=out,
        progress=lambda stage, done, total: seen.append((stage, done, total)),
        model=BatchProx(target="moment"),
    )  # fmt: skip
    refine(adata, ["batch", "site"], use_rep=use_rep, target="moment")
    key = f"{use_rep}_batchprox"
    result = read(out or path)
    np.testing.assert_allclose(
        result.obsm[key], adata.obsm[key], rtol=1e-5 if adata.obsm[key].dtype == "f4" else 1e-10
    )
    assert result.obsm[key].dtype == adata.obsm[key].dtype
    for name in ("scale", "shift"):
        np.testing.assert_allclose(
            result.uns[key][name], adata.uns[key][name], rtol=1e-9, atol=1e-9
        )
    assert list(result.uns[key]["batches"]) == model.batches_.tolist()
    assert seen[-1] == ("refine", 900, 900)
    if (
        path.suffix == ".h5ad" and use_rep != "frame"
    ):  # the zarr store has one chunk, the frame is read completely
        assert len(seen) > 4
    # Every other array and attribute is unchanged.
    after = contents(out or path)
    index = {"zarr.json", ".zmetadata"}
    assert {k: v for k, v in after.items() if key not in k and k not in index} == {
        k: v for k, v in before.items() if k not in index
    }
    if out:
        assert contents(path) == before
    assert not [p for p in path.parent.iterdir() if p.name.startswith(".")]


def test_a_second_run_replaces_the_result(stored, small_chunks):
    adata, path = stored
    refine_file(path, "batch", model=BatchProx(rounds=1, target="moment"))
    refine_file(path, "batch", model=BatchProx(rounds=7, target="moment"))
    refine(adata, "batch", rounds=7, target="moment")
    result = read(path)
    np.testing.assert_allclose(
        result.obsm["X_pca_batchprox"], adata.obsm["X_pca_batchprox"], rtol=1e-4, atol=1e-5
    )
    assert result.uns["X_pca_batchprox"]["params"]["rounds"] == 7


def test_adam_from_a_file(stored):
    adata, path = stored
    refine_file(path, "batch", model=BatchProx(solver=Adam(seed=3), target="moment"))
    refine(adata, "batch", solver=Adam(seed=3), target="moment")
    np.testing.assert_array_equal(read(path).obsm["X_pca_batchprox"], adata.obsm["X_pca_batchprox"])


def test_apply_and_inverse(stored, small_chunks):
    adata, path = stored
    model = BatchProx(target="moment").fit(adata.obsm["double"], batch=adata.obs["batch"])
    apply_file(path, model.adapter_, "batch", use_rep="double", key_added="refined")
    apply_file(path, model.adapter_, "batch", use_rep="refined", key_added="back", inverse=True)
    result = read(path)
    expected = model.transform(adata.obsm["double"], batch=adata.obs["batch"])
    np.testing.assert_allclose(result.obsm["refined"], expected, rtol=1e-12)
    np.testing.assert_allclose(result.obsm["back"], adata.obsm["double"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("compression", ["gzip", None])
def test_compressed_and_chunked_h5ad(rng, tmp_path, small_chunks, compression):
    adata = make(rng)
    path = tmp_path / "cells.h5ad"
    write(adata, path, "h5ad", compression=compression)
    refine_file(path, "batch", model=BatchProx(target="moment"))
    refine(adata, "batch", target="moment")
    np.testing.assert_allclose(
        read(path).obsm["X_pca_batchprox"], adata.obsm["X_pca_batchprox"], rtol=1e-5
    )


def test_files_of_the_newest_hdf5_layout(rng, tmp_path, small_chunks):
    adata = make(rng)
    old, new = tmp_path / "old.h5ad", tmp_path / "new.h5ad"
    write(adata, old, "h5ad")
    with h5py.File(old) as a, h5py.File(new, "w", libver="latest") as b:
        for name in a:
            a.copy(name, b)
        b.attrs.update(a.attrs)
    refine_file(new, "batch", model=BatchProx(target="moment"))
    assert "X_pca_batchprox" in read(new).obsm


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"batch_key": "plate"},
                "found no column 'plate'; available: 'batch', 'donor', 'site'",
            ),
            ({"use_rep": "X_umap"}, "found no 'X_umap'; available: 'X_pca'|'X_umap'; available:"),
            ({"key_added": "X_pca"}, "Expected a name for the result that differs"),
            ({"key_added": "a/b"}, "Expected a plain name for the result in cells.*, found 'a/b'"),
            ({"key_added": "a\\b"}, "Expected a plain name for the result in cells.*, found 'a"),
            ({"key_added": "a\0b"}, "Expected a plain name for the result in cells.*, found 'a"),
            ({"key_added": ".zattrs"}, "Expected a plain name for the result in cells.*, found"),
            ({"key_added": ""}, "Expected a plain name for the result in cells.*, found ''"),
            ({"batch_key": ["batch", "batch"]}, "Expected each batch key once"),
            ({"out": "other.csv"}, "Expected an output of the same kind as the input"),
        ],
    )
    def test_changes_nothing(self, stored, options, message):
        _, path = stored
        before = contents(path)
        if "out" in options:
            options = options | {"out": path.parent / options["out"]}
        with pytest.raises(InputError, match=message):
            refine_file(path, **({"batch_key": "batch"} | options))
        assert contents(path) == before
        assert [p.name for p in path.parent.iterdir()] == [path.name]

    @pytest.mark.parametrize("where", ["in place", "out"])
    def test_not_finite(self, rng, tmp_path, small_chunks, where):
        adata = make(rng)
        adata.obsm["X_pca"][500, 2] = np.nan
        path = tmp_path / "cells.h5ad"
        write(adata, path, "h5ad")
        before = path.read_bytes()
        with pytest.raises(
            InputError, match="1 NaN and 0 infinite .* the first at row 500, column 2"
        ):
            refine_file(
                path,
                "batch",
                out=None if where == "in place" else tmp_path / "o.h5ad",
                model=BatchProx(target="moment"),
            )
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["cells.h5ad"]

    def test_damaged_unrelated_and_missing_files(self, rng, tmp_path):
        path = tmp_path / "cells.h5ad"
        write(make(rng), path, "h5ad")
        raw = path.read_bytes()
        for name, damage in {
            "cut.h5ad": raw[: len(raw) // 2],
            "text.h5ad": b"hello",
            "empty.h5ad": b"",
        }.items():
            (tmp_path / name).write_bytes(damage)
            with pytest.raises(InputError, match="damaged or of another kind"):
                open_cells(tmp_path / name)
        with h5py.File(tmp_path / "other.h5ad", "w") as file:
            file["spam"] = 1
        with pytest.raises(InputError, match="without obs; available: 'spam'"):
            open_cells(tmp_path / "other.h5ad")
        (tmp_path / "unrelated.zarr").mkdir()
        with pytest.raises(InputError, match="damaged or of another kind"):
            open_cells(tmp_path / "unrelated.zarr")
        with pytest.raises(InputError, match="found none at"):
            open_cells(tmp_path / "absent.h5ad")
        with pytest.raises(InputError, match="Expected a file with a suffix of .h5ad"):
            open_cells(tmp_path / "cells.loom")

    def test_other_coordinates_or_batches(self, stored):
        adata, path = stored
        before = contents(path)
        fewer = BatchProx(target="moment").fit(
            adata.obsm["double"][:, :3], batch=adata.obs["batch"]
        )
        with pytest.raises(InputError, match="Expected an embedding of 3 coordinates"):
            apply_file(path, fewer.adapter_, "batch")
        other = BatchProx(target="moment").fit(
            adata.obsm["double"], batch=["x"] * 400 + ["y"] * 500
        )
        with pytest.raises(InputError, match="found unseen 's1', 's2', 's3'; available: 'x', 'y'"):
            apply_file(path, other.adapter_, "batch")
        assert contents(path) == before

    def test_file_open_in_another_process(self, rng, tmp_path):
        path = tmp_path / "cells.h5ad"
        write(make(rng), path, "h5ad")
        script = f"""
import h5py, sys
file = h5py.File({str(path)!r}, "r+")
print("open", flush=True)
sys.stdin.read()
"""
        other = subprocess.Popen(
            [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert other.stdout.readline() == b"open\n"
            with pytest.raises(InputError, match="in another process"):
                refine_file(path, "batch", model=BatchProx(target="moment"))
        finally:
            other.communicate()

    def test_full_disk_in_place(self, rng, tmp_path, monkeypatch):
        path = tmp_path / "cells.h5ad"
        write(make(rng), path, "h5ad")
        before = path.read_bytes()
        real, written = os.pwrite, []

        def full(fd, data, offset):
            written.append(len(data))
            if sum(written) > 5000:
                raise OSError(28, "No space left on device")
            return real(fd, data, offset)

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="No space left on device"):
            refine_file(path, "batch", model=BatchProx(target="moment"))
        assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ["h5ad", "zarr3"])
def test_only_the_refined_cells(rng, tmp_path, kind):
    adata, path = make(rng), tmp_path / f"cells.{kind[:4]}"
    write(adata, path, kind)
    refine_file(path, "batch", out=tmp_path / "refined.npy", model=BatchProx(target="moment"))
    refine(adata, "batch", target="moment")
    np.testing.assert_allclose(
        np.load(tmp_path / "refined.npy"), adata.obsm["X_pca_batchprox"], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("suffix", [None, ".npy"])
def test_cells_that_change_while_they_are_read(stored, tmp_path, suffix):
    """A copy would be of two states; a change in place is refused when its lock is taken."""
    _, path = stored
    out = tmp_path / f"out{suffix or path.suffix}"

    def progress(stage, done, total):
        if stage == "moments" and done == total:
            part = path / "obsm" / "X_pca" if path.is_dir() else path
            for file in [path] if path.is_file() else (p for p in part.rglob("*") if p.is_file()):
                file.write_bytes(file.read_bytes())

    with pytest.raises(InputError, match="changed since"):
        refine_file(path, "batch", out=out, progress=progress, model=BatchProx(target="moment"))
    assert os.listdir(tmp_path) == [path.name]


def test_read_only_store_can_be_copied(rng, tmp_path):
    path = tmp_path / "cells.zarr"
    write(make(rng), path, "zarr3")
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            os.chmod(os.path.join(folder, name), 0o444)
        os.chmod(folder, 0o555)
    try:
        refine_file(path, "batch", out=tmp_path / "out.zarr", model=BatchProx(target="moment"))
    finally:
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o755)
    assert os.access(tmp_path / "out.zarr" / "obsm", os.W_OK)
    assert stat.S_IMODE((tmp_path / "out.zarr" / "obsm").stat().st_mode) & 0o200


def test_zarr_index_includes_the_result(stored):
    _, path = stored
    if path.suffix != ".zarr":
        pytest.skip("only zarr stores have an index")
    zarr.consolidate_metadata(path)
    refine_file(path, "batch", model=BatchProx(target="moment"))
    group = zarr.open_consolidated(str(path))
    assert "X_pca_batchprox" in group["obsm"]
