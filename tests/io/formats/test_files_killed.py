"""Processes killed while they write .h5ad or .zarr: the old result or the new one, never half of it."""

import os
import textwrap
import time

import numpy as np
import pytest
import zarr

from anndata_files import contents, make, read, write
from scbatchprox import BatchProx, InputError, refine, refine_file
from scbatchprox.io.formats import open_cells
from warm_processes import WarmProcess

pytestmark = pytest.mark.filterwarnings(
    "ignore:Consolidated metadata", "ignore:zarr v3 autosharding"
)


KILL = """
import sys, time, numpy as np
from scbatchprox import BatchProx, refine_file
from scbatchprox.cells import file as stream
from scbatchprox.io.formats.{module} import {writer} as Writer
stream.CHUNK_BYTES = 6 * 4 * 50
real, count = Writer.write, [0]
def slow(self, lo, block):
    real(self, lo, block)
    print("chunk", lo, flush=True)
    time.sleep(0.01)
Writer.write = slow
refine_file({path!r}, "batch", out={out!r}, model=BatchProx(target="moment"))
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
    process = WarmProcess(script)
    wanted = {"first chunk": "chunk 0", "middle": "chunk 450"}.get(point, "chunk 850")
    for line in process.stdout:
        if line.startswith(wanted):
            break
    time.sleep({"after the last": 0.012, "late": 0.03}.get(point, 0))
    process.kill()
    process.communicate()

    with open_cells(path):
        pass  # an interrupted commit is undone here
    refine(adata, "batch", target="moment")
    target = out or path
    if target.exists():
        result = read(target)
        if "X_pca_batchprox" in result.obsm:  # complete or missing
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
    # The next run succeeds.
    refine_file(path, "batch", out=out, model=BatchProx(target="moment"))
    np.testing.assert_allclose(
        read(target).obsm["X_pca_batchprox"], adata.obsm["X_pca_batchprox"], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("kind", ["zarr2", "zarr3"])
@pytest.mark.parametrize("killed_at", range(7))
def test_zarr_killed_between_the_steps_of_a_rerun(rng, tmp_path, monkeypatch, kind, killed_at):
    """The store is readable after every step, and the next opening finishes the move."""
    adata, path = make(rng), tmp_path / "cells.zarr"
    write(adata, path, kind)
    refine_file(path, "batch", model=BatchProx(rounds=1, target="moment"))
    old = read(path).obsm["X_pca_batchprox"]
    real, steps = os.rename, []

    def killing(source, target):
        if len(steps) == killed_at:
            raise KeyboardInterrupt
        steps.append(target)
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", killing)
        patch.setattr("scbatchprox.io.formats.zarr._remove", lambda folder: None)
        try:
            refine_file(path, "batch", model=BatchProx(rounds=9, target="moment"))
        except KeyboardInterrupt:
            pass
        else:
            assert killed_at >= len(steps)
    between = read(path)  # as another program would read it
    np.testing.assert_array_equal(between.obsm["X_pca"], adata.obsm["X_pca"])
    with open_cells(path):
        pass
    result = read(path)
    rounds = result.uns["X_pca_batchprox"]["params"]["rounds"]
    assert rounds == (1 if killed_at == 0 else 9)
    assert (np.array_equal(result.obsm["X_pca_batchprox"], old)) == (rounds == 1)
    assert zarr.open_group(path, mode="r").metadata.consolidated_metadata is not None


def test_zarr_has_one_writer(rng, tmp_path):
    path = tmp_path / "cells.zarr"
    write(make(rng), path, "zarr3")
    with open_cells(path) as file, file.writer(None, "a", (900, 6), np.dtype("f4")) as writer:
        with pytest.raises(InputError, match="in use elsewhere"):
            refine_file(path, "batch", model=BatchProx(target="moment"))
        writer.finish({})
    assert "a" in read(path).obsm
