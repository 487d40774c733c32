"""The memory of the command for 10,000,000 x 50 cells stays under 1 GB, for every kind of file."""

import shutil
import subprocess
import sys

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import zarr

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peak memory is in kilobytes there")

N, D, BYTES = 10_000_000, 50, 1e9
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
            text = frame[: n // 100].to_csv(index=False, header=False)  # to_csv takes minutes
            with open(path, "w") as file:
                file.write(",".join(frame.columns) + "\n")
                file.writelines(text for _ in range(100))
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


#: Text tables of this size take too long: ``python -m benchmarks file-memory`` measures them.
KINDS = ["npy + npy", "npz", "parquet", "h5ad", "zarr"]


@pytest.mark.memory
@pytest.mark.parametrize("kind", KINDS)
def test_memory_at_ten_million_cells(tmp_path, kind):
    # The population target keeps a sample of cells beside all that the moment target keeps.
    found = peak(*make(tmp_path, kind, N), "population")
    print(f"{kind}: {found / 1e6:.0f} MB")
    assert found < BYTES
    shutil.rmtree(tmp_path)  # gigabytes
