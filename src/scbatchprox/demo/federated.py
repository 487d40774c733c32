"""The federated demonstration: three sites, from counts to refined cells, and what each party saw."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import anndata as ad
import numpy as np

from ..api.estimator import BatchProx
from ..cells.memory import MemoryCells
from ..core.labels import Labels
from ..errors import BadValue
from ..federated.flower.programs import check_installed
from ..federated.plan import MIN_CELLS, POPULATION
from ..targets.population.find import dissolved
from .compositions import Composition
from .couriers import PATIENCE, couriers
from .simulation import simulate

__all__ = ["SITES", "central_fit", "run"]

SITES = ("east", "north", "south")
#: Cells by batch and type: every hospital has other shares, and one type is missing in the south.
COUNTS = ((180, 120, 60, 40), (140, 100, 90, 70), (60, 200, 80, 60),
          (70, 160, 120, 50), (200, 0, 100, 100), (160, 0, 140, 100))  # fmt: skip
N_GENES, N_HVGS, N_COMPONENTS = 800, 400, 20


def run(out: Path, *, target: str = "population", flower: bool = False) -> dict[str, float]:
    """Run three sites as processes of the command; print equality with the central fit.

    With ``flower``, couriers carry the messages between the sites' inboxes and outboxes; without it, sites
    share a folder.
    """
    if flower:
        check_installed()
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise BadValue(f"Expected an empty folder for the demonstration, found files in {out}.")
    study = _Study(out, shared=not flower)
    print(f"Simulating counts of {len(SITES)} hospitals, two batches each, in {out} ...")
    study.make_cells()
    with couriers(out, {site: out / site for site in SITES}) if flower else nullcontext():
        print("Every site makes keys, and compares fingerprints with the others.")
        study.introduce()
        print("A PCA of all hospitals, from two sums of masked numbers.")
        study.fit_pca()
        print(f"Refinement ({target} target), from sums of masked numbers.")
        study.refine(target)
    return study.compare(target)


class _Study:
    """Folders and commands of all sites."""

    def __init__(self, out: Path, *, shared: bool) -> None:
        self.out, self.shared = out, shared

    def make_cells(self) -> None:
        """Write the counts of each hospital to its own folder."""
        names = tuple(f"{site}-{i}" for site in SITES for i in (1, 2))
        table = Composition("hospitals", names, ("T", "B", "NK", "mono"), np.array(COUNTS))
        cells = simulate(table, n_genes=N_GENES, n_components=N_COMPONENTS, seed=0)
        del cells.obsm["X_pca"]  # which no hospital could have computed alone
        cells.obs["donor"] = cells.obs["batch"].astype(str).str[-1]  # two sites have a donor 1
        for site in SITES:
            home = self.out / site
            home.mkdir()
            (home / "private").mkdir(mode=0o700)
            at = cells.obs["batch"].astype(str).str.startswith(site)
            cells[at].copy().write_h5ad(home / "counts.h5ad")
            for box in ("inbox", "outbox"):
                (home / box).mkdir()
        (self.out / "share").mkdir()
        (self.out / "genes.txt").write_text("\n".join(cells.var_names) + "\n")

    def introduce(self) -> None:
        """Make keys, and trust the cards of all sites."""
        made = self.at(SITES, "keys", own=lambda site: [site, "--study", "demo"])
        for site in SITES:
            self._wait_for([site], [f"cards/{other}.card" for other in SITES if other != site])
        for other, card in made.items():
            self.at(SITES, "trust", other, card["fingerprint"])

    def fit_pca(self) -> None:
        """Fit a PCA of all sites, and embed the cells of each."""
        genes = str(self.out / "genes.txt")
        self._answer(
            "counts.h5ad", "pca.safetensors",
            "pca", "--genes", genes, "--hvgs", str(N_HVGS), "--coordinates", str(N_COMPONENTS),
        )  # fmt: skip
        homes = {site: self.out / site for site in SITES}
        _at_once({
            site: [
                "embed", "apply", str(home / "counts.h5ad"), "--upstream", str(home / "pca.safetensors"),
                "--out", str(home / "cells.h5ad"), "--json",
            ]
            for site, home in homes.items()
        })  # fmt: skip

    def refine(self, target: str) -> None:
        """Refine the cells of all sites."""
        pca = str(self.out / SITES[0] / "pca.safetensors")
        # Yes to what the population target gives away: these cells are simulated.
        self._answer(
            "cells.h5ad", "refined.h5ad",
            "plan", "--coordinates", str(N_COMPONENTS), "--embedding", pca, "--target", target, "--yes",
        )  # fmt: skip

    def compare(self, target: str) -> dict[str, float]:
        """Compare with the central fit, and say what each party saw."""
        parts = {site: ad.read_h5ad(self.out / site / "refined.h5ad") for site in SITES}
        Z = np.concatenate([part.obsm["X_pca"] for part in parts.values()])
        refined = np.concatenate([part.obsm["X_pca_batchprox"] for part in parts.values()])
        batch = [f"{site}/{donor}" for site, part in parts.items() for donor in part.obs["donor"]]
        central = central_fit(Z, np.array(batch), target)
        spread = Z.std(0)
        worst = float((np.abs(refined - central) / spread).max())
        moved = float((np.abs(refined - Z) / spread).max())
        print(
            f"\n{len(Z):,} cells in {len(set(batch))} batches, which moved by up to {moved:.2f} spreads"
        )
        print(f"largest difference to the fit to all cells in one place: {worst:.1e} of a spread\n")
        print("What each party saw")
        folder = self.out / ("share" if self.shared else f"{SITES[0]}/inbox")
        sums = sorted(folder.rglob("*.sum"))
        size = sum(path.stat().st_size for path in sums)
        rounds = len({path.parent for path in sums})
        where = "the shared folder" if self.shared else "the courier"
        print(
            f"  {where}: {len(sums)} messages of masked numbers in {rounds} rounds, {size / 1e6:.1f} MB,"
        )
        print(
            "    each of which looks random; all together add up to the sums, for which no key is needed;"
        )
        print("    names of sites; the plans; the PCA")
        print("  each site: the same, and its own cells")
        print("What can be worked out from it")
        print(
            "  no numbers of one site, that we know of" if target == "moment" else f"  {POPULATION}"
        )
        return {"difference": worst, "moved": moved, "rounds": rounds, "bytes": size}

    def at(
        self,
        sites: Sequence[str],
        verb: str,
        *options: str,
        own: Callable[[str], Sequence[str]] = lambda _: (),
    ) -> dict[str, dict[str, str]]:
        """Run a command at some sites at once, with options of their own; return what each printed."""
        return _at_once({
            site: ["federated", verb, *own(site), *options, *self._where(site)] for site in sites
        })  # fmt: skip

    def _answer(self, file: str, out: str, *plan: str) -> None:
        """Publish a plan at the first site, and answer it with a file at all; each writes the result."""
        made = self.at(SITES[:1], *plan)[SITES[0]]
        self._wait_for(SITES[1:], [f"plans/{made['plan'][:16]}.plan"])
        options = ["--plan", made["plan"], "--wait", PATIENCE, "--batch-key", "donor"]
        self.at(
            SITES, "contribute", "--confirm", made["fingerprint"], "--yes", *options,
            own=lambda site: [str(self.out / site / file)],
        )  # fmt: skip
        self.at(
            SITES, "finish", *options,
            own=lambda site: [str(self.out / site / file), "--out", str(self.out / site / out)],
        )  # fmt: skip

    def _wait_for(self, sites: Sequence[str], names: Sequence[str]) -> None:
        """Wait until a courier has carried messages to some sites."""
        end = time.monotonic() + float(PATIENCE)
        places = [self.out / site / "inbox" / name for site in sites for name in names]
        while not self.shared and not all(place.exists() for place in places):
            if time.monotonic() > end:
                raise BadValue("Expected messages to arrive at all sites, found that some did not.")
            time.sleep(0.5)

    def _where(self, site: str) -> list[str]:
        home = self.out / site
        boxes = ["--inbox", str(home / "inbox"), "--outbox", str(home / "outbox")]
        where = ["--folder", str(self.out / "share")] if self.shared else boxes
        return ["--private", str(home / "private"), *where, "--json"]


def central_fit(Z: np.ndarray, batch: np.ndarray, target: str) -> np.ndarray:
    """The cells of all sites, refined in one place; small populations are dissolved, as at the sites."""
    model = BatchProx(target=target)
    cells = MemoryCells(Z, Labels.of(batch, len(Z)))
    model.fit_moments(dissolved(model.describe(cells), MIN_CELLS))
    return model.transform(Z, batch)


def _at_once(commands: dict[str, list[str]]) -> dict[str, dict[str, str]]:
    """Run commands together; if one fails, stop the others."""
    running = {
        name: subprocess.Popen(
            [sys.executable, "-m", "scbatchprox", *command], stdout=subprocess.PIPE, text=True
        )
        for name, command in commands.items()
    }
    try:
        found = {}
        for name, process in running.items():
            printed, _ = process.communicate()
            if process.returncode:
                raise BadValue(
                    f"Expected site {name} to succeed, found exit code {process.returncode}."
                )
            found[name] = json.loads(printed)
        return found
    finally:
        for process in running.values():
            if process.poll() is None:
                process.terminate()
            process.wait()
