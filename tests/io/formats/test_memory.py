"""The memory of the command for 10,000,000 x 50 cells stays under 1 GB, for every kind of file.

Two smaller sizes are measured, and extended to 10,000,000 cells; ``python -m benchmarks files`` measures
that size itself.
"""

import shutil
import subprocess
import sys
from itertools import product

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is in kilobytes there")

#: Large enough that all buffers are full: what grows beyond is memory per cell.
SIZES = 400_000, 1_000_000
SLOW_SIZES = 200_000, 400_000  # of a text table
D = 50
CELLS, BYTES = 10_000_000, 1e9
NAMES = np.array([f"batch{b:02d}" for b in range(20)])
PCS = [f"PC{j}" for j in range(D)]

# The command, and then the peak of its memory in kilobytes. ``wait4`` is no use for this: its peak begins
# with the memory of the process that starts another.
COMMAND = """
import atexit, pathlib, runpy, sys
place = pathlib.Path(sys.argv.pop(1))
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: place.write_text(status.read_text().split("VmHWM:")[1].split()[0]))
runpy.run_module("scbatchprox", run_name="__main__")
"""


def cells(n):
    return np.random.default_rng(1).standard_normal((n, D), dtype=np.float32).round(3)


def texts(n):
    return NAMES[np.random.default_rng(0).integers(0, 20, n)]


def make(folder, kind, n):
    """Write a file; return it and further options of the command."""
    kind, _, labels = kind.partition(" + ")
    path, other = folder / f"cells.{kind.split()[0]}", folder / f"labels.{labels}"
    args = []
    if kind == "npy":
        np.save(path, cells(n))
    elif kind.startswith("npz"):
        save = np.savez_compressed if "compressed" in kind else np.savez
        Z = cells(n)
        save(path, X=np.asfortranarray(Z) if "columns" in kind else Z, batch=texts(n))
    elif kind in ("parquet", "csv"):
        frame = pd.DataFrame(cells(n), columns=PCS).assign(batch=texts(n))
        if kind == "csv":
            frame.to_csv(path, index=False)
        else:
            frame.to_parquet(path, row_group_size=n // 2)
        args = ["--use-rep", "PC"]
    else:
        obs = pd.DataFrame({"batch": texts(n).astype(object)}, index=pd.RangeIndex(n).astype(str))
        adata = ad.AnnData(obs=obs, obsm={"X_pca": cells(n)})
        if kind == "h5ad":
            with h5py.File(path, "w") as file:
                ad.io.write_elem(file, "/", adata)
        else:
            ad.io.write_elem(zarr.open_group(path, mode="w", zarr_format=2), "/", adata)
            group = zarr.open_group(path, mode="r+", zarr_format=2)
            values = group["obs/batch"][:]  # one chunk would be unpacked as a whole
            del group["obs/batch"]
            column = group["obs"].create_array(
                "batch", shape=n, dtype=values.dtype, chunks=(20_000,)
            )
            column[:] = values
            column.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
    if labels:
        args = ["--labels", str(other)]
        if labels == "npy":
            np.save(other, texts(n))
        elif labels == "txt":
            other.write_text("\n".join(texts(n).tolist()))
        else:
            frame = pd.DataFrame({"batch": texts(n), "n": np.arange(n)})
            frame.to_parquet(other) if labels == "parquet" else frame.to_csv(other, index=False)
    return path, args


def peak(path, args, target):
    """Run the command; return its peak memory in bytes."""
    out, place = path.with_name(f"out{path.suffix}"), path.with_name("peak")
    command = [sys.executable, "-c", COMMAND, str(place), "refine", str(path)]
    command += ["--batch-key", "batch", "--target", target, "--out", str(out), "--quiet", *args]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return int(place.read_text()) * 1024


KINDS = [
    *("npy + npy", "npy + txt", "npy + csv", "npy + parquet", "npz", "npz columns"),
    *("npz compressed", "npz compressed columns", "parquet", "csv", "h5ad", "zarr"),
]


CASES = [
    # The first of them is run always, the others by `make test-heavy`.
    pytest.param(kind, target, marks=[pytest.mark.memory] if at else [], id=f"{kind}, {target}")
    for at, (kind, target) in enumerate(product(KINDS, ["moment", "population"]))
]


@pytest.mark.parametrize(("kind", "target"), CASES)
def test_memory_at_ten_million_cells(tmp_path, kind, target):
    peaks, sizes = [], SLOW_SIZES if kind == "csv" else SIZES
    for n in sizes:
        folder = tmp_path / str(n)
        folder.mkdir()
        peaks.append(peak(*make(folder, kind, n), target))
        shutil.rmtree(folder)  # half a gigabyte
    per_cell = (peaks[1] - peaks[0]) / (sizes[1] - sizes[0])
    print(f"{kind}, {target}: {[p / 1e6 for p in peaks]} MB, {per_cell:.0f} bytes per cell")
    assert peaks[1] + per_cell * (CELLS - sizes[1]) < BYTES
