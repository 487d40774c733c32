"""Every write of a command fails once: one sentence and the old file, or the new file, complete."""

import errno
import os

import numpy as np
import pandas as pd
import pytest

from anndata_files import contents, make, write
from failing_disk import failed_writes, library
from table_files import PCS, save

pytestmark = pytest.mark.filterwarnings(
    "ignore:Consolidated metadata", "ignore:zarr v3 autosharding"
)


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    return library(tmp_path_factory.mktemp("library"))


def content(path):
    if not path.exists():
        return None
    return contents(path) if path.suffix in (".h5ad", ".zarr") else path.read_bytes()


@pytest.mark.parametrize(
    ("kind", "where", "every"),
    [("h5ad", "out", 6), ("h5ad", "in place", 9), ("zarr3", "out", 40)]
    + [(kind, "out", 1) for kind in ("npy", "npz", "csv")]
    + [("parquet", "out", 3)],
)
def test_a_write_that_fails_is_noticed(rng, tmp_path, failing, kind, where, every):
    (disk := tmp_path / "disk").mkdir()
    place = disk if where == "in place" else tmp_path
    options = ["--batch-key", "batch", "--target", "moment", "--quiet"]
    adata = make(rng, 60)
    if kind in ("h5ad", "zarr3"):
        del adata.obsm["frame"], adata.obsm["sparse"], adata.layers["raw"]
        write(adata, path := place / f"cells.{kind[:4]}", kind)
    else:
        frame = pd.DataFrame(adata.obsm["double"][:, : len(PCS)], columns=PCS)
        frame.insert(0, "batch", np.asarray(adata.obs["batch"], dtype=str))
        path = save(frame, place, kind)
        options += ["--use-rep", "PC"] if kind in ("csv", "parquet") else []
        options += ["--labels", save(frame, tmp_path, "csv", "labels")] if kind == "npy" else []
    target = path if where == "in place" else disk / f"out{path.suffix}"
    options += ["--in-place"] if where == "in place" else ["--out", target]
    old = content(target)
    words = {errno.ENOSPC: "the disk is full", errno.EIO: "Input/output error"}
    found = []
    for failed, code, said in failed_writes(failing, disk, ["refine", path, *options], every):
        left = os.listdir(disk)
        found.append((failed, code, said, content(target)))
        assert left == [target.name] * target.exists(), said
    assert found[-1][:3] == (0, 0, "")
    new = found[-1][-1]
    assert new != old
    for failed, code, said, now in found:
        if code == 0:  # a way to do without what failed
            assert now == new
        else:
            assert (code, said.count("\n"), now) == (1, 1, old), said
            assert words[failed] in said
    assert sum(code for _, code, *_ in found) >= len(found) // 2
