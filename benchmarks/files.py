"""Refining files larger than memory, against a plain chunked copy of the same array."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import zarr

from .measure import Row

N, D = 10_000_000, 50

# Each runs in a new process, because the peak memory of a process never falls. The copy reads and
# writes chunks of the same size as we do, to a file with the same layout.
REFINE = """
import json, sys, time
import numpy as np
from scbatchprox import BatchProx, refine_file
BatchProx().fit_transform(np.zeros((100, 50), "f4") + np.arange(50, dtype="f4"), batch=[0, 1] * 50)
started = time.perf_counter()
refine_file(sys.argv[1], "batch", out=sys.argv[2] or None)
seconds = time.perf_counter() - started
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print(json.dumps([seconds, int(peak.split()[1]) / 1e6]))
"""
COPY = """
import json, os, sys, time
import h5py, zarr
source, target, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
started = time.perf_counter()
if source.endswith(".h5ad"):
    with h5py.File(source) as a, h5py.File(target, "w") as b:
        rows = a["obsm/X_pca"]
        new = b.create_dataset("copy", rows.shape, rows.dtype)
        for lo in range(0, len(rows), step):
            new[lo : lo + step] = rows[lo : lo + step]
    with open(target, "rb") as file:
        os.fsync(file.fileno())
else:
    rows = zarr.open_array(source + "/obsm/X_pca", mode="r")
    new = zarr.create_array(target, shape=rows.shape, dtype=rows.dtype, chunks=rows.chunks)
    for lo in range(0, rows.shape[0], step):
        new[lo : lo + step] = rows[lo : lo + step]
print(json.dumps([time.perf_counter() - started, 0]))
"""


def run() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (_make_h5ad(folder), _make_zarr(folder)):
            yield from _measure(path, folder)


def _measure(path: Path, folder: Path) -> Iterator[Row]:
    from scbatchprox.cells.file import CHUNK_BYTES
    from scbatchprox.io.formats import open_cells

    with open_cells(path) as file:
        rows = file.embedding(None)
        step = CHUNK_BYTES // (D * 4) // file.row_step * file.row_step
    assert rows.shape == (N, D)
    out = _run(REFINE, path, folder / f"out{path.suffix}")
    _remove(folder / f"out{path.suffix}")
    copies, in_place = [], []
    for _ in range(3):
        copies.append(_run(COPY, path, folder / f"copy{path.suffix}", step)[0])
        _remove(folder / f"copy{path.suffix}")
        in_place.append(_run(REFINE, path, ""))
    copy, best = min(copies), min(seconds for seconds, _ in in_place)
    what = f"{path.suffix}, {N:,} x {D} float32"
    note = f"{best:.1f} s / {copy:.1f} s"
    yield Row(
        f"refine in place / chunked copy of the array, {what}", best / copy, most=2.0, note=note
    )
    yield Row(
        "    with --out, which copies the rest of the file too",
        out[0] / copy,
        note=f"{out[0]:.1f} s",
    )
    yield Row(
        "    peak memory of the process", max(gb for _, gb in [*in_place, out]), "GB", most=1.0
    )
    _remove(path)


def _run(script: str, *arguments: object) -> tuple[float, float]:
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, gigabytes = json.loads(done.stdout)
    return seconds, gigabytes


def _make_h5ad(folder: Path) -> Path:
    path = folder / "cells.h5ad"
    _obs().write_h5ad(path)
    with h5py.File(path, "r+") as file:
        data = file["obsm"].create_dataset("X_pca", (N, D), "f4")
        data.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
        _fill(data)
    return path


def _make_zarr(folder: Path) -> Path:
    path = folder / "cells.zarr"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about future formats
        _obs().write_zarr(path)
    group = zarr.open_group(path, mode="r+", use_consolidated=False)
    data = group["obsm"].create_array("X_pca", shape=(N, D), dtype="f4", chunks=(20_000, D))
    data.attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})
    _fill(data)
    zarr.consolidate_metadata(path)
    return path


def _obs() -> ad.AnnData:
    codes = np.random.default_rng(0).integers(0, 20, N)
    batch = pd.Categorical.from_codes(codes, [f"batch{b:02d}" for b in range(20)])
    return ad.AnnData(obs=pd.DataFrame({"batch": batch}, index=pd.RangeIndex(N).astype(str)))


def _fill(data: object) -> None:
    rng = np.random.default_rng(1)
    for lo in range(0, N, 500_000):
        # Few digits, so that the file compresses; otherwise we would measure the compression of noise.
        data[lo : lo + 500_000] = rng.standard_normal((500_000, D), dtype=np.float32).round(3)


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else os.unlink(path)
