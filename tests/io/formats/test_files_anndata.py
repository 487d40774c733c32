"""Streaming .h5ad and .zarr: equal to the in-memory result, nothing else touched, nothing lost."""

import hashlib
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from anndata.io import write_elem

from data import make_cells
from scbatchprox import Adam, BatchProx, InputError, apply_file, refine, refine_file
from scbatchprox.cells import file as stream
from scbatchprox.io.formats import journal, open_cells
from scbatchprox.io.formats.journal import JournaledFile, journal_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:Consolidated metadata", "ignore:zarr v3 autosharding"
)

KINDS = ["h5ad", "zarr2", "zarr3"]


def make(rng, n=900):
    c = make_cells(rng, [n // 2, n // 3, n - n // 2 - n // 3], 6)
    obs = pd.DataFrame(
        {
            "batch": pd.Categorical(np.array(["s1", "s2", "s3"])[c.codes]),
            "donor": rng.integers(1, 3, n),
            "site": np.where(rng.random(n) < 0.5, "here", "there"),
        },
        index=[f"cell{i}" for i in range(n)],
    )
    adata = ad.AnnData(sp.csr_matrix(rng.poisson(1.0, (n, 7)).astype(np.float32)), obs)
    adata.obsm["X_pca"] = c.Z.astype(np.float32)
    adata.obsm["wide"] = c.Z
    adata.obsm["frame"] = pd.DataFrame(c.Z, index=adata.obs_names).add_prefix("PC")
    adata.obsm["sparse"] = sp.csr_matrix(np.round(c.Z))
    adata.layers["raw"] = adata.X.copy()
    adata.uns["colours"] = np.array(["#000000", "#ffffff"])
    return adata


def write(adata, path, kind, **options):
    if kind == "h5ad":
        adata.write_h5ad(path, **options)
    else:
        write_elem(zarr.open_group(path, mode="w", zarr_format=int(kind[-1])), "/", adata)
        zarr.consolidate_metadata(path)


def read(path):
    return ad.read_zarr(path) if path.suffix == ".zarr" else ad.read_h5ad(path)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(stream, "CHUNK_BYTES", 6 * 4 * 70)


@pytest.fixture(params=KINDS)
def stored(request, rng, tmp_path):
    adata = make(rng)
    path = tmp_path / f"cells.{request.param[:4]}"
    write(adata, path, request.param)
    return adata, path


def contents(path):
    """Every object of a file by name, as bytes; nothing escapes it."""
    found = {}
    if path.suffix == ".zarr":
        return {
            str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(path.rglob("*"))
            if p.is_file()
        }

    def note(name, item):
        found[f"{name} attributes"] = {key: str(value) for key, value in item.attrs.items()}
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item[()]).tolist()

    with h5py.File(path) as file:
        file.visititems(note)
    return found


@pytest.mark.parametrize("where", ["in place", "out"])
@pytest.mark.parametrize("use_rep", ["X_pca", "wide", "frame", "sparse", "X"])
def test_file_is_memory(stored, small_chunks, where, use_rep):
    adata, path = stored
    out = None if where == "in place" else path.with_name(f"out{path.suffix}")
    before = contents(path)
    seen = []
    model = refine_file(
        path, ["batch", "site"], use_rep=use_rep, out=out,
        progress=lambda stage, done, total: seen.append((stage, done, total)),
    )  # fmt: skip
    refine(adata, ["batch", "site"], use_rep=use_rep)
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
    if path.suffix == ".h5ad" and use_rep != "frame":  # this zarr has one chunk, read as a whole
        assert len(seen) > 4
    # The rest is as it was: every array, every attribute.
    after = contents(out or path)
    index = {"zarr.json", ".zmetadata"}
    assert {k: v for k, v in after.items() if key not in k and k not in index} == {
        k: v for k, v in before.items() if k not in index
    }
    if out:
        assert contents(path) == before
    assert not [p for p in path.parent.iterdir() if p.name.startswith(".")]


def test_again_replaces_the_result(stored, small_chunks):
    adata, path = stored
    refine_file(path, "batch", model=BatchProx(rounds=1))
    refine_file(path, "batch", model=BatchProx(rounds=7))
    refine(adata, "batch", rounds=7)
    result = read(path)
    np.testing.assert_allclose(
        result.obsm["X_pca_batchprox"], adata.obsm["X_pca_batchprox"], rtol=1e-4, atol=1e-5
    )
    assert result.uns["X_pca_batchprox"]["params"]["rounds"] == 7


def test_adam_from_a_file(stored):
    adata, path = stored
    refine_file(path, "batch", model=BatchProx(solver=Adam(seed=3)))
    refine(adata, "batch", solver=Adam(seed=3))
    np.testing.assert_array_equal(read(path).obsm["X_pca_batchprox"], adata.obsm["X_pca_batchprox"])


def test_apply_and_inverse(stored, small_chunks):
    adata, path = stored
    model = BatchProx().fit(adata.obsm["wide"], batch=adata.obs["batch"])
    apply_file(path, model.adapter_, "batch", use_rep="wide", key_added="there")
    apply_file(path, model.adapter_, "batch", use_rep="there", key_added="back", inverse=True)
    result = read(path)
    expected = model.transform(adata.obsm["wide"], batch=adata.obs["batch"])
    np.testing.assert_allclose(result.obsm["there"], expected, rtol=1e-12)
    np.testing.assert_allclose(result.obsm["back"], adata.obsm["wide"], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("compression", ["gzip", None])
def test_compressed_and_chunked_h5ad(rng, tmp_path, small_chunks, compression):
    adata = make(rng)
    path = tmp_path / "cells.h5ad"
    write(adata, path, "h5ad", compression=compression)
    refine_file(path, "batch")
    refine(adata, "batch")
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
    refine_file(new, "batch")
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
            ({"key_added": "X_pca"}, "Expected another name for the result"),
            ({"key_added": "a/b"}, "Expected a plain name for the result, found 'a/b'"),
            ({"key_added": ""}, "Expected a plain name for the result, found ''"),
            ({"batch_key": ["batch", "batch"]}, "Expected different batch keys"),
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
            refine_file(path, "batch", out=None if where == "in place" else tmp_path / "o.h5ad")
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["cells.h5ad"]

    def test_damaged_foreign_and_absent(self, rng, tmp_path):
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
        (tmp_path / "foreign.zarr").mkdir()
        with pytest.raises(InputError, match="damaged or of another kind"):
            open_cells(tmp_path / "foreign.zarr")
        with pytest.raises(InputError, match="found none at"):
            open_cells(tmp_path / "absent.h5ad")
        with pytest.raises(InputError, match="Expected a file with a suffix of .h5ad"):
            open_cells(tmp_path / "cells.loom")

    def test_another_width_or_batch_set(self, stored):
        adata, path = stored
        before = contents(path)
        narrow = BatchProx().fit(adata.obsm["wide"][:, :3], batch=adata.obs["batch"])
        with pytest.raises(InputError, match="Expected an embedding of 3 coordinates"):
            apply_file(path, narrow.adapter_, "batch")
        other = BatchProx().fit(adata.obsm["wide"], batch=["x"] * 400 + ["y"] * 500)
        with pytest.raises(InputError, match="found unseen 's1', 's2', 's3'; available: 'x', 'y'"):
            apply_file(path, other.adapter_, "batch")
        assert contents(path) == before

    def test_file_open_elsewhere(self, rng, tmp_path):
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
                refine_file(path, "batch")
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
            refine_file(path, "batch")
        assert path.read_bytes() == before


class TestJournal:
    @pytest.fixture
    def path(self, rng, tmp_path):
        path = tmp_path / "cells.h5ad"
        write(make(rng), path, "h5ad")
        return path

    def change(self, path, stop_after=None, monkeypatch=None):
        """Add a result in place; let the commit die after some of its writes."""
        if stop_after is not None:
            real, count = os.pwrite, []

            def dying(fd, data, offset):
                if journal_of(path).exists():
                    count.append(offset)
                    if len(count) > stop_after:
                        raise KeyboardInterrupt
                return real(fd, data, offset)

            monkeypatch.setattr(os, "pwrite", dying)
            # A killed process cannot tidy up.
            monkeypatch.setattr(JournaledFile, "discard", lambda self: None)
            monkeypatch.setattr(journal, "_undo", lambda fd, path: None)
        refine_file(path, "batch")

    @pytest.mark.parametrize("stop_after", [0, 1, 2])
    def test_death_while_committing_is_undone(self, path, monkeypatch, stop_after):
        before = contents(path)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            self.change(path, stop_after, patch)
        assert journal_of(path).exists()
        with open_cells(path):
            pass
        assert not journal_of(path).exists()
        assert contents(path) == before
        self.change(path)
        assert "X_pca_batchprox" in read(path).obsm

    @pytest.mark.parametrize("stop_after", [0, 1, 2])
    def test_failure_while_committing_is_undone_at_once(self, path, monkeypatch, stop_after):
        before, real, count = path.read_bytes(), os.pwrite, []

        def failing(fd, data, offset):
            if journal_of(path).exists():
                count.append(offset)
                if len(count) == stop_after + 1:
                    raise OSError(5, "Input/output error")
            return real(fd, data, offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", failing)
            with pytest.raises(OSError, match="Input/output error"):
                refine_file(path, "batch")
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]

    @pytest.mark.parametrize("moment", ["first write", "after the last"])
    def test_ctrl_c_while_committing_waits_for_the_end(self, path, monkeypatch, moment):
        real_write, real_unlink, sent = os.pwrite, type(path).unlink, []

        def interrupt():
            if not sent:
                sent.append(True)
                signal.raise_signal(signal.SIGINT)

        def writing(fd, data, offset):
            if moment == "first write" and journal_of(path).exists():
                interrupt()
            return real_write(fd, data, offset)

        def unlinking(self, *args, **options):
            real_unlink(self, *args, **options)
            if moment == "after the last" and self == journal_of(path):
                interrupt()

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", writing)
            patch.setattr(type(path), "unlink", unlinking)
            with pytest.raises(KeyboardInterrupt):
                refine_file(path, "batch")
        assert sent
        assert "X_pca_batchprox" in read(path).obsm
        assert os.listdir(path.parent) == [path.name]

    def test_opening_elsewhere_does_not_undo_a_live_commit(self, path, monkeypatch):
        real, answers = os.pwrite, []

        def slow(fd, data, offset):
            if journal_of(path).exists() and not answers:
                script = f"from scbatchprox.io.formats import open_cells; open_cells({str(path)!r})"
                answers.append(
                    subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
                )
            return real(fd, data, offset)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", slow)
            refine_file(path, "batch")
        assert "found it in use elsewhere" in answers[0].stderr
        assert "X_pca_batchprox" in read(path).obsm

    def test_links_share_the_journal(self, path, tmp_path, monkeypatch):
        (tmp_path / "staged").mkdir()
        link = tmp_path / "staged" / "cells.h5ad"
        link.symlink_to(path)
        before = contents(path)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            self.change(link, 1, patch)
        with open_cells(path):
            pass
        assert contents(path) == before
        self.change(link)
        assert link.is_symlink()
        assert "X_pca_batchprox" in read(path).obsm

    def test_user_block_and_dead_tail(self, path, tmp_path):
        """After a killed run the content ends before the file does, wherever the superblock is."""
        other = tmp_path / "block.h5ad"
        with h5py.File(path) as a, h5py.File(other, "w", userblock_size=1024) as b:
            for name in a:
                a.copy(name, b)
            b.attrs.update(a.attrs)
        size = other.stat().st_size
        with open(other, "ab") as file:
            file.write(os.urandom(5_000_000))
        journaled = JournaledFile(other)
        assert journaled._old_end == size
        journaled.close()
        self.change(other)
        assert "X_pca_batchprox" in read(other).obsm
        assert other.stat().st_size < 5_000_000

    def test_open_in_the_same_process(self, path):
        with h5py.File(path, "r"), open_cells(path) as file:
            assert file.embedding(None).shape == (900, 6)

    def test_a_changed_file_is_not_undone(self, path, monkeypatch):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            self.change(path, 1, patch)
        with open(path, "r+b") as file:
            file.seek(100)
            file.write(b"changed by somebody else")
        with pytest.raises(InputError, match="found that it was changed since; delete"):
            open_cells(path)

    def test_only_new_objects_are_written(self, path):
        """Below the old end only a few pages of tables change, however large the result."""
        size, before = path.stat().st_size, path.read_bytes()
        self.change(path)
        after = path.read_bytes()
        changed = sum(
            before[k : k + 4096] != after[k : k + 4096] for k in range(0, size // 4096 * 4096, 4096)
        )
        assert changed <= 8
        assert len(after) > size


KILL = """
import sys, time, numpy as np
from scbatchprox import refine_file
from scbatchprox.cells import file as stream
from scbatchprox.io.formats.{module} import {writer} as Writer
stream.CHUNK_BYTES = 6 * 4 * 50
real, count = Writer.write, [0]
def slow(self, lo, block):
    real(self, lo, block)
    print("chunk", lo, flush=True)
    time.sleep(0.01)
Writer.write = slow
refine_file({path!r}, "batch", out={out!r})
print("done", flush=True)
"""


@pytest.mark.parametrize("where", ["in place", "out"])
@pytest.mark.parametrize("point", ["first chunk", "middle", "last chunk", "after the last", "late"])
@pytest.mark.parametrize("kind", ["h5ad", "zarr3"])
def test_killed_at_any_moment(rng, tmp_path, kind, where, point):
    adata, path = make(rng), tmp_path / f"cells.{kind[:4]}"
    write(adata, path, kind)
    before = contents(path)
    out = None if where == "in place" else path.with_name(f"out{path.suffix}")
    kind = ("h5ad", "_H5adWriter") if path.suffix == ".h5ad" else ("zarr", "_ZarrWriter")
    script = textwrap.dedent(KILL).format(
        path=str(path), out=out and str(out), module=kind[0], writer=kind[1]
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    wanted = {"first chunk": "chunk 0", "middle": "chunk 450"}.get(point, "chunk 850")
    for line in process.stdout:
        if line.startswith(wanted):
            break
    time.sleep({"after the last": 0.012, "late": 0.03}.get(point, 0))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()

    with open_cells(path):
        pass  # an interrupted commit is undone here
    refine(adata, "batch")
    target = out or path
    if target.exists():
        result = read(target)
        if "X_pca_batchprox" in result.obsm:  # complete, or absent
            np.testing.assert_allclose(
                result.obsm["X_pca_batchprox"], adata.obsm["X_pca_batchprox"], rtol=1e-5, atol=1e-6
            )
            assert "X_pca_batchprox" in result.uns
        else:
            assert out is None
            kept = {k: v for k, v in contents(path).items() if "X_pca_batchprox" not in k}
            assert kept == before
    if out:
        assert contents(path) == before
    # And the next run does its work.
    refine_file(path, "batch", out=out)
    np.testing.assert_allclose(
        read(target).obsm["X_pca_batchprox"], adata.obsm["X_pca_batchprox"], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("kind", ["zarr2", "zarr3"])
@pytest.mark.parametrize("dies_at", range(7))
def test_zarr_killed_between_the_steps_of_a_rerun(rng, tmp_path, monkeypatch, kind, dies_at):
    """The store is readable at every step, and the next opening finishes what was decided."""
    adata, path = make(rng), tmp_path / "cells.zarr"
    write(adata, path, kind)
    refine_file(path, "batch", model=BatchProx(rounds=1))
    old = read(path).obsm["X_pca_batchprox"]
    real, steps = os.rename, []

    def dying(source, target):
        if len(steps) == dies_at:
            raise KeyboardInterrupt
        steps.append(target)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dying)
        patch.setattr("scbatchprox.io.formats.zarr._remove", lambda folder: None)
        try:
            refine_file(path, "batch", model=BatchProx(rounds=9))
        except KeyboardInterrupt:
            pass
        else:
            assert dies_at >= len(steps)
    between = read(path)  # by others, with no help of ours
    np.testing.assert_array_equal(between.obsm["X_pca"], adata.obsm["X_pca"])
    with open_cells(path):
        pass
    result = read(path)
    rounds = result.uns["X_pca_batchprox"]["params"]["rounds"]
    assert rounds == (1 if dies_at == 0 else 9)
    assert (np.array_equal(result.obsm["X_pca_batchprox"], old)) == (rounds == 1)
    assert zarr.open_group(path, mode="r").metadata.consolidated_metadata is not None


def test_zarr_has_one_writer(rng, tmp_path):
    path = tmp_path / "cells.zarr"
    write(make(rng), path, "zarr3")
    with open_cells(path) as file, file.writer(None, "a", (900, 6), np.dtype("f4")) as writer:
        with pytest.raises(InputError, match="in use elsewhere"):
            refine_file(path, "batch")
        writer.finish({})
    assert "a" in read(path).obsm


@pytest.mark.parametrize("kind", ["h5ad", "zarr3"])
def test_the_refined_cells_alone(rng, tmp_path, kind):
    adata, path = make(rng), tmp_path / f"cells.{kind[:4]}"
    write(adata, path, kind)
    refine_file(path, "batch", out=tmp_path / "refined.npy")
    refine(adata, "batch")
    np.testing.assert_allclose(
        np.load(tmp_path / "refined.npy"), adata.obsm["X_pca_batchprox"], rtol=1e-5, atol=1e-6
    )


def test_read_only_store_can_be_copied(rng, tmp_path):
    path = tmp_path / "cells.zarr"
    write(make(rng), path, "zarr3")
    for folder, _, names in os.walk(path, topdown=False):
        for name in names:
            os.chmod(os.path.join(folder, name), 0o444)
        os.chmod(folder, 0o555)
    try:
        refine_file(path, "batch", out=tmp_path / "out.zarr")
    finally:
        for folder, _, _ in os.walk(path):
            os.chmod(folder, 0o755)
    assert os.access(tmp_path / "out.zarr" / "obsm", os.W_OK)
    assert stat.S_IMODE((tmp_path / "out.zarr" / "obsm").stat().st_mode) & 0o200


def test_zarr_index_knows_the_result(stored):
    _, path = stored
    if path.suffix != ".zarr":
        pytest.skip("only zarr stores have an index")
    zarr.consolidate_metadata(path)
    refine_file(path, "batch")
    group = zarr.open_consolidated(str(path))
    assert "X_pca_batchprox" in group["obsm"]
