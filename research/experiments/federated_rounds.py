"""How few sums the federated population target needs, and what populations of 20 cells cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from scbatchprox.api.estimator import BatchProx
from scbatchprox.cells.memory import MemoryCells
from scbatchprox.core.labels import Labels
from scbatchprox.evaluate import silhouette
from scbatchprox.evaluate.comparison import neighbourhood_scores
from scbatchprox.targets.population.find import dissolved
from scbatchprox.targets.population.settings import PopulationSettings
from scbatchprox.targets.population.target import ROUNDS as TARGET_ROUNDS
from scbatchprox.targets.population.target import PopulationTarget

from ..baselines import POPULATION
from .classify import REAL
from .experiment import Experiment
from .figures import dots
from .journal import Job, digest
from .page import MEANINGS, NAMES, Report
from .planted_page import HALVES, OTHER, half_of
from .settings import Settings, choice
from .trial import Trial, one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FEDERATED_ROUNDS", "FederatedRoundsSettings"]

SCORES = (
    *("lobo_f1", "ilisi_30", "mixing_within_types", "silhouette", "over_correction"),
    *("variance_kept", "neighbours_kept_in_batch"),
)
UNREFINED, DEFAULT, CHOSEN = "unrefined", "default", "federated"
MIN_CELLS = 20


@dataclass(frozen=True)
class Variant:
    """Settings, rounds, and the smallest population: smaller ones are dissolved."""

    settings: PopulationSettings = field(default_factory=PopulationSettings)
    rounds: int = TARGET_ROUNDS
    min_cells: int = 1


ROUNDS = {
    DEFAULT: Variant(),
    **{f"{rounds} rounds": Variant(rounds=rounds) for rounds in (7, 5, 3, 1)},
}
POPULATIONS = {
    DEFAULT: Variant(),
    CHOSEN: Variant(min_cells=MIN_CELLS),
    **{
        f"{cells} cells on average, small dissolved": Variant(
            PopulationSettings(cells=cells), min_cells=MIN_CELLS
        )
        for cells in (20, 40)
    },
}


@dataclass(frozen=True)
class FederatedRoundsSettings(Settings):
    """Settings of the experiment."""

    data: tuple[str, ...] = choice(tuple(sorted(REAL)))
    runs: int = choice(1)
    upstreams: tuple[str, ...] = choice(("pca",))
    max_cells: int | None = choice(4000)


def _jobs(trial: Trial) -> Iterator[Job]:
    for upstream in trial.upstreams:
        yield trial.job(upstream, UNREFINED, partial(_scores, trial, upstream, None))
        for name, variant in (ROUNDS | POPULATIONS).items():
            # The settings are part of the key: a row of other settings is not taken for this one.
            work = partial(_scores, trial, upstream, variant)
            step = digest(repr(variant))[:8]
            yield trial.job(upstream, POPULATION, work, condition=name, step=step)


def _scores(trial: Trial, upstream: str, variant: Variant | None) -> dict[str, float]:
    Z = trial.embed(upstream).Z
    batch, cell_type = trial.obs["batch"], trial.obs["cell_type"]
    found: dict[str, float] = {}
    with one_thread():
        refined = Z
        if variant is not None:
            refined, found = _refined(Z, batch, variant)
        found |= neighbourhood_scores(refined, batch, cell_type, Z)
        return found | {"silhouette": silhouette(refined, cell_type, max_cells=2000)}


def _refined(Z: np.ndarray, batch: Any, variant: Variant) -> tuple[np.ndarray, dict[str, float]]:
    """Return refined cells, the number of sums, and the mean number of populations in a batch."""
    target = PopulationTarget(settings=variant.settings)
    model = BatchProx(target=target, rounds=variant.rounds)
    own = dissolved(model.describe(MemoryCells(Z, Labels.of(batch, len(Z)))), variant.min_cells)
    sums = 0

    def counted(own_sums: np.ndarray) -> np.ndarray:
        nonlocal sums
        sums += 1
        return own_sums

    model.fit_pooled(own, own.by_batch.pooled(), counted)
    about = {"sums": float(sums), "populations": own.n_rows / own.batches.size}
    return model.transform(Z, batch=batch), about


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.assign(condition=rows["condition"].where(rows["condition"] != "", UNREFINED))
    wide = rows.pivot_table(index=["dataset", "condition"], columns="metric", values="value")
    return wide.assign(half=[half_of(dataset) for dataset, _ in wide.index])


def _table(wide: pd.DataFrame, half: str, names: list[str], first: str) -> pd.DataFrame:
    """Return means over the sets of a half, and the difference of leave-one-batch-out F1."""
    part = wide[wide["half"] == half]
    usual = part.xs(DEFAULT, level="condition")["lobo_f1"]
    before = part.xs(UNREFINED, level="condition")["lobo_f1"]
    lines = []
    for name in names:
        found = part.xs(name, level="condition")
        most = "" if name == UNREFINED else f"{found[first].mean():.1f}"
        if first == "sums" and name != UNREFINED:
            few, many = int(found[first].min()), int(found[first].max())
            most = str(few) if few == many else f"{few} to {many}"
        line: dict[str, str] = {"variant": name, first: most}
        line |= {
            score: _spread(found[score]) if score == "lobo_f1" else f"{found[score].mean():.3f}"
            for score in SCORES
        }  # fmt: skip
        change = found["lobo_f1"] - usual
        line["F1 - default"] = _spread(change)
        line["worst F1 - unrefined"] = f"{(found['lobo_f1'] - before).min():+.3f}"
        lines.append(line)
    return pd.DataFrame(lines).rename(columns=NAMES)


def _spread(values: pd.Series, sign: str = "") -> str:
    """Return the mean, and the standard deviation of more than one value."""
    sd = f" ± {values.std(ddof=1):.3f}" if len(values) > 1 else ""
    return f"{values.mean():{sign}.3f}{sd}"


def _report(rows: pd.DataFrame, settings: Settings) -> Report:
    wide = _wide(rows)
    halves = [half for half in (*HALVES, OTHER) if (wide["half"] == half).any()]
    tables = {}
    for half in halves:
        tables[f"Number of sums, {half} sets"] = _table(wide, half, [UNREFINED, *ROUNDS], "sums")
    for half in halves:
        names = [UNREFINED, *POPULATIONS]
        tables[f"Populations of {MIN_CELLS} cells, {half} sets"] = _table(
            wide, half, names, "populations"
        )
    part = wide[wide["half"] == halves[-1]]
    findings = []
    for name in (*list(ROUNDS)[1:], *list(POPULATIONS)[1:]):
        ours, usual = (part.xs(which, level="condition") for which in (name, DEFAULT))
        change = ours[list(SCORES)] - usual[list(SCORES)]
        said = ", ".join(
            f"{NAMES[score]} {_spread(change[score], '+')}"
            for score in ("lobo_f1", "mixing_within_types", "over_correction")
        )
        sums = ours["sums"].max()
        findings.append(f"{name} (at most {sums:.0f} sums): {said} from the default.")
    notes = [
        f"Findings are on the {halves[-1]} sets. Nothing was chosen by this page: a federated fit has the "
        f"settings of the default.",
        f"Means over data sets of at most {settings.max_cells:,} cells; ± is the standard deviation over "
        f"sets. The last two columns: difference of leave-one-batch-out F1 from the default, and its worst "
        f"difference from the unrefined embedding on one set.",
        "Sums: of a federated fit, after the sum of moments; more if batches have a smooth part, or are "
        "looked at again without those that have no evidence. Populations: in a batch, on average.",
        f"`{CHOSEN}`: populations with fewer than {MIN_CELLS} cells are dissolved, as at all sites.",
        MEANINGS,
    ]
    return Report(findings, tables, notes)


def _draw(rows: pd.DataFrame) -> Figure:
    chosen = rows[rows["metric"].isin(("lobo_f1", "mixing_within_types"))]
    usual = chosen[chosen["condition"] == DEFAULT]
    by = ["dataset", "upstream", "metric"]
    merged = chosen[~chosen["condition"].isin(("", DEFAULT))].merge(
        usual[[*by, "value"]], on=by, suffixes=("", "_usual")
    )
    merged = merged.assign(
        value=merged["value"] - merged["value_usual"],
        method=[half_of(name) for name in merged["dataset"]],
        panel=merged["metric"].map(NAMES),
    )
    xlabel = "change from the default, mean and spread over data sets"
    return dots(merged, xlabel=xlabel, y="condition", panel="panel", names=NAMES)


FEDERATED_ROUNDS = Experiment(
    name="federated_rounds",
    title="Federated registration: how few sums, and how small populations",
    question="How many sums does a federated fit of the population target need, and what does it cost that "
    "populations have at least 20 cells?",
    settings=FederatedRoundsSettings(),
    quick={"data": ("sim_balanced2", "sc_mixology"), "max_cells": 400},
    jobs=_jobs,
    report=_report,
    draw=_draw,
)
