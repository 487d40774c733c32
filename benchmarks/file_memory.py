"""Peak memory of the command for 10,000,000 x 50 cells with text labels, for each kind of file.

Text tables are not among them, because they take an hour; the tests of memory extend smaller ones.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .files import D, N, _fill, _make_h5ad, _make_zarr, _remove
from .measure import Row

STEP = 500_000

# The command, and then the peak of its memory in kilobytes. ``wait4`` is no use for this: its peak begins
# with the memory of the process that starts another.
COMMAND = """
import atexit, pathlib, runpy, sys
place = pathlib.Path(sys.argv.pop(1))
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: place.write_text(status.read_text().split("VmHWM:")[1].split()[0]))
runpy.run_module("scbatchprox", run_name="__main__")
"""


def run() -> Iterator[Row]:
    makers: list[Callable[[Path], tuple[Path, list[str]]]] = [_npy, _h5ad, _zarr, _npz, _parquet]
    for make in makers:
        with tempfile.TemporaryDirectory() as name:
            path, args = make(Path(name))
            for target in ("moment", "population"):
                out = path.with_name(f"out{path.suffix}")
                seconds, gigabytes = _measure(path, out, [*args, "--target", target])
                _remove(out)
                what = f"{make.__name__[1:]}, target {target}, {N:,} x {D} float32"
                yield Row(
                    f"peak memory, {what}", gigabytes, "GB", most=1.0, note=f"{seconds:.0f} s"
                )


def _measure(path: Path, out: Path, args: list[str]) -> tuple[float, float]:
    place = path.with_name("peak")
    command = [sys.executable, "-c", COMMAND, str(place), "refine", str(path), "--out", str(out)]
    started = time.perf_counter()
    subprocess.run([*command, "--batch-key", "batch", "--quiet", *args], check=True)
    return time.perf_counter() - started, int(place.read_text()) * 1024 / 1e9


def _labels() -> np.ndarray:
    names = np.array([f"batch{b:02d}" for b in range(20)])
    return names[np.random.default_rng(0).integers(0, 20, N)]


def _npy(folder: Path) -> tuple[Path, list[str]]:
    path = folder / "cells.npy"
    _fill(np.lib.format.open_memmap(path, "w+", np.float32, (N, D)))
    np.save(folder / "labels.npy", _labels())
    return path, ["--labels", str(folder / "labels.npy")]


def _h5ad(folder: Path) -> tuple[Path, list[str]]:
    path = _make_h5ad(folder)
    with h5py.File(path, "r+") as file:  # text instead of a categorical
        del file["obs/batch"]
        column = file["obs"].create_dataset("batch", (N,), h5py.string_dtype(), chunks=(STEP,))
        column.attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})
        labels = _labels()
        for lo in range(0, N, STEP):
            column[lo : lo + STEP] = labels[lo : lo + STEP].astype(object)
    return path, []


def _zarr(folder: Path) -> tuple[Path, list[str]]:
    return _make_zarr(folder), []


def _npz(folder: Path) -> tuple[Path, list[str]]:
    path = folder / "cells.npz"
    Z = np.empty((N, D), np.float32)
    _fill(Z)
    np.savez(path, X_pca=Z, batch=_labels())
    return path, []


def _parquet(folder: Path) -> tuple[Path, list[str]]:
    path, labels, rng = folder / "cells.parquet", _labels(), np.random.default_rng(1)
    schema = pa.schema([("batch", pa.string()), *((f"PC{j + 1}", pa.float32()) for j in range(D))])
    with pq.ParquetWriter(path, schema) as file:
        for lo in range(0, N, STEP):
            block = rng.standard_normal((D, STEP), dtype=np.float32).round(3)
            columns = [pa.array(labels[lo : lo + STEP]), *map(pa.array, block)]
            file.write_table(pa.table(columns, schema=schema))
    return path, ["--use-rep", "PC"]
