"""Federated fits: seconds and bytes per site, for 3, 10 and 30 sites that share a folder."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from scbatchprox import BatchProx
from scbatchprox.demo.federated import central_fit
from scbatchprox.federated import (
    CellsFile,
    MessageFolder,
    Plan,
    Site,
    Waiting,
    contribute,
    refine_parameters,
)

from .measure import Row

D, CELLS, TYPES = 40, 5_000, 12
SITES = (3, 10, 30)


def run() -> Iterator[Row]:
    for target in ("moment", "population"):
        for n_sites in SITES:
            with tempfile.TemporaryDirectory() as root:
                rounds, seconds, size, worst = _study(Path(root), n_sites, target)
            name = f"{target}, {n_sites} sites of {CELLS:,} x {D}"
            yield Row(f"{name}: rounds", rounds, "")
            yield Row(f"{name}: messages of a site", size / 1e3, "kB")
            yield Row(f"{name}: CPU time of a site", seconds, "s")
            yield Row(f"{name}: difference to the central fit", worst / 1e-8, "1e-8", 1.0)


def _study(root: Path, n_sites: int, target: str) -> tuple[int, float, float, float]:
    """Rounds, seconds and bytes of a site, and the worst difference to the central fit."""
    rng = np.random.default_rng(0)
    (root / "share").mkdir()
    folder = MessageFolder(root / "share", root / "share")
    sites = [Site.create(root / f"s{i:02}", folder, "study", f"s{i:02}") for i in range(n_sites)]
    for one in sites:
        for other in sites:
            one.trust(other.name, other.keys.card.fingerprint)
    types = 4.0 * rng.normal(size=(TYPES, D))
    files, cells = [], []
    for site in sites:
        Z = types[rng.integers(0, TYPES, CELLS)] + rng.normal(size=(CELLS, D)) + rng.normal(size=D)
        np.save(site.private / "cells.npy", Z)
        (site.private / "labels.txt").write_text("batch\n" * CELLS)
        files.append(
            CellsFile(
                site.private / "cells.npy", "batch", None, None, site.private / "out.npy",
                site.private / "labels.txt",
            )
        )  # fmt: skip
        cells.append(Z)
    model = BatchProx(target=target)
    plan = Plan("study", "refine", tuple(folder.cards()), refine_parameters(model, D, "benchmark"))
    sites[0].publish_plan(plan, accepted=True)  # simulated cells

    def answer(site: Site, file: CellsFile) -> object:
        return contribute(
            site, plan, file, confirmed=plan.fingerprint, accepted=True, write=True,
            wait=lambda _: _pause(),
        )  # fmt: skip

    started = time.process_time()
    with ThreadPoolExecutor(n_sites) as pool:
        found = list(pool.map(answer, sites, files))
    seconds = time.process_time() - started
    assert not any(isinstance(result, Waiting) for result in found)
    sums = list((root / "share" / "sums").rglob("*.sum"))
    batch = np.repeat([f"{site.name}/batch" for site in sites], CELLS)
    central = central_fit(np.concatenate(cells), batch, target)
    own = np.concatenate([np.load(file.out) for file in files if file.out])
    worst = float((np.abs(own - central) / central.std(0)).max())
    assert np.abs(own - np.concatenate(cells)).max() > 0.1  # or the difference says nothing
    size = sum(path.stat().st_size for path in sums) / n_sites
    return len(sums) // n_sites, seconds / n_sites, size, worst


def _pause() -> bool:
    """Wait a little for other sites."""
    time.sleep(0.05)
    return True
