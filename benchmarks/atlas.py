"""The time to add a batch does not depend on the number of cells in the atlas.

This holds for the population target too, because a batch is registered only to the consensus.
The time to open an atlas grows in proportion to its versions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from scbatchprox import Atlas, Moments
from scbatchprox.atlas.versions import Entry, commit

from .measure import Row, cells, fastest

D, NEW = 50, 10_000


def run() -> Iterator[Row]:
    Z, _ = cells(NEW, D, 1)
    labels = np.repeat("new", NEW)
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for n_cells, n_batches in ((10_000, 20), (10_000_000, 20), (10_000_000, 1000)):
            path = Path(folder) / f"{n_cells}x{n_batches}"
            _atlas_of_moments(path, n_cells, n_batches)
            jobs.append(lambda path=path: _add(path, Z, labels))
        # Each addition makes the list of versions longer, equally for all; few repeats keep it short.
        small, large, many = fastest(*jobs, repeat=9)
        size = (Path(folder) / "10000000x20" / "versions" / "000002.safetensors").stat().st_size
    yield Row(
        "add 10,000 x 50 to an atlas of 10,000,000 cells / to one of 10,000, 20 batches",
        large / small,
        most=1.5,
        note=f"{1e3 * large:.1f} ms / {1e3 * small:.1f} ms, including lock, checksums and fsync",
    )
    yield Row(
        "the same to 10,000,000 cells in 1,000 batches", many / small, note=f"{1e3 * many:.1f} ms"
    )
    yield Row("size of a version of 10,000,000 cells in 20 batches", size / 1e3, "kB")
    yield from _population_target(Z, labels)
    yield from _many_versions()


def _population_target(Z: np.ndarray, labels: np.ndarray) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for per_batch, n_batches in ((2_000, 5), (20_000, 5), (2_000, 50)):
            path = Path(folder) / f"{per_batch}x{n_batches}"
            Atlas.create(path, target="population").add(*cells(per_batch * n_batches, D, n_batches))
            jobs.append(lambda path=path: _add(path, Z, labels))
        small, large, many = fastest(*jobs, repeat=3)
    yield Row(
        "population target: add 10,000 x 50 to 100,000 cells / to 10,000, 5 batches",
        large / small,
        most=1.5,
        note=f"{1e3 * large:.0f} ms / {1e3 * small:.0f} ms",
    )
    yield Row("the same to 50 batches / to 5", many / small, most=1.5, note=f"{1e3 * many:.0f} ms")


def _many_versions() -> Iterator[Row]:
    """Open atlases whose lists are long; the list alone is read, so no version needs a file."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for n in (800, 6_400):
            path = Path(folder) / str(n)
            record = Atlas.create(path, target="moment")._record
            entries = [
                Entry(k, "add", k - 1, "", "", added=[{"batch": f"batch{k}", "n_cells": 9}])
                for k in range(2, n + 1)
            ]
            before = replace(record, versions=(*record.versions, *entries[:-1]))
            commit(path, before, entries[-1])
            jobs.append(lambda path=path: Atlas.open(path))
        few, many = fastest(*jobs, repeat=5)
    yield Row(
        "open an atlas of 6,400 versions / of 800",
        many / few,
        most=12.0,
        note=f"{1e3 * many:.0f} ms / {1e3 * few:.0f} ms",
    )


def _atlas_of_moments(path: Path, n_cells: int, n_batches: int) -> None:
    """Create an atlas of many cells from moments: it keeps nothing else, so no cells are needed."""
    rng = np.random.default_rng(0)
    n = np.full(n_batches, n_cells // n_batches)
    mean = rng.normal(0.0, 0.5, (n_batches, D))
    m2 = n[:, None] * rng.uniform(0.5, 2.0, (n_batches, D))
    batches = np.array([f"batch{k:04d}" for k in range(n_batches)])
    Atlas.create(path, target="moment").add(Moments.per_batch(batches, n, mean, m2))


def _add(path: Path, Z: np.ndarray, labels: np.ndarray) -> None:
    """Add a new batch: open and lock the atlas, check the batch, write a version."""
    atlas = Atlas.open(path)
    atlas.add(Z, np.char.add(labels, str(atlas.version)))
