"""Wrong use and failing disks: one sentence, an exit code, and no lost data."""

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from types import SimpleNamespace

import anndata as ad
import numpy as np
import pytest

from command_line import command, run, warm_command

pytestmark = pytest.mark.filterwarnings("ignore:.*zarr")


class TestWrongUse:
    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--batch-key", "batch"], "Expected either --out or --in-place, found neither."),
            (["--batch-key", "plate", "--in-place"], "no column 'plate'; available: 'batch', 'site'"),
            (["--batch-key", "batch", "--in-place", "--use-rep", "X_no"],
             "Expected --use-rep in obsm (--use-rep NAME takes another, `scbatchprox embed` makes one from "
             "counts), found no 'X_no'; available: 'X_pca' (in cells.h5ad)."),
            (["--batch-key", "batch", "--in-place", "--keep", "x"],
             "Expected --keep in obs, found no column 'x'"),
            (["--batch-key", "batch", "--in-place", "--population-key", "x"],
             "Expected --population-key in obs"),
            (["--batch-key", "batch", "--in-place", "--keep", "site", "--no-diagnose"],
             "Expected --keep only with a diagnosis, which it is a part of, found --no-diagnose."),
            (["--batch-key", "use_rep", "--in-place"],
             "Expected --batch-key in obs, found no column 'use_rep'"),
            (["--batch-key", "batch", "--in-place", "--population-key", "site", "--target", "moment"],
             "--target population"),
            (["--batch-key", "batch", "--in-place", "--rounds", "many"], "or 'auto', found 'many'"),
            (["--batch-key", "batch", "--in-place", "--target", "moment", "--seed", "1"], "only with"),
            (["--batch-key", "batch", "--in-place", "--mu", "-1"], "Expected --mu to be a finite number"),
            (["--batch-key", "batch", "--in-place", "--target", "x"], "Expected --target to be one of"),
            (["--batch-key", "batch", "--out", "x.csv"], "Expected an output of the same kind"),
            (["--batch-key", "batch", "--in-place", "--model", "cells.h5ad"], "different files for IN and"),
            (["--batch-key", "batch", "--out", "o.h5ad", "--model", "o.h5ad"], "for --model and --out"),
            (["--batch-key", "batch", "--in-place", "--key-added", "a/b"], "Expected a plain name"),
            (["--batch-key", "batch", "--in-place", "--dask", "--scheduler", "x"], "found both"),
            (["--batch-key", "batch", "--out", "no/where.h5ad"], "Expected a folder to write to"),
            (["--batch-key", "batch", "--in-place", "--model", "no/m"], "Expected a folder for --model"),
        ],
    )  # fmt: skip
    def test_is_one_sentence_and_exit_code_2(self, path, arguments, sentence, monkeypatch):
        before = path.read_bytes()
        monkeypatch.chdir(path.parent)
        done = run("refine", path, *arguments, code=2)
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
        assert path.read_bytes() == before

    def test_warnings_too(self, adata, tmp_path):
        adata.obs["batch"] = np.repeat(["a", "b"], 90)
        adata.obsm["X_pca"][:90] = (
            adata.obsm["X_pca"][:90] * 0.1 + 50.0 * (np.arange(90) % 2)[:, None]
        )
        adata.obsm["X_pca"][90:] *= 0.1
        adata.write_h5ad(path := tmp_path / "c.h5ad")
        done = warm_command(
            "refine", path, "--batch-key", "batch", "--in-place", "--target", "moment"
        )
        assert "Batches differ" in done.stderr
        assert "--target population; --diagnose gives a verdict per batch." in done.stderr

    def test_in_a_new_process(self, path):
        done = warm_command("refine", path, "--batch-key", "plate", "--in-place")
        assert done.returncode == 2
        assert (done.stdout, done.stderr.count("\n")) == ("", 1)
        assert "no column 'plate'" in done.stderr

    def test_unknown_options_and_commands(self, path):
        run("refine", path, code=2)
        run("refine", path, "--batch-key", "batch", "--wrong", code=2)
        run("nonsense", code=2)

    def test_bad_files(self, tmp_path):
        (tmp_path / "x.h5ad").write_bytes(b"no")
        run("refine", tmp_path / "x.h5ad", "--batch-key", "b", "--in-place", code=2)
        run("refine", tmp_path / "absent.h5ad", "--batch-key", "b", "--in-place", code=2)
        run("refine", tmp_path / "x.loom", "--batch-key", "b", "--in-place", code=2)
        run("inspect", tmp_path / "x.h5ad", code=2)
        done = run("inspect", tmp_path / "x.h5ad", "--json", code=2)
        assert json.loads(done.stdout)["exit_code"] == 2

    def test_verbose_prints_the_traceback(self, tmp_path):
        done = command("inspect", tmp_path / "absent", "-v")
        assert done.returncode == 2
        assert "Traceback" in done.stderr

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_read_only_folder(self, path, tmp_path):
        path.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
        try:
            done = warm_command(
                "refine", path, "--batch-key", "batch", "--out", tmp_path / "o.h5ad"
            )
        finally:
            path.parent.chmod(0o755)
        assert done.returncode == 1
        assert done.stderr.count("\n") == 1

    def test_no_room_to_unpack(self, tmp_path, monkeypatch):
        """A packed array is unpacked to disk; that there is no room for it is not the fault of the file."""
        np.savez_compressed(tmp_path / "c.npz", X=np.ones((20, 2)), batch=list("ab") * 10)
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
        done = run("refine", tmp_path / "c.npz", "--batch-key", "batch", "--in-place", code=1)
        assert re.search("GB of free disk in .* to unpack c.npz, found 0.0 GB", done.stderr)
        assert "damaged" not in done.stderr

    def test_a_copy_that_cannot_be_written(self, path, tmp_path, monkeypatch):
        """The sentence names what is written, which may be on another disk than the input."""

        def full(source, target, **_):
            raise OSError(errno.ENOSPC, "No space left on device", str(source), None, str(target))

        ad.read_h5ad(path).write_zarr(store := tmp_path / "c.zarr")
        monkeypatch.setattr("shutil.copyfile", full)
        done = run("refine", store, "--batch-key", "batch", "--out", tmp_path / "o.zarr", code=1)
        assert "the disk is full: No space left on device" in done.stderr
        assert "c.zarr" not in done.stderr

    @pytest.mark.skipif(
        shutil.which("unshare") is None or os.geteuid() != 0, reason="needs a mount"
    )
    @pytest.mark.parametrize("where", ["--in-place", "--out"])
    @pytest.mark.parametrize("kind", ["full", "read-only"])
    @pytest.mark.slow
    def test_full_disk_and_read_only_folder(self, path, tmp_path, where, kind):
        """On a small file system for this test: the sentence names the cause, and no data is lost."""
        disk = tmp_path / "disk"
        disk.mkdir()
        size = path.stat().st_size
        target = "--in-place" if where == "--in-place" else "--out {disk}/out.h5ad"
        # A little larger than the file, so that it is full before the end.
        script = f"""
            mount -t tmpfs -o size={(size // 4096 + 3) * 4096} tmpfs {disk} || exit 99
            cp {path} {disk}/in.h5ad
            {"mount -o remount,ro " + str(disk) if kind == "read-only" else ""}
            {sys.executable} -m scbatchprox refine {disk}/in.h5ad --batch-key batch \\
                {target.format(disk=disk)}
            code=$?
            cmp {path} {disk}/in.h5ad || exit 98
            test -e {disk}/out.h5ad && exit 97
            ls -A {disk} | grep partial && exit 96
            exit $code
        """
        done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True)
        if done.returncode == 99:
            pytest.skip("no mounts here")
        assert done.returncode == 1, done.stderr
        wanted = "No space left on device" if kind == "full" else "Read-only file system"
        assert wanted in done.stderr
        assert "Traceback" not in done.stderr
